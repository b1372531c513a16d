# SPDX-License-Identifier: Apache-2.0
"""Training with quantised gradients: `QuantState` and its hook, and what rounding took from each parameter."""

from ultima.torch.quant.state import QuantState, QuantSummary, quantize_hook

__all__ = ["QuantState", "QuantSummary", "quantize_hook"]
