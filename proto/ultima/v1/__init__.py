# SPDX-License-Identifier: Apache-2.0
"""What the daemons, their trainers and their operators say to one another over gRPC.

Everything beside this file is generated from the .proto files here by `make proto`; edit those.
"""
