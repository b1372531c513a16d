# SPDX-License-Identifier: Apache-2.0
"""The process `ultimad`: it reads the command line, puts one daemon together, talks to systemd, and ends."""

import os

# Before anything imports gRPC, which reads it then: its own chatter would stand beside the one line that says why the
# daemon does not start, and would tell of a failed handshake whenever a peer asks who answers here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
