# SPDX-License-Identifier: Apache-2.0
"""One trainer's session with the daemon on its host: attaching, shared memory, rings, and ops on their way."""
