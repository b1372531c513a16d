# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for DDP and FSDP2: how buckets travel, what may go missing, and what ranks agree on each step."""

from ultima.torch.hooks.allreduce import allreduce_hook, average_hook, guard, hook_fsdp
from ultima.torch.hooks.bucket_options import LAST, Bucket, BucketOptions, Policy
from ultima.torch.hooks.loss_budget import LossBudget
from ultima.torch.hooks.state import HookState, HookSummary

__all__ = [
    "LAST",
    "Bucket",
    "BucketOptions",
    "HookState",
    "HookSummary",
    "LossBudget",
    "Policy",
    "allreduce_hook",
    "average_hook",
    "guard",
    "hook_fsdp",
]
