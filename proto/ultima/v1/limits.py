# SPDX-License-Identifier: Apache-2.0
"""How far the numbers of a message may go, in one place for daemons and clients.

The C core holds the same limits by itself (`transport_c/core/base/ut.h`), since it trusts nobody who calls it; a test
compares them one by one.
"""

from __future__ import annotations

JOBS_MAX = 16  # at once, of one daemon
SESSIONS_MAX = 64  # trainers at once, of one daemon
HOSTS_MAX, LOCAL_RANKS_MAX = 64, 16  # of one job; ranks of one job on one host
MEET_MAX = 8  # daemons at which the hosts of one job may meet
WORLD_SIZE_MAX = HOSTS_MAX * LOCAL_RANKS_MAX
LANES_MAX = 4  # engines of one daemon
BUCKET_BYTES_MAX = 2**32 - 1
PACKET_BYTES_MIN, PACKET_BYTES_MAX, PACKET_BYTES_STEP = 96, 9216, 8  # UDP payload of a full packet
WIRE_VERSION = 4  # of the protocol between engines (transport_c/PROTOCOL.md)
JOB_NAME_MAX = 128  # printable characters
