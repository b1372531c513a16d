# SPDX-License-Identifier: Apache-2.0
"""One sentence: why it is slow now. A decision by a table of rules, the gravest first, over what the page shows anyway.

Each rule looks at the newest `WINDOW_S` seconds and names what can be acted on. Where ops are slow and no host was
found to blame, the sentence says just that: a cause that is guessed would send somebody the wrong way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WINDOW_S = 10
USUAL_S = 20  # seconds with ops before the window, below which nothing is known to be usual
SLOWER = 1.5  # times as long as usual is slow
MOSTLY = 0.25  # share of the ops for which a host must be to blame to be named
BUSY = 0.9  # of a core
MANY = 0.5  # share of the ops that are not complete from which on a job is in trouble
SILENT_S = 5.0

_TROUBLES = {
    "sender": "it calls its ops late",
    "path": "packets to or from it get lost",
    "receiver": "its kernel drops what has arrived",
    "gone": "it is gone",
    "udp": "UDP between it and others does not get through",
}


class Why(NamedTuple):
    """A sentence, and how grave it is: "ok", "warning" or "error"."""

    level: str
    text: str
    topic: str = ""
    """Of a sentence that rests on measurements, which scatter: what it is about. Empty for a fact."""
    job: str = ""
    """Which job it is about, if it is about one."""
    at_once: bool = False
    """Measured, but grave enough to be shown at once; it stays as long as others of its kind."""


@dataclass(frozen=True, slots=True)
class JobNow:
    """One job over the newest seconds."""

    name: str
    waiting_for: str = ""
    """Whom it waits for while it forms; empty once it runs."""
    forming: bool = False
    ailments: Sequence[str] = ()
    """In full sentences."""
    gone: Sequence[str] = ()
    """Hosts that are not connected, for people."""
    ops: int = 0
    """That ended within the window."""
    not_whole: int = 0
    """Those of them that are not complete."""
    blamed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many of them which host is to blame for, by its address and the kind of trouble."""
    p50_ms: float = 0.0
    """Of the window; 0 without ops."""
    usual_ms: float = 0.0
    """The same of the time before; 0: not known."""
    late: str = ""
    """For whom the others wait while ops stay whole, and how long, in words; empty for nobody."""
    silent_s: float = 0.0
    """Since the last op ended."""


@dataclass(frozen=True, slots=True)
class HostNow:
    """This host over the newest seconds."""

    jobs: Sequence[JobNow] = ()
    well: bool = True
    reason: str = ""
    """Why not."""
    drops: int = 0
    """Datagrams that the kernel dropped within the window."""
    busiest: float = 0.0
    """Share of a core that the busiest engine thread takes."""
    open_s: float = 0.0
    """Age of the oldest open op; 0 without one."""


def why(now: HostNow) -> Why:
    """The gravest thing that is true now."""
    return next(reasons(now))


def reasons(now: HostNow) -> Iterator[Why]:
    """All that is true now, the gravest first; the last one says that all is well."""
    if not now.well:
        yield Why("error", f"The engine hangs: {now.reason}. The watchdog will restart the daemon.")
    for job in now.jobs:
        yield from (Why("error", f"Job {job.name}: {text}", job=job.name) for text in job.ailments)
    for job in now.jobs:
        if job.gone:
            yield Why("error", f"Job {job.name} goes on without {_listed(job.gone)}: not connected.", job=job.name)
    for job in now.jobs:
        if job.not_whole:
            level = "error" if job.not_whole > MANY * job.ops else "warning"
            yield Why(level, _not_whole(job), f"not whole {job.name}", job.name, at_once=True)
    if now.drops:
        text = f"This host's kernel dropped {now.drops} datagrams within {WINDOW_S} s"
        text = f"{text}: the receive buffer is too small, or the engine gets too little of a CPU."
        yield Why("warning", text, "drops", at_once=True)
    for job in now.jobs:
        if job.usual_ms and job.p50_ms > SLOWER * job.usual_ms:
            yield Why("warning", _slower(job, now.busiest), f"slower {job.name}", job.name)
    for job in now.jobs:
        if job.forming:
            text = f"Job {job.name} forms: {job.waiting_for or 'its ranks are on their way'}."
            yield Why("warning", text, job=job.name)
    for job in now.jobs:
        if (worst := _worst(job)) is not None:
            text = f"Job {job.name} waits for {worst[0]} in {worst[2]:.0%} of its ops: {worst[1]}."
            yield Why("warning", text, f"blamed {job.name} {worst[0]}", job.name)
    for job in now.jobs:
        if job.late:
            who = job.late.partition(": ")[0]
            yield Why("warning", f"Job {job.name} waits for {job.late}.", f"late {job.name} {who}", job.name)
    running = [job for job in now.jobs if not job.forming]
    silent = [job for job in running if job.silent_s >= SILENT_S]
    if silent and len(silent) == len(running):
        job = min(silent, key=lambda job: job.silent_s)
        yield Why("warning", _silent(job, now.open_s), "silent", job.name, at_once=True)
    if now.busiest >= BUSY:
        yield Why("warning", f"An engine thread takes {now.busiest:.0%} of a core: the CPU is the limit.", "cpu")
    if not now.jobs:
        yield Why("ok", "No job runs on this host.")
    yield Why("ok", f"Nothing is slow: {_rates(running)}.")


def _not_whole(job: JobNow) -> str:
    text = f"Job {job.name}: {job.not_whole} of the last {job.ops} ops were not complete"
    worst = _worst(job, 0.0)
    return f"{text}; most often {worst[0]} is to blame: {worst[1]}." if worst else f"{text}."


def _slower(job: JobNow, busiest: float) -> str:
    times = f"{job.p50_ms:.3g} ms, {job.p50_ms / job.usual_ms:.1f} times as long as before"
    text = f"Ops of job {job.name} take {times}"
    if (worst := _worst(job)) is not None:
        return f"{text}; for {worst[2]:.0%} of them {worst[0]} is to blame: {worst[1]}."
    if busiest >= BUSY:
        return f"{text}; an engine thread takes {busiest:.0%} of a core."
    if job.late:
        return f"{text}; it waits for {job.late}."
    return f"{text}; no host was found to blame."


def _silent(job: JobNow, open_s: float) -> str:
    text = f"No op of job {job.name} has ended for {job.silent_s:.0f} s"
    if open_s >= 1:
        return f"{text}; one has been open for {open_s:.0f} s and waits for other hosts."
    return f"{text}, and none is open: the trainers are computing, or waiting for something other than Ultima."


def _worst(job: JobNow, share: float = MOSTLY) -> tuple[str, str, float] | None:
    """Who is to blame for most ops, by what kind of trouble, and for which share; None if for less than `share`."""
    if not job.blamed or not job.ops:
        return None
    ((address, trouble), count), *_ = job.blamed.most_common(1)
    if count / job.ops < share:
        return None
    return address, _TROUBLES.get(trouble, "of unknown trouble"), min(count / job.ops, 1.0)


def _rates(jobs: Iterable[JobNow]) -> str:
    told = [f"{job.ops / WINDOW_S:.3g} ops/s of job {job.name}, {job.p50_ms:.3g} ms each" for job in jobs if job.ops]
    if len(told) > 3:
        return f"{'; '.join(told[:2])}; and {len(told) - 2} more jobs"
    return "; ".join(told) or "no ops at the moment"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
