# SPDX-License-Identifier: Apache-2.0
"""Forms of few bits in which gradients can travel, as hosts name them to each other (`wires` of Host).

Those of a quantised allreduce, the finest first, then `down_` and those in which a sparse one can be answered.
"""

from __future__ import annotations

WIRES = ("int16", "int8", "int4", "down_int8")  # that the engine of this release knows
WIRES_MAX, WIRE_NAME_MAX = 16, 16  # that a host of any release may name; characters of a name
