# SPDX-License-Identifier: Apache-2.0
"""How much of what is scarce each user and each job holds: memory, and things that are counted.

Memory is a trainer's (its arena and rings, which the kernel charges to whoever touches a page first) or the engine's
part of a job, which is its owner's. Most of the latter is never touched, but all of it may be: so all of it counts, and
the sum of what is given away stays below what the service's cgroup may hold. An account is debited before the memory is
made. A refusal names the limit, what was asked for, what is left and the way out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from ultima.daemon.base.config import Limits
from ultima.daemon.base.errors import Refused, ResourceExhausted


class Budget:
    """Bytes in use against limits.memory_bytes, _per_uid and _per_job."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.used = 0
        self.used_by_uid: dict[int, int] = defaultdict(int)
        self.used_by_job: dict[str, int] = defaultdict(int)

    def take(self, uid: int, size: int, way_out: str = "") -> None:
        """Debits `size` bytes to a user. Raises ResourceExhausted and debits nothing if that is over a limit."""
        share = self._limits.share("memory_bytes")
        way_out = way_out or "a smaller arena (ULTIMA_ARENA)"
        self._check("memory_bytes_per_uid", share, self.used_by_uid.get(uid, 0), size, f"uid {uid}", way_out)
        self._check("memory_bytes", self._limits.memory_bytes, self.used, size, "this daemon", way_out)
        self.used += size
        self.used_by_uid[uid] += size

    def give_back(self, uid: int, size: int) -> None:
        """Undoes a `take`."""
        self.used -= size
        self.used_by_uid[uid] -= size
        if not self.used_by_uid[uid]:
            del self.used_by_uid[uid]

    def take_job(self, job: str, size: int, way_out: str = "") -> None:
        """Debits `size` bytes, which a user has taken, to a job as well. Raises ResourceExhausted."""
        limit = self._limits.memory_bytes_per_job or self._limits.share("memory_bytes")
        way_out = way_out or "a smaller arena (ULTIMA_ARENA)"
        self._check("memory_bytes_per_job", limit, self.used_by_job.get(job, 0), size, f"job {job!r}", way_out)
        self.used_by_job[job] += size

    def give_back_job(self, job: str, size: int) -> None:
        """Undoes a `take_job`."""
        self.used_by_job[job] -= size
        if not self.used_by_job[job]:
            del self.used_by_job[job]

    def take_engine(self, uid: int, job: str, size: int, bucket_bytes_max: int) -> None:
        """Debits the engine's part of a job to its owner and to the job. Raises ResourceExhausted."""
        limit = self._limits.bucket_bytes
        if bucket_bytes_max > limit:
            raise ResourceExhausted(f"limits.bucket_bytes = {limit}: job {job!r} needs {bucket_bytes_max}")
        way_out = f"a smaller bucket_bytes_max (ULTIMA_BUCKET_MAX) than {bucket_bytes_max}"
        self.take(uid, size, way_out)
        try:
            self.take_job(job, size, way_out)
        except Refused:
            self.give_back(uid, size)
            raise

    def give_back_engine(self, uid: int, job: str, size: int) -> None:
        """Undoes a `take_engine`."""
        self.give_back_job(job, size)
        self.give_back(uid, size)

    @staticmethod
    def _check(name: str, limit: int, used: int, size: int, whose: str, way_out: str) -> None:
        if used + size > limit:
            raise ResourceExhausted(
                f"limits.{name} = {limit}: {size} bytes asked for {whose}, which holds {used}; {limit - used} are "
                f"left: allowed: {way_out}, or a higher limit of the daemon"
            )


def check_share(name: str, limits: Limits, holders: Iterable[int], uid: int, what: str) -> None:
    """Raises ResourceExhausted unless `uid` may have one more of what limits.`name` counts.

    `holders` are the users of those that there are, `what` says in the plural what they are.
    """
    taken = Counter(holders)
    limit, share = getattr(limits, name), limits.share(name)
    if taken.total() >= limit:
        raise ResourceExhausted(f"limits.{name} = {limit}: that many {what} already")
    if taken[uid] >= share:
        raise ResourceExhausted(f"limits.{name}_per_uid = {share}: of uid {uid}, that many {what} already")
