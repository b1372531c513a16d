# SPDX-License-Identifier: Apache-2.0
"""Partial jobs in the control plane: what ranks have to give, RNA's controller, and who takes part how often."""
