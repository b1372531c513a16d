# SPDX-License-Identifier: Apache-2.0
"""The sentence of the status page: each rule, and which one goes before which."""

from collections import Counter
from dataclasses import replace

import pytest

from ultima.daemon.web.why import BUSY, MOSTLY, SILENT_S, SLOWER, HostNow, JobNow, why

FINE = JobNow("fine", ops=100, p50_ms=2.0, usual_ms=2.0)
BLOCKED = JobNow("blocked", ailments=["UDP port 29521 is blocked."])
ALONE = JobNow("alone", gone=["host 1 (10.0.0.2:29520)"], ops=10)
LOSSY = JobNow("lossy", ops=40, not_whole=30, blamed=Counter({("10.0.0.3", "path"): 29, ("10.0.0.4", "sender"): 1}))
SLOW = JobNow("slow", ops=20, p50_ms=30.0, usual_ms=10.0)
LATE = JobNow("late", ops=20, p50_ms=30.0, usual_ms=10.0, blamed=Counter({("10.0.0.5", "sender"): 16}))
WAITED = JobNow("waited", ops=20, p50_ms=10.0, usual_ms=10.0, blamed=Counter({("10.0.0.5", "sender"): 16}))
STRAGGLED = JobNow("straggled", ops=20, p50_ms=210.0, usual_ms=210.0, late="10.0.0.6: it calls an op late")
FORMING = JobNow("forming", forming=True, waiting_for="waiting for rank 1 of 2")
QUIET = JobNow("quiet", silent_s=40.0)

ROWS = [
    (HostNow(), "ok", "No job runs"),
    (HostNow([FINE]), "ok", "Nothing is slow: 10 ops/s of job fine, 2 ms each."),
    (HostNow([FINE, FINE, FINE, FINE]), "ok", "and 2 more jobs"),
    (HostNow([FINE, QUIET]), "ok", "Nothing is slow: 10 ops/s of job fine, 2 ms each."),
    (HostNow([FINE], busiest=0.97), "warning", "97% of a core"),
    (HostNow([QUIET]), "warning", "for 40 s, and none is open"),
    (HostNow([QUIET], open_s=39.0), "warning", "has been open for 39 s"),
    (HostNow([QUIET, WAITED]), "warning", "Job waited waits for 10.0.0.5 in 80% of its ops: it calls its ops late."),
    (HostNow([FINE, STRAGGLED]), "warning", "Job straggled waits for 10.0.0.6: it calls an op late."),
    (HostNow([STRAGGLED, WAITED]), "warning", "Job waited waits for 10.0.0.5 in 80% of its ops"),
    (HostNow([STRAGGLED, SLOW]), "warning", "Ops of job slow take 30 ms"),
    (HostNow([FORMING, WAITED]), "warning", "Job forming forms: waiting for rank 1 of 2."),
    (HostNow([FORMING, SLOW]), "warning", "Ops of job slow take 30 ms, 3.0 times as long as before; no host was found"),
    (HostNow([SLOW], busiest=0.95), "warning", "3.0 times as long as before; an engine thread takes 95% of a core."),
    (HostNow([replace(SLOW, late="h: it is late")]), "warning", "as long as before; it waits for h: it is late."),
    (HostNow([LATE]), "warning", "for 80% of them 10.0.0.5 is to blame: it calls its ops late."),
    (HostNow([LATE], drops=7), "warning", "dropped 7 datagrams"),
    (HostNow([replace(LOSSY, not_whole=20)]), "warning", "20 of the last 40 ops"),
    (
        HostNow([LOSSY, LATE], drops=7),
        "error",
        "30 of the last 40 ops were not complete; most often 10.0.0.3 is to blame",
    ),
    (HostNow([LOSSY, ALONE]), "error", "goes on without host 1 (10.0.0.2:29520): not connected"),
    (HostNow([ALONE, BLOCKED]), "error", "Job blocked: UDP port 29521 is blocked"),
    (
        HostNow([BLOCKED], well=False, reason="an op is 9 s past its deadline"),
        "error",
        "The engine hangs: an op is 9 s",
    ),
]


@pytest.mark.parametrize(("now", "level", "part"), ROWS, ids=range(len(ROWS)))
def test_why__names_the_gravest(now: HostNow, level: str, part: str) -> None:
    found = why(now)
    assert found.level == level and part in found.text
    assert found.text.endswith(".") and "\n" not in found.text


def test_why__bounds_are_where_they_are_said_to_be() -> None:
    just = JobNow("a", ops=100, p50_ms=2.0 * SLOWER, usual_ms=2.0)
    assert why(HostNow([just])).level == "ok"
    assert why(HostNow([JobNow("a", ops=100, p50_ms=2.0 * SLOWER + 0.01, usual_ms=2.0)])).level == "warning"
    assert why(HostNow([JobNow("a", ops=100, p50_ms=50.0)])).level == "ok", "nothing is known to be usual"
    few = Counter({("h", "sender"): int(100 * MOSTLY) - 1})
    assert why(HostNow([JobNow("a", ops=100, blamed=few)])).level == "ok"
    assert why(HostNow([JobNow("a", ops=100, blamed=few + Counter({("h", "sender"): 1}))])).level == "warning"
    assert why(HostNow([FINE], busiest=BUSY - 0.01)).level == "ok"
    assert why(HostNow([JobNow("a", silent_s=SILENT_S - 0.1)])).level == "ok"


def test_why__many_hosts_are_counted() -> None:
    gone = [f"host {index}" for index in range(1, 9)]
    assert "host 1, host 2, host 3 and 5 more" in why(HostNow([JobNow("a", gone=gone)])).text
