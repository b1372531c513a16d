# SPDX-License-Identifier: Apache-2.0
"""ULTIMA_MODE: the mode of calls that name none, as far as they may lose a part."""

from typing import Any

import numpy as np
import pytest

import ultima
from ultima.api import requests
from ultima.base.words import MODES
from ultima.testing import FakeDaemon


@pytest.mark.parametrize(
    ("environment", "call", "mode"),
    [
        ("", {}, "bounded"),
        ("best_effort", {}, "best_effort"),
        ("reliable", {}, "reliable"),
        ("best_effort", {"mode": "bounded"}, "bounded"),
        ("best_effort", {"op": "min"}, "reliable"),
        ("best_effort", {"agree": True}, "bounded"),
        ("best_effort", {"array": np.ones(4, np.int64), "op": "sum"}, "bounded"),
    ],
)
def test_mode__of_the_environment_is_for_what_may_lose_a_part(
    monkeypatch: pytest.MonkeyPatch, environment: str, call: dict[str, object], mode: str
) -> None:
    monkeypatch.setenv("ULTIMA_MODE", environment)
    said: dict[str, Any] = {"array": np.ones(4, np.float32), "op": "avg", "mode": None, "agree": False, **call}
    with FakeDaemon() as daemon, daemon.installed(), ultima.connect() as job:
        made = requests.allreduce_op(
            job._connection, 0, said["array"], said["op"], deadline=None, mode=said["mode"], agree=said["agree"]
        )
    assert made.mode == MODES[mode]
