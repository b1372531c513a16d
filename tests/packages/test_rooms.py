# SPDX-License-Identifier: Apache-2.0
"""The lists of rooms in docs/architecture.md are what the code says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "deploy/site/rooms.py"


def test_lists__are_what_the_code_says() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"run: python deploy/site/rooms.py {done.stderr}"


def test_lists__a_room_stands_above_those_that_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("site_rooms", TOOL)
    assert spec and spec.loader
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    monkeypatch.setattr(rooms, "ROOT", tmp_path)
    files = {
        "client/a/__init__.py": '"""Low. More."""',
        "client/b/__init__.py": '"""High: a door.\n\nMore."""',
        "client/b/c.py": "import json\nfrom ultima.a import d\nfrom ultima.b import e\ndef f():\n    import ultima.g.x",
        "client/g/__init__.py": '"""Middle."""\nfrom ultima.a.d import e',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert rooms.listing("client").splitlines() == [
        "* `client/b`: High: a door. It uses a, g.",
        "* `client/g`: Middle. It uses a.",
        "* `client/a`: Low. It uses no other room.",
    ]
    (tmp_path / "client/a/d.py").write_text("from ultima.g import x")
    with pytest.raises(AssertionError, match=r"a circle among \['ultima.a', 'ultima.b', 'ultima.g'\]"):
        rooms.listing("client")
