# SPDX-License-Identifier: Apache-2.0
"""Forms of few bits in which gradients can travel, as hosts name them to each other (`wires` of Host)."""

from __future__ import annotations

WIRES = ("int16", "int8", "int4")  # that the engine of this release knows, the finest first
WIRES_MAX, WIRE_NAME_MAX = 16, 16  # that a host of any release may name; characters of a name
