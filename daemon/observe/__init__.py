# SPDX-License-Identifier: Apache-2.0
"""What a daemon tells of its jobs and of itself: counts of ops, the newest receipts, and whether ops make progress."""
