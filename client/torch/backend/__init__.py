# SPDX-License-Identifier: Apache-2.0
"""The process group "ultima": which tensors and collectives it takes, how ranks meet, and what goes to Gloo."""
