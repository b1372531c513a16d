# SPDX-License-Identifier: Apache-2.0
"""Who holds how much memory: one account for all trainers, one for each user, one for each job.

Shared memory is charged by the kernel to whoever touches a page first, so the sum that is given away has to stay
below what the service's cgroup may hold. An account is debited before the memory is made, and a refusal names the
limit.
"""

from __future__ import annotations

from collections import defaultdict

from ultima.daemon.config import Limits
from ultima.daemon.errors import ResourceExhausted


class Budget:
    """Bytes in use against limits.memory_bytes, _per_uid and _per_job."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.used = 0
        self.used_by_uid: dict[int, int] = defaultdict(int)
        self.used_by_job: dict[str, int] = defaultdict(int)

    def take(self, uid: int, size: int) -> None:
        """Debits `size` bytes to a user. Raises ResourceExhausted and debits nothing if that is over a limit."""
        self._check(
            "memory_bytes_per_uid", self._limits.memory_bytes_per_uid, self.used_by_uid[uid], size, f"uid {uid}"
        )
        self._check("memory_bytes", self._limits.memory_bytes, self.used, size, "this daemon")
        self.used += size
        self.used_by_uid[uid] += size

    def give_back(self, uid: int, size: int) -> None:
        """Undoes a `take`."""
        self.used -= size
        self.used_by_uid[uid] -= size
        if not self.used_by_uid[uid]:
            del self.used_by_uid[uid]

    def take_job(self, job: str, size: int) -> None:
        """Debits `size` bytes, which a user has taken or the engine will, to a job as well."""
        limit = self._limits.memory_bytes_per_job
        self._check("memory_bytes_per_job", limit, self.used_by_job[job], size, f"job {job!r}")
        self.used_by_job[job] += size

    def give_back_job(self, job: str, size: int) -> None:
        """Undoes a `take_job`."""
        self.used_by_job[job] -= size
        if not self.used_by_job[job]:
            del self.used_by_job[job]

    @staticmethod
    def _check(name: str, limit: int, used: int, size: int, whose: str) -> None:
        if used + size > limit:
            raise ResourceExhausted(
                f"limits.{name} = {limit}: {size} bytes asked for {whose}, which holds {used}; {limit - used} are left"
            )
