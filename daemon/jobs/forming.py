# SPDX-License-Identifier: Apache-2.0
"""Says whom a job waits for while it forms: to the trainers that wait, in status, and in the log.

Only the coordinator knows who has come. So it is asked, after a few seconds and then now and again, and where it cannot
be asked, that is what there is to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from ultima.daemon.base.errors import NotFound, Refused
from ultima.daemon.base.waiting import numbers
from ultima.daemon.hosts.host import Place
from ultima.daemon.jobs.job import Job, JoinSpec
from ultima.daemon.trainers.attach import Trainer
from ultima.v1 import peer_pb2

log = logging.getLogger("ultimad.jobs")

NAME = "waiting"
PATIENCE_SECONDS = 3.0
AGAIN_SECONDS = 5.0

Asked = Callable[[JoinSpec], Awaitable[peer_pb2.FormingResponse]]


async def herald(job: Job, spec: JoinSpec, trainer: Trainer, here: Place, asked: Asked) -> None:
    """Tells whom a rank waits for, until it is cancelled. `here` is where this daemon listens, `asked` asks the
    coordinator of the rank's job."""
    await asyncio.sleep(PATIENCE_SECONDS)
    place = spec.rendezvous or here
    where = str(place) if place.port else "this daemon"
    while True:
        try:
            text = await _text(job, spec, where, asked)
        except NotFound:
            text = ""  # it has just formed
        except Refused as error:
            text = (
                f"coordinator {where} does not answer ({error}); is ultimad running there, is TCP port {place.port} "
                "open, and is it the host of rank 0?"
            )
        if text and text != job.waiting_for:
            log.info("job forms slowly job=%s rank=%d: %s", job.name, spec.rank, text)
        job.waiting_for = text or job.waiting_for
        if text:
            trainer.tell(NAME, f"job {job.name!r}: {text}")
        await asyncio.sleep(AGAIN_SECONDS)


async def _text(job: Job, spec: JoinSpec, where: str, asked: Asked) -> str:
    if not job.gathered and job.elastic is not None:
        return f"{len(job.joining)} of the {job.elastic.each} ranks of this host have joined"
    if job.links is not None:
        return f"connecting to {job.links.unsettled()}" if job.links.unsettled() else ""
    answer = await asked(spec)
    missing = set(range(answer.world_size)) - set(answer.ranks)
    if not missing:
        return ""
    are_here = "is here" if len(answer.ranks) == 1 else "are here"
    return (
        f"waiting for {_ranks(missing)} of {answer.world_size} ({numbers(answer.ranks)} {are_here}); "
        f"coordinator {where}"
    )


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {numbers(ranks)}"
