# SPDX-License-Identifier: Apache-2.0
"""What a training program calls: `connect`, the Job, its handles and collectives, and its part in partial ops."""
