# SPDX-License-Identifier: Apache-2.0
"""Training that does not wait for the slowest rank: EagerSGD, RNA, a hook for DDP, and the rounds they share."""
