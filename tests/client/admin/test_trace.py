# SPDX-License-Identifier: Apache-2.0
"""The Chrome trace against the rules of its format, as Perfetto reads it.

Perfetto's own trace processor is a binary that its Python package downloads when it runs, so it is not asked here. The
rules are those of the Trace Event Format that its importer goes by: what each kind of event must have, numbers that are
exact, and slices of one track that are nested or apart (others it drops, and counts as an error).
"""

import json
import math
import random
from collections import Counter
from typing import Any

import pytest

from tests.seeds import seeds
from ultima.admin.flight import chrome_trace
from ultima.v1 import records_pb2, types_pb2

EXACT = 2**53  # above which a double is no longer every whole number


def broken(trace: Any) -> list[str]:
    """Every rule that the trace breaks, in words."""
    found: list[str] = []
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["it is no object with a list of traceEvents"]
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        found.append("displayTimeUnit")
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    named: Counter[tuple[str, int, int]] = Counter()
    for at, event in enumerate(trace["traceEvents"]):
        if not all(type(event.get(key)) is int and 0 <= event[key] < 2**31 for key in ("pid", "tid")):
            found.append(f"{at}: pid and tid are no small numbers")
        elif not isinstance(event.get("name"), str) or not isinstance(event.get("args", {}), dict):
            found.append(f"{at}: name or args")
        elif event.get("ph") == "M":
            if event["name"] not in ("process_name", "thread_name") or not isinstance(event["args"].get("name"), str):
                found.append(f"{at}: metadata")
            named[event["name"], event["pid"], event["tid"] if event["name"] == "thread_name" else 0] += 1
        elif event.get("ph") == "X":
            times = event.get("ts"), event.get("dur")
            if all(type(each) is int and 0 <= each < EXACT for each in times):
                tracks.setdefault((event["pid"], event["tid"]), []).append((times[0], times[0] + times[1]))
            else:
                found.append(f"{at}: ts or dur is not exact")
        else:
            found.append(f"{at}: ph {event.get('ph')!r}")
    found += [f"{name} is named {count} times" for name, count in named.items() if count > 1]
    for track, slices in tracks.items():
        if ("thread_name", *track) not in named or ("process_name", track[0], 0) not in named:
            found.append(f"{track}: has no name")
        open_ends: list[int] = []
        for began, ended in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_ends and open_ends[-1] <= began:
                open_ends.pop()
            if open_ends and ended > open_ends[-1]:
                found.append(f"{track}: slices overlap and are not nested, at {began}")
            open_ends.append(ended)
    return found


def life(rng: random.Random, host: int, hosts: int = 3) -> records_pb2.JobLife:
    """Ops of two lanes that overlap as they will, with receipts of some."""
    ret = records_pb2.JobLife(
        job='"job"', world_size=hosts, host_index=host, lanes=2, clock_offset_ns=rng.randrange(999)
    )
    ret.hosts.extend(types_pb2.Host(index=index, address=f"10.0.0.{index}", ranks=[index]) for index in range(hosts))
    began = 1_790_000_000 * 10**9
    for op_seq in range(60):
        began += rng.choice([0, 1, 999, 1000, 10**6, rng.randrange(10**7)])
        elapsed = rng.choice([1, 1000, 10**6, rng.randrange(3 * 10**7)])
        ret.ops.add(
            op_seq=op_seq, ended_ns=began + elapsed, elapsed_ns=elapsed, status=rng.choice([1, 2]), culprit=0xFFFF
        )
        if rng.random() < 0.6:
            receipt = ret.receipts.add(op_seq=op_seq, self=host, elapsed_ns=elapsed)
            for _ in range(hosts):
                first = rng.randrange(elapsed // 1000 + 1)
                last = rng.randrange(first, elapsed // 1000 + 1)
                receipt.peer.add(first_us=first, last_us=last, missing=[0, rng.choice([0, 7])])
    return ret


@pytest.mark.parametrize("seed", seeds(8))
def test_trace__breaks_no_rule_of_its_format(seed: int) -> None:
    rng = random.Random(seed)
    trace = chrome_trace([life(rng, host) for host in range(3)])
    assert broken(json.loads(json.dumps(trace, allow_nan=False))) == []
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len([event for event in slices if event["tid"] < 10_000]) == 3 * 60 and len(slices) > 220


GOOD = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "host"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "lane"}},
    {"ph": "X", "name": "op", "pid": 0, "tid": 1, "ts": 5, "dur": 5, "args": {}},
]
SLICE = {"ph": "X", "name": "op", "pid": 0, "tid": 1, "ts": 5, "dur": 5}


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([SLICE | {"ts": 8}], "overlap"),
        ([SLICE | {"ts": 0, "dur": 7}], "overlap"),
        ([SLICE | {"ts": 5.5}], "exact"),
        ([SLICE | {"ts": math.nan}], "exact"),
        ([SLICE | {"dur": -1}], "exact"),
        ([SLICE | {"tid": 2}], "no name"),
        ([SLICE | {"pid": "0"}], "small numbers"),
        ([SLICE | {"ph": "Q"}], "ph 'Q'"),
        ([SLICE | {"name": 3}], "name or args"),
        ([GOOD[1]], "2 times"),
        ([SLICE | {"ts": 10}, SLICE | {"ts": 6, "dur": 1}, SLICE], ""),
    ],
)
def test_rules__see_what_is_planted(events: list[dict[str, Any]], rule: str) -> None:
    found = broken({"traceEvents": [*GOOD, *events]})
    assert (len(found) == 1 and rule in found[0]) if rule else found == []
