# SPDX-License-Identifier: Apache-2.0
"""A trainer needs little, an import loads little, and what is missing is told in one sentence with what brings it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.bare import Bare, closure
from tests.e2e.hosts import running
from ultima.v1 import installed

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REDUCE = """
import sys, numpy, ultima
with ultima.connect(rank=0, world_size=1, timeout=30) as job:
    data = numpy.arange(5, dtype=numpy.float32)
    print(job.allreduce(data, "sum", deadline="5s").complete, data.sum())
    print(job.barrier().complete)
loaded = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(*sorted(loaded - {"__main__", "ultima"}))
"""
LOADS = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
import MODULE
print(*sorted({name.partition(".")[0] for name in sys.modules} - before - sys.stdlib_module_names))
print(len([name for name in sys.modules if name.startswith("ultima")]))
"""
TORCH_LOADS = """
import sys, torch.distributed, numpy
before = set(sys.modules)
import ultima.torch
new = set(sys.modules) - before
print(*sorted({name.partition(".")[0] for name in new} - sys.stdlib_module_names - {"numpy", "torch"}))
print([name for name in new if name.startswith("torch.")])
print([name for name in new if name.startswith(("ultima.torch.coded", "ultima.torch.partial", "ultima.torch.sparse"))])
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """What `pip install ultimad` gives."""
    return Bare(tmp_path_factory.mktemp("core"), sorted(closure([])))


@pytest.fixture
def less(tmp_path: Path) -> Callable[..., Bare]:
    """The same without some of its modules."""

    def make(*modules: str) -> Bare:
        ret = Bare(tmp_path, sorted(closure([])))
        ret.without(*modules)
        return ret

    return make


def test_core__is_small() -> None:
    """numpy, cffi and its parser, gRPC and its messages, and the names of types: nothing else comes along."""
    needed = {"numpy", "cffi", "pycparser", "grpcio", "protobuf", "typing-extensions"}
    assert closure([]) - {installed.DISTRIBUTION} <= needed


def test_trainer__does_with_the_core(core: Bare) -> None:
    """A job with a real daemon, in an environment without shell command, daemon and torch."""
    with running(1) as (host,):
        done = core.run("-c", REDUCE, ULTIMA_SOCKET=str(host.socket))
    assert done.stdout.splitlines()[:2] == ["True 10.0", "True"], done.stderr
    allowed = {"numpy", "_cffi_backend", "grpc", "google", "typing_extensions"}
    loaded = {name for name in done.stdout.splitlines()[2].split() if not name.startswith(("_cython", "cython"))}
    assert loaded <= allowed and done.stderr == ""


def test_import__loads_nothing_else(core: Bare) -> None:
    """`import ultima` is in every script: what it costs grows with the modules that it loads, so it loads none."""
    done = core.run("-c", LOADS.replace("MODULE", "ultima"))
    assert done.stdout == "ultima\n1\n", done


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["-m", "ultima", "version"], 1, "ultima: the command `ultima` needs typer, which is not installed: CLI"),
        (["-m", "ultima.cli"], 1, "ultima: the command `ultima` needs typer, which is not installed: CLI"),
        (["-c", "from ultima.cli.entry import main; main()"], 1, "ultima: the command `ultima` needs typer, which is"),
        (["-m", "ultima.daemon.process.main"], 1, "ultimad: ultimad needs pydantic, which is not installed: DAEMON"),
        (["-c", "import ultima.torch"], 1, "ModuleNotFoundError: ultima.torch needs torch, which is not installed"),
    ],
)  # fmt: skip
def test_missing__is_one_sentence(core: Bare, arguments: list[str], status: int, sentence: str) -> None:
    done = core.run(*arguments)
    assert done.returncode == status and done.stdout == "", done
    last = done.stderr.splitlines()[-1]
    for extra in ("cli", "daemon", "torch"):
        sentence = sentence.replace(extra.upper(), f"pip install 'ultimad[{extra}]'")
    assert last.startswith(sentence)
    assert done.stderr == f"{last}\n" or "import ultima.torch" in arguments


@pytest.mark.parametrize(("module", "package"), [("grpc", "grpcio"), ("google", "protobuf"), ("numpy", "numpy")])
def test_connect__without_a_package_of_the_core(less: Callable[..., Bare], module: str, package: str) -> None:
    """As after `pip install --no-deps`."""
    done = less(module).run("-c", "import ultima; ultima.connect(rank=0, world_size=1)")
    last = done.stderr.splitlines()[-1]
    what = "ultima" if module == "numpy" else "ultima.connect"
    wanted = f"ModuleNotFoundError: {what} needs {package}, which is not installed: pip install ultimad"
    assert done.returncode == 1 and last == wanted


def test_command__without_the_daemon(tmp_path: Path) -> None:
    """`ultima run`, `demo` and `ca` say what they want; `version` wants nothing."""
    bare = Bare(tmp_path, sorted(closure([], ["cli"])))
    assert bare.run("-m", "ultima", "version").stdout.startswith(f"ultima {installed.version()}")
    there = closure([], ["cli"])  # of some releases typer needs pydantic, too
    *first, last = [name for name in installed.EXTRAS["daemon"].values() if name not in there]
    absent = ", ".join(first)
    for words, said in {
        (
            "run",
            "true",
        ): f"no daemon runs on this host, and a private one needs {absent} and {last}, which are not installed: ",
        ("demo",): f"`ultima demo` needs {absent}, {last} and torch, which are not installed: ",
        ("ca", "init", "--dir", str(tmp_path / "ca")): "this command needs cryptography, which is not installed: ",
    }.items():
        done = bare.run("-m", "ultima", *words)
        brings = f"pip install 'ultimad[{'demo' if words == ('demo',) else 'daemon'}]'"
        assert (done.returncode, done.stderr) == (1, f"ultima: {said}{brings}\n"), done


def test_missing__is_silent_about_what_no_extra_brings() -> None:
    """A module that is missing for another reason is a mistake of a program, whose trace must be seen."""
    for name in ("ultima.nowhere", "grpcio", "", None, "googles"):
        assert installed.missing(ModuleNotFoundError(name=name), "it") is None


def test_extras__are_those_of_the_project() -> None:
    """installed.py repeats what pyproject.toml says: an extra's own packages, and the extras that it contains."""
    assert PROJECT["name"] == installed.DISTRIBUTION
    told = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    for extra, lines in told.items():
        needs = [Requirement(line) for line in lines]
        own = {need.name for need in needs if need.name != PROJECT["name"]}
        assert own == set(installed.EXTRAS.get(extra, {}).values()), extra
        contained = {name for need in needs if need.name == PROJECT["name"] for name in need.extras}
        brought = {name for each in contained for name in installed.CONTAINS.get(each, (each,))}
        if extra != "web":  # of which only the page itself is asked for, by a daemon that runs
            assert {*installed.CONTAINS.get(extra, (extra,))} == brought | ({extra} if own or not extra else set()), (
                extra
            )


@pytest.mark.check
def test_torch__nothing_heavy_comes_with_our_half(tmp_path: Path) -> None:
    """`import ultima.torch` adds our own modules to what torch and numpy load, and the extension. gRPC and protobuf
    take a quarter of a second and come with the first connection; FSDP takes half of one, with sympy in it. Sparse,
    partial and coded training come when they are asked for.
    """
    done = Bare(tmp_path, sorted(closure(["torch"]))).run("-c", TORCH_LOADS)
    assert done.stdout == "_cffi_backend ultima\n[]\n[]\n", done


def test_module__runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ultima", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"ultima {installed.version()}\n"
