# SPDX-License-Identifier: Apache-2.0
"""Quantised tensors: what a gradient becomes when it travels in 16, 8 or 4 bits an element, to the bit.

    memory = ultima.quant.Feedback(job.empty(gradient.size))            # what rounding takes is sent in the next step
    job.allreduce(gradient, wire="int4", answer="int8", feedback=memory)

    ultima.quant.rounded(gradient, "int8")                              # what would arrive of it
    ultima.quant.wire_bytes(gradient.size, "int8", hosts=4)             # and what a host would send

The daemon's own kernels do it. `docs/quantised.md` says which form to take, and `docs/api/quant.md` has all the names.
"""

from ultima.quant.coding import FORMS, Draws, decode, encode, encoded_bytes, rounded, slot_elements, wire_bytes
from ultima.quant.feedback import Feedback

__all__ = [
    "FORMS",
    "Draws",
    "Feedback",
    "decode",
    "encode",
    "encoded_bytes",
    "rounded",
    "slot_elements",
    "wire_bytes",
]
