# SPDX-License-Identifier: Apache-2.0
"""Ranks of different speed: the rule that groups them, and `Hierarchy`, which shares a model between the groups."""

from ultima.speed_groups.grouping import groups, iteration_time
from ultima.speed_groups.hierarchy import Hierarchy

__all__ = ["Hierarchy", "groups", "iteration_time"]
