# SPDX-License-Identifier: Apache-2.0
"""Local SGD: ranks train by themselves for many steps, and then average how far they came (DiLoCo and its kin).

`Outer` is one rank's part, for numpy arrays; `ultima.torch.DiLoCo` is the same for a torch model. Nothing that a rank
did is thrown away because a round went without it: see `outer.py`.
"""
