# SPDX-License-Identifier: Apache-2.0
"""Training with sparse gradients: `SparseState` and its hook, what it keeps of each parameter, and how entries go."""

from ultima.torch.sparse.state import SparseState, SparseSummary, sparse_hook

__all__ = ["SparseState", "SparseSummary", "sparse_hook"]
