# SPDX-License-Identifier: Apache-2.0
"""The process group on the oldest and the newest torch that are tested: its tests again, in an environment that has
that torch first. `.ci/torches` lays both out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from ultima.torch.tested import NEWEST, OLDEST  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/torch/backend", "tests/torch/ft")


@pytest.mark.check
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("which", "version"), [("oldest", OLDEST), ("newest", NEWEST)])
def test_process_group__with_the_other_torch(which: str, version: str) -> None:
    folder = ROOT / "build/torch" / which
    if not folder.is_dir():
        pytest.skip(f"torch {version} is not in build/torch/{which}: run .ci/torches (it needs an index that has it)")
    environment = os.environ | {"PYTHONPATH": str(folder)}
    found = run(environment, "-c", "import torch; print(torch.__version__)")
    assert found.stdout.startswith(version), found.stdout + found.stderr
    tests = run(
        environment, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not long and not check", *TESTS
    )
    assert tests.returncode == 0, tests.stdout[-20000:] + tests.stderr[-2000:]
    assert int(re.findall(r"(\d+) passed", tests.stdout)[-1]) >= 200


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800
    )
