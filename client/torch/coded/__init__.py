# SPDX-License-Identifier: Apache-2.0
"""Training whose gradient is exact although ranks are late: which rank computes what, and the step that adds it up."""
