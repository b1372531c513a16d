# SPDX-License-Identifier: Apache-2.0
"""What a job may be told: its options, and what `connect` takes from its arguments and the environment."""
