# SPDX-License-Identifier: Apache-2.0
"""Coded gradients: who computes which data, so that the sum over all data is exact although some ranks are late.

Each part of the data is computed by more than one rank. `Plan` says which part is whose, and from which ranks the sum
can be had. This room is arithmetic alone: it knows no job, no daemon and no network. The method is CodedReduce's
(docs/papers.md, section 4); codes.py has the codes, tree.py the paper's tree, shares.py the division of the data.
"""

from ultima.coded.plan import Plan

__all__ = ["Plan"]
