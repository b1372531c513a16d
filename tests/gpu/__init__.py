# SPDX-License-Identifier: Apache-2.0
"""What only an accelerator can say: `make gpu`, five minutes on one GPU, and a form that runs without one."""
