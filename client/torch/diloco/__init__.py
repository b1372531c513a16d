# SPDX-License-Identifier: Apache-2.0
"""Local SGD for torch models: `DiLoCo` and `LocalSGD`, which are `ultima.Outer` over a model's own tensors."""
