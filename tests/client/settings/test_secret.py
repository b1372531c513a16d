# SPDX-License-Identifier: Apache-2.0
"""The secret of a job: where trainers and `ultima run` find it, and that nobody is shown it."""

import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ultima.base.errors import InvalidArgument
from ultima.cli import main
from ultima.settings.config import job_secret, resolve

TEXT = "5e" * 32


def file_in(folder: Path, text: str = TEXT, mode: int = 0o600) -> str:
    file = folder / "job.secret"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_secret__from_a_file_or_the_environment(tmp_path: Path) -> None:
    assert job_secret({}) == job_secret({"ULTIMA_JOB_SECRET": "", "ULTIMA_JOB_SECRET_FILE": ""}) == b""
    assert job_secret({"ULTIMA_JOB_SECRET": f" {TEXT.upper()}\n"}) == bytes.fromhex(TEXT)
    assert job_secret({"ULTIMA_JOB_SECRET_FILE": file_in(tmp_path)}) == bytes.fromhex(TEXT)
    settings = resolve({"ULTIMA_JOB_SECRET": TEXT})
    assert settings.secret == bytes.fromhex(TEXT)
    assert TEXT not in repr(settings) and "^^" not in repr(settings), "a log may show settings"


@pytest.mark.parametrize("text", ["5e", "zz" * 32, f"{TEXT} {TEXT}"])
def test_secret__of_another_form_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    for environment in ({"ULTIMA_JOB_SECRET": text}, {"ULTIMA_JOB_SECRET_FILE": file_in(tmp_path, text)}):
        (name,) = environment
        with pytest.raises(InvalidArgument, match=f"^{name} is .*64 hexadecimal digits") as error:
            job_secret(environment)
        assert text not in str(error.value) and not error.value.__cause__


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"ULTIMA_JOB_SECRET_FILE": "/nonexistent"}, "cannot be read: No such file or directory"),
        (
            {"ULTIMA_JOB_SECRET_FILE": "/nonexistent", "ULTIMA_JOB_SECRET": TEXT},
            "allowed: only one of it and ULTIMA_JOB",
        ),
    ],
)
def test_secret__that_is_not_there_or_there_twice(environment: Mapping[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match="ULTIMA_JOB_SECRET_FILE is '/nonexistent'; allowed: ") as error:
        job_secret(environment)
    assert words in str(error.value) and TEXT not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ((), {}, "--job-secret is None; allowed: a file that `ultima ca secret FILE` has made"),
        (
            ("--insecure",),
            {"ULTIMA_JOB_SECRET": TEXT},
            "--insecure is 'given'; allowed: not together with a job secret",
        ),
        (("--job-secret", "/nonexistent"), {}, "ULTIMA_JOB_SECRET_FILE is '/nonexistent'; allowed: "),
    ],
)
def test_run__says_how_the_hosts_are_to_know_each_other(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], environment: Mapping[str, str], words: str
) -> None:
    """In one sentence, before a daemon or a rank was started."""
    monkeypatch.setattr("ultima.launch.launcher.DEFAULT_SOCKET", "/nonexistent/ultimad.sock")
    for name in ("ULTIMA_SOCKET", "ULTIMA_JOB_SECRET", "ULTIMA_JOB_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    command = ["run", "--nnodes", "2", "--master", "127.0.0.1:29500", *flags, "--", "false"]
    result = CliRunner().invoke(main.build(), command)
    assert result.exit_code == 2 and words in result.output and result.output.count("\n") == 1, result.output
