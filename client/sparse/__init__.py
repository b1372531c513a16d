# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients: choosing the entries that are worth sending, packing them, and exchanging the packs.

    memory = ultima.sparse.Feedback(gradient.size, ratio=0.01)
    chosen = memory.select(gradient)                                  # the rest is kept for later steps
    packed = ultima.sparse.encode(chosen.indices, chosen.values, chosen.size)
    mean = ultima.sparse.exchange(job, packed, gradient.size).mean()  # dense, the same bits on all ranks

Containers and codecs are those of DeepReduce (Xu et al., NeurIPS 2021). `docs/sparse.md` says how to choose.
"""

from ultima.base.sparse_form import rounded
from ultima.sparse.codec import Sparse, decode, encode
from ultima.sparse.container import INDEX_CODECS, VALUE_CODECS, Container, parse
from ultima.sparse.exchange import Exchanged, exchange
from ultima.sparse.feedback import Feedback
from ultima.sparse.select import entries_above, random_entries, top_entries

__all__ = [
    "INDEX_CODECS",
    "VALUE_CODECS",
    "Container",
    "Exchanged",
    "Feedback",
    "Sparse",
    "decode",
    "encode",
    "entries_above",
    "exchange",
    "parse",
    "random_entries",
    "rounded",
    "top_entries",
]
