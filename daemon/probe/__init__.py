# SPDX-License-Identifier: Apache-2.0
"""The policy PROBE: RNA's controller, which finds for each op the rank that starts it, and the probes that it sends."""
