# SPDX-License-Identifier: Apache-2.0
"""The three kinds of job: which one a policy makes, what each of them has, and what it says of the rest."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import ultima
from ultima import CodedJob, InvalidArgument, Job, Options, PartialJob, Unsupported
from ultima.api.every_job import EveryJob
from ultima.coded import Plan
from ultima.testing import FakeDaemon

CODED = Options(**Plan(4, stragglers=1).options())
NEEDED = {"array": None, "indices": None, "values": None, "out": None, "tensors": (), "suffix": "", "options": None}
SHARED = {name for name in dir(EveryJob) if not name.startswith("_")} | {"beside", "collectives"}
CALLS = {name for name, _ in inspect.getmembers(Job, inspect.isfunction) if not name.startswith("_")} - SHARED


@contextmanager
def one_of(options: Options | None, world: int = 1) -> Iterator[Job]:
    """Rank 0 of a job, by the way that programs take."""
    with (
        FakeDaemon(world) as daemon,
        daemon.installed(),
        ultima.connect("kinds", 0, world, options=options, arena="1M") as job,
    ):
        yield job


@pytest.mark.parametrize(
    ("options", "world", "kind", "collectives"),
    [
        (None, 1, Job, {"allreduce", "barrier"}),
        (Options(policy="none"), 1, Job, {"allreduce", "barrier"}),
        (Options(policy="solo"), 1, PartialJob, {"allreduce"}),
        (Options(policy="probe"), 1, PartialJob, {"allreduce"}),
        (CODED, 4, CodedJob, set()),
    ],
)
def test_connect__the_policy_makes_the_kind(
    options: Options | None, world: int, kind: type[Job], collectives: set[str]
) -> None:
    with one_of(options, world) as job:
        assert type(job) is kind and isinstance(job, Job)
        assert repr(job).startswith(f"<ultima.{kind.__name__} 'kinds' rank 0 of {world}, open")
        assert job.collectives >= collectives and (kind is Job or job.collectives == collectives)


def test_connect__the_environment_names_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMA_POLICY", "solo")
    with one_of(None) as job:
        assert type(job) is PartialJob


@pytest.mark.parametrize(
    ("options", "world", "has"),
    [
        (None, 1, CALLS - {"partial", "coded"}),
        (Options(policy="solo"), 1, {"allreduce", "partial"}),
        (CODED, 4, {"coded"}),
    ],
)
def test_calls__those_that_a_kind_lacks_say_what_to_do(options: Options | None, world: int, has: set[str]) -> None:
    """Every public call: a new one on Job must be given to a kind or refused by it."""
    with one_of(options, world) as job:
        for name in sorted(CALLS - has):
            with pytest.raises((Unsupported, InvalidArgument)) as caught:
                getattr(job, name)(**_arguments(name))
            if isinstance(caught.value, Unsupported):
                assert caught.value.collective == name and "open a second job" in str(caught.value)
            else:
                assert name in ("partial", "coded") and caught.value.field == "policy"
        for name in has - {"allreduce_sparse", "sync_model"}:
            assert "Raises Unsupported:" not in (getattr(type(job), name).__doc__ or "")


def _arguments(name: str) -> dict[str, object]:
    parameters = inspect.signature(getattr(Job, name)).parameters
    return {key: NEEDED[key] for key in parameters if key in NEEDED and parameters[key].default is inspect._empty}
