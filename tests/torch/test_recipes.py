# SPDX-License-Identifier: Apache-2.0
"""What docs/recipes.md and deploy/ tell people to type: that it is well-formed, names what exists, and runs."""

import importlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hosts import free_port
from tests.lab.cluster import BIN
from tests.torch.test_launch import loss_of, quiet
from ultima.cli import main
from ultima.launch.signals import TERMINATE_GRACE_S
from ultima.settings.config import DEFAULT_PORT

ROOT = Path(__file__).resolve().parents[2]
SBATCH = ROOT / "deploy/slurm/train.sbatch"
TRAINJOB = ROOT / "deploy/kubernetes/trainjob.yaml"
ELASTIC_SBATCH = ROOT / "deploy/slurm/elastic.sbatch"
STATEFUL = ROOT / "deploy/kubernetes/elastic.yaml"
POLICY = ROOT / "deploy/kubernetes/networkpolicy.yaml"
SECRET = {"ULTIMA_JOB_SECRET": "5e" * 32}
COMMAND = r"^ *- '(exec ultima run .*)'$"
RECIPES = ROOT / "docs/recipes.md"
pytestmark = pytest.mark.timeout(150)


def flags_of(verb: str) -> set[str]:
    import typer.main

    command = typer.main.get_command(main.build()).commands[verb]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


@pytest.mark.parametrize("path", [SBATCH, TRAINJOB, RECIPES, ELASTIC_SBATCH, STATEFUL], ids=lambda path: path.name)
def test_flags__of_ultima_run_exist(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    lines = re.findall(r"ultima run (.*?) -- ", text)
    assert lines, "it starts nothing"
    for line in lines:
        assert set(re.findall(r"--[a-z-]+", line)) <= flags_of("run"), line


def test_files__that_the_recipes_name_exist() -> None:
    named = set(re.findall(r"(?:examples|deploy)/[\w./-]+\w", RECIPES.read_text()))
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def yaml_of(path: Path) -> Any:
    """What a parser makes of a file, where there is one; else None, after a look for what one would choke on first."""
    text = path.read_text()
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        assert "\t" not in text
        body = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        for line in body:
            assert re.fullmatch(r"( {2})*(- .+|[A-Za-z][\w./-]*:( .+)?)", line), line
        return None
    return yaml.safe_load(text)


def test_trainjob__is_yaml_of_the_right_shape() -> None:
    job = yaml_of(TRAINJOB)
    if job is None:
        body = TRAINJOB.read_text().splitlines()
        for key in ("apiVersion: trainer.kubeflow.org/v1alpha1", "kind: TrainJob", "    name: torch-distributed"):
            assert key in body
        return
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    assert job["spec"]["trainer"]["command"][:2] == ["sh", "-c"]


def test_trainjob__its_network_policy_is_of_its_pods() -> None:
    yaml_of(POLICY)
    (name,) = re.findall(r"^  name: (\S+)$", TRAINJOB.read_text(), re.MULTILINE)
    assert re.findall(r"jobset-name: (\S+)$", POLICY.read_text(), re.MULTILINE) == [name, name]


@pytest.mark.parametrize("path", [SBATCH, TRAINJOB], ids=lambda path: path.name)
def test_examples__trust_no_network(path: Path) -> None:
    """They pass no --insecure; without a secret the hosts of a run are told what to do, before anything starts."""
    text = path.read_text()
    assert "--insecure" not in text and "ULTIMA_JOB_SECRET" in text
    (command,) = re.findall(COMMAND, TRAINJOB.read_text(), re.MULTILINE)
    told = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": "29500", "PATH": f"{BIN}:{os.environ['PATH']}"}  # fmt: skip
    done = subprocess.run(["sh", "-c", command], env=quiet(told), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "--job-secret is None; allowed: a file that `ultima ca secret FILE` has made" in line


@pytest.mark.check
def test_trainjob__its_command_trains() -> None:
    """With the variables of Kubeflow's runtime for one node."""
    (command,) = re.findall(COMMAND, TRAINJOB.read_text(), re.MULTILINE)
    told = {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(free_port()), "PATH": f"{BIN}:{os.environ['PATH']}", **SECRET}  # fmt: skip
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, env=quiet(told), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2" in done.stdout and loss_of(done.stdout) < 0.1


def test_sbatch__is_well_formed_and_trains(tmp_path: Path) -> None:
    """On one host, with stand-ins that do what srun and scontrol do there; a script of numpy, which starts at once."""
    assert subprocess.run(["bash", "-n", str(SBATCH)]).returncode == 0
    directives = re.findall(r"^#SBATCH (--[a-z-]+)=\S+$", SBATCH.read_text(), re.MULTILINE)
    assert {"--nodes", "--ntasks-per-node", "--time"} <= set(directives)
    for name, script in {
        "scontrol": '[ "$1 $2 $3" = "show hostnames n[1-1]" ] && echo 127.0.0.1',
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; SLURM_NODEID=0 exec "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    told = {"SLURM_JOB_NODELIST": "n[1-1]", "SLURM_NNODES": "1", "SLURM_JOB_ID": str(os.getpid()),
            "RANKS_PER_NODE": "2", "HOME": str(tmp_path), "PATH": f"{tmp_path}:{BIN}:{os.environ['PATH']}"}  # fmt: skip
    command = ["bash", str(SBATCH), "examples/eager_sgd.py", "--policy", "none", "--steps", "40", "--slow", "0"]
    done = subprocess.run(command, cwd=ROOT, env=quiet(told), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    error = re.search(r"^none: 40 steps in [0-9.]+ s, error ([0-9.]+)$", done.stdout, re.MULTILINE)
    assert error is not None and float(error[1]) < 0.1
    assert "2.00 of 2 ranks in a step on average" in done.stdout
    assert ".secret: the secret of a job" in done.stdout and not list(tmp_path.glob(".ultima-*")), "it cleans up"


def test_elastic_pods__meet_at_the_first_and_have_time_to_leave() -> None:
    """The name in --meet is what the headless service gives to the first pod, before that is ready, too."""
    yaml = pytest.importorskip("yaml")
    service, pods = yaml.safe_load_all(STATEFUL.read_text())
    assert (service["kind"], pods["kind"]) == ("Service", "StatefulSet")
    name, spec = service["metadata"]["name"], pods["spec"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert spec["serviceName"] == name and spec["podManagementPolicy"] == "Parallel", "the first waits for others"
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"] == labels
    (command,) = re.findall(COMMAND, STATEFUL.read_text(), re.MULTILINE)
    first = f"{pods['metadata']['name']}-0.{name}"
    assert f"--meet {first}:{DEFAULT_PORT} " in command and service["spec"]["ports"][0]["port"] == DEFAULT_PORT
    (least, most), pod = re.search(r"--elastic (\d+):(\d+) ", command).groups(), spec["template"]["spec"]  # type: ignore[union-attr]
    assert int(least) <= spec["replicas"] <= int(most)
    assert pod["terminationGracePeriodSeconds"] > 2 * TERMINATE_GRACE_S
    assert "--insecure" not in command and pod["containers"][0]["env"][0]["name"] == "ULTIMA_JOB_SECRET"


def test_elastic_sbatch__passes_the_signal_on_and_waits(tmp_path: Path) -> None:
    """With a stand-in for ultima that takes a moment to leave; without MEET it starts nothing."""
    assert subprocess.run(["bash", "-n", str(ELASTIC_SBATCH)]).returncode == 0
    assert "#SBATCH --signal=B:TERM@" in ELASTIC_SBATCH.read_text()
    stand_in = tmp_path / "ultima"
    leave = "kill $!; sleep 0.2; echo left; exit 3"
    program = f"trap '{leave}' TERM; echo \"$@\" $ULTIMA_JOB_SECRET_FILE; sleep 20 >/dev/null 2>&1 & wait $!"
    stand_in.write_text(f"#!/bin/bash\n{program}\n")
    stand_in.chmod(0o755)
    told = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", str(ELASTIC_SBATCH), "train.py", "--steps", "5"]
    alone = subprocess.run(command, env=told, capture_output=True, text=True, timeout=20)
    assert alone.returncode != 0 and "MEET: the daemon where hosts meet" in alone.stderr and not alone.stdout
    run = subprocess.Popen(command, env={**told, "MEET": "n1"}, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    expected = "run --elastic 2:8 --meet n1 --name train --max-restarts 3 -- python train.py --steps 5"
    assert run.stdout.readline() == f"{expected} {tmp_path}/.ultima-train.secret\n"
    run.terminate()
    said, _ = run.communicate(timeout=20)
    assert (said, run.returncode) == ("left\n", 3), "the status is that of the rank, once it has left"
