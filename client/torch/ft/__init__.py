# SPDX-License-Identifier: Apache-2.0
"""What torchft users know, on Ultima: a process group for the Manager, whose ranks change while training goes on, and
the forms of DiLoCo and LocalSGD."""

from ultima.torch.ft.local_sgd import DiLoCo, LocalSGD
from ultima.torch.ft.process_group import ProcessGroupUltima
from ultima.torch.ft.verdict import Incomplete

__all__ = ["DiLoCo", "Incomplete", "LocalSGD", "ProcessGroupUltima"]
