# SPDX-License-Identifier: Apache-2.0
"""Which library does which collective: Ultima through the daemons, or Gloo over TCP. docs/pytorch.md has the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    """One collective of `torch.distributed`.

    by: "ultima", or "gloo" where Ultima never does it.
    mode: "as set" (ULTIMA_MODE, "bounded" by default), or "reliable": complete or an exception.
    when: what must hold for Ultima to do it; otherwise Gloo does, if it can.
    """

    by: str
    mode: str
    when: str


_DENSE = "dense CPU tensors"
_MOVED = f"one rank per host; {_DENSE}"  # of any type
_BUCKET = "up to 64 MiB in all"
_REDUCED = f"{_DENSE} of float16-64, bfloat16, int32/64; complex for SUM, AVG; no bitwise"


def _ultima(when: str, mode: str = "reliable") -> Capability:
    return Capability("ultima", mode, when)


_GLOO = Capability("gloo", "reliable", "never")

CAPABILITIES: dict[str, Capability] = {
    "all_reduce": _ultima(_REDUCED, mode="as set"),
    "all_reduce_coalesced": _ultima("as all_reduce", mode="as set"),
    "broadcast": _ultima(_MOVED),
    "all_gather": _ultima(f"{_MOVED}; equal sizes; {_BUCKET}"),
    "all_gather_into_tensor": _ultima(f"{_MOVED}; {_BUCKET}"),
    "reduce_scatter": _ultima("as all_reduce, and equal sizes"),
    "reduce_scatter_tensor": _ultima("as all_reduce"),
    "all_to_all_single": _ultima(f"{_MOVED}; no split sizes; {_BUCKET}"),
    "barrier": _ultima("always"),
    "all_to_all": _GLOO,
    "all_gather_coalesced": _GLOO,
    "reduce": _GLOO,
    "gather": _GLOO,
    "scatter": _GLOO,
    "send": _GLOO,
    "recv": _GLOO,
    "isend": _GLOO,
    "irecv": _GLOO,
    "batch_isend_irecv": _GLOO,
}


def capabilities() -> dict[str, Capability]:
    """Which library does which collective, by its name in `torch.distributed`.

    The same for every group; a group of one rank needs no daemon, and all of its collectives are Gloo's.
    """
    return dict(CAPABILITIES)
