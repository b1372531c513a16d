# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks that change while training goes on: a process group for torchft's Manager."""

from ultima.torch.ft.group import ProcessGroupUltima
from ultima.torch.ft.verdict import Incomplete

__all__ = ["Incomplete", "ProcessGroupUltima"]
