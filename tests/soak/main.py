# SPDX-License-Identifier: Apache-2.0
"""Three real daemons with certificates on loopback, and jobs of all kinds that come, go and are killed.

    python -m tests.soak.main --minutes 15 --jobs 1000 --seed 1

Prints how the daemons' memory, descriptors and threads went. The exit status is 0 when no daemon's private memory grew
by more than `--limit` MiB an hour in the second half, descriptors and threads came back to what they were, and no job
failed that nobody had killed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.daemon.trust.papers import Authority
from tests.e2e.hosts import DaemonProcess
from tests.e2e.test_secure import secure_hosts
from tests.nursery import Process, nursery_of
from tests.soak.growth import MIB, Sample, hourly, sample, second_half
from tests.soak.rank import KINDS, LEFT_EARLY

CLIENT = ("numpy", "ultima", "ultima.coded", "ultima.session.attach")
HOSTS = 3
AT_ONCE = 8  # jobs that run beside each other at most
SAMPLE_S = 2.0
WARM_UP = 2 * len(KINDS)  # jobs before the first sample: what is loaded once is loaded then
RANK_S = 120.0  # after which a rank counts as hung
ENDS = ("close", "close", "drop", "kill")


@dataclass
class Running:
    """A job that has begun: its ranks, and whether one of them is to be killed."""

    name: str
    kind: str
    began_s: float
    ranks: list[Process]
    killed: int | None
    log: Path


@dataclass
class Soak:
    """What is going on, and what has come of it."""

    hosts: Sequence[DaemonProcess]
    folder: Path
    random: random.Random
    running: list[Running] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    begun: int = 0

    def begin(self) -> None:
        """Starts one more job: the kinds in turn, and how it ends by chance."""
        kind = list(KINDS)[self.begun % len(KINDS)]
        places = KINDS[kind].places
        end = self.random.choice(ENDS)
        killed = self.random.randrange(len(places)) if end == "kill" else None
        name = f"soak-{self.begun}-{kind}{'-killed' if killed is not None else ''}".replace(" ", "-")
        log = self.folder / f"{name}.log"
        rendezvous = self.hosts[places[0]].rendezvous
        ranks = []
        with log.open("wb") as out:
            for rank, place in enumerate(places):
                mine = end if end != "kill" or rank == killed else "close"
                words = [kind, mine, name, str(rank), str(len(places)), str(self.hosts[place].socket), rendezvous]
                ranks.append(nursery_of(CLIENT).start("tests.soak.rank", words, None, out, out))
        self.running.append(Running(name, kind, time.monotonic(), ranks, killed, log))
        self.begun += 1

    def reap(self) -> None:
        """Takes note of the jobs that have ended, and ends those that hang."""
        for job in [*self.running]:
            statuses = [rank.poll() for rank in job.ranks]
            if None in statuses:
                if time.monotonic() - job.began_s < RANK_S:
                    continue
                for rank in job.ranks:
                    rank.kill()
                    rank.wait(10)
            self.running.remove(job)
            allowed = {0} if job.killed is None else {0, LEFT_EARLY}
            wrong = [
                f"rank {rank}: {'hung' if status is None else f'status {status}'}"
                for rank, status in enumerate(statuses)
                if status not in ({-9} if rank == job.killed else allowed)
            ]
            self.ended["killed" if job.killed is not None else "whole"] += 1
            if wrong:
                self.failed.append(f"{job.name}: {', '.join(wrong)}\n{job.log.read_text(errors='replace')[-800:]}")
            job.log.unlink()


def soak(minutes: float, jobs: int, seed: int, out: Console) -> tuple[Soak, list[list[Sample]]]:
    """Runs |jobs| jobs within |minutes|, evenly; what came of them, and the samples of each daemon."""
    with (
        tempfile.TemporaryDirectory(prefix="ultima-soak-") as folder,
        secure_hosts(HOSTS, Authority(), keep=True) as hosts,
    ):
        run = Soak(hosts, Path(folder), random.Random(seed))
        while run.begun < WARM_UP or run.running:
            if run.begun < WARM_UP and len(run.running) < AT_ONCE:
                run.begin()
            run.reap()
            time.sleep(0.05)
        samples: list[list[Sample]] = [[] for _ in hosts]
        start = time.monotonic()
        next_sample = next_said = start
        while (now := time.monotonic()) < start + minutes * 60:
            due = (run.begun - WARM_UP) * minutes * 60 / jobs <= now - start
            if due and run.begun - WARM_UP < jobs and len(run.running) < AT_ONCE:
                run.begin()
            run.reap()
            if now >= next_sample:
                for host, into in zip(hosts, samples, strict=True):
                    into.append(sample(host.pid, now - start))
                next_sample += SAMPLE_S
            if now >= next_said:
                private = "  ".join(f"{into[-1].private / MIB:.1f}" for into in samples)
                out.print(
                    f"{(now - start) / 60:5.1f} min  {run.begun - WARM_UP:5d} jobs  {private} MiB", highlight=False
                )
                next_said += max(10.0, minutes * 60 / 15)
            time.sleep(0.02)
        while run.running:
            run.reap()
            time.sleep(0.05)
        return run, samples


def quiet(samples: Sequence[Sample], what: str) -> tuple[float, float]:
    """The median of a number in the first and in the last fifth: jobs come and go, so single looks differ."""
    fifth = max(1, len(samples) // 5)
    first, last = samples[:fifth], samples[-fifth:]
    return statistics.median(getattr(one, what) for one in first), statistics.median(getattr(one, what) for one in last)


def report(run: Soak, samples: Sequence[Sequence[Sample]], limit_mib: float, out: Console) -> bool:
    """Prints the table, and says whether all is well."""
    table = Table(title=f"{run.begun - WARM_UP} jobs after a warm-up of {WARM_UP}; {len(run.failed)} failed")
    for heading in ("daemon", "memory MiB", "growth MiB/h", "KiB a job", "shared MiB", "descriptors", "threads", ""):
        table.add_column(heading, justify="left" if heading == "daemon" else "right", no_wrap=True)
    well = not run.failed
    for index, of_one in enumerate(samples):
        grows = hourly(of_one) / MIB
        lasted = second_half(of_one)
        share = (run.begun - WARM_UP) / max(1e-9, of_one[-1].at_s)
        a_job = grows * 1024 / 3600 / share if share else 0.0
        fds, threads = quiet(of_one, "descriptors"), quiet(of_one, "threads")
        # A job holds a dozen descriptors while it lives, and how many live at once is chance.
        good = grows < limit_mib and fds[1] <= fds[0] + 16 and threads[1] <= threads[0] + 2
        well &= good
        table.add_row(
            f"n{index}",
            f"{of_one[0].private / MIB:.1f} to {of_one[-1].private / MIB:.1f}",
            f"{grows:+.1f}",
            f"{a_job:+.1f}",
            f"{max(one.shared for one in lasted) / MIB:.1f}",
            f"{fds[0]:.0f} to {fds[1]:.0f}",
            f"{threads[0]:.0f} to {threads[1]:.0f}",
            "ok" if good else "GROWS",
        )
    out.print(table)
    for line in run.failed[:10]:
        out.print(line, markup=False, highlight=False)
    return well


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--jobs", type=int, default=1000, help="how many jobs begin in that time, evenly")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--limit", type=float, default=4.0, help="MiB an hour by which a daemon may grow")
    asked = parser.parse_args()
    out = Console(width=120)
    out.print(
        f"{asked.jobs} jobs in {asked.minutes:g} minutes on {HOSTS} daemons; --seed {asked.seed}", highlight=False
    )
    run, samples = soak(asked.minutes, asked.jobs, asked.seed, out)
    return 0 if report(run, samples, asked.limit, out) else 1


if __name__ == "__main__":
    sys.exit(main())
