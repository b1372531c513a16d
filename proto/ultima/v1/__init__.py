# SPDX-License-Identifier: Apache-2.0
"""What the daemons, their trainers and their operators say to one another over gRPC.

The modules *_pb2* are generated from the .proto files here by `make proto`; edit those. What both sides must hold alike
and a .proto file cannot say stands in `limits` and `job_options`, and what is installed is told by `installed`. These
need no protobuf: the client starts fast.
"""
