# SPDX-License-Identifier: Apache-2.0
"""What a daemon tells of its jobs: counts of ops, how ranks take part, the newest receipts, and whether ops go on."""
