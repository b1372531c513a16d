# SPDX-License-Identifier: Apache-2.0
"""The three gRPC services: for trainers, for other daemons and for operators. They check, translate and pass on."""
