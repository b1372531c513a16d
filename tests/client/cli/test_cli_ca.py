# SPDX-License-Identifier: Apache-2.0
"""`ultima ca`: the files that it makes are the files that daemons take, and nobody else reads them."""

import datetime
import os
import re
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from ultima.cli import main
from ultima.daemon.trust.files import from_files
from ultima.v1 import secrets

runner = CliRunner()


def ca(*words: object, expect: int = 0) -> str:
    result = runner.invoke(main.build(), ["ca", *map(str, words)])
    assert result.exit_code == expect, result.output
    return result.output


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_ca__makes_what_a_daemon_takes(tmp_path: Path) -> None:
    before = os.umask(0)  # what is private must not depend on it
    try:
        ca("init", "--cluster", "lab.example", "--dir", tmp_path)
        said = ca("issue", "n1", "--dir", tmp_path)
    finally:
        os.umask(before)
    assert "node 'n1' of 'lab.example', valid until" in said
    assert [mode_of(tmp_path / name) for name in ("ca.key", "n1.key")] == [0o600, 0o600]
    found = from_files(tmp_path / "n1.crt", tmp_path / "n1.key", tmp_path / "ca.crt", time.time())
    assert (found.cluster, found.node) == ("lab.example", "n1")
    assert 364 < (found.life.end - time.time()) / 86400 <= 365
    leaf = x509.load_pem_x509_certificate((tmp_path / "n1.crt").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://lab.example/ultima/node/n1"]
    assert names.get_values_for_type(x509.DNSName) == ["n1.lab.example.ultima"]


def test_issue__again_replaces_and_never_outlives_the_authority(tmp_path: Path) -> None:
    ca("init", "--days", "30", "--dir", tmp_path)
    assert "in place of" not in ca("issue", "n1", "--dir", tmp_path)
    first = (tmp_path / "n1.crt").read_bytes()
    assert ca("issue", "n1", "--dir", tmp_path).endswith(", in place of the older ones\n")
    again = x509.load_pem_x509_certificate((tmp_path / "n1.crt").read_bytes())
    assert (tmp_path / "n1.crt").read_bytes() != first and not list(tmp_path.glob("*.new"))
    assert again.not_valid_after_utc <= datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
    from_files(tmp_path / "n1.crt", tmp_path / "n1.key", tmp_path / "ca.crt", time.time())


def test_secret__is_new_each_time_and_private(tmp_path: Path) -> None:
    texts = set()
    for name in ("a", "b"):
        ca("secret", tmp_path / name)
        assert mode_of(tmp_path / name) == 0o600
        texts.add(secrets.read_file(tmp_path / name))
    assert len(texts) == 2


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("init", "--cluster", "UPPER"), 2, "--cluster is 'UPPER'; allowed: labels of small letters"),
        (("issue", "a.b"), 2, "NODE is 'a.b'; allowed: one label"),
        (("issue", "n1"), 1, r"ca.key: cannot be read: No such file or directory"),
        (("issue", "n1", "--days", "0"), 2, "--days"),
    ],
)
def test_wrong__is_one_sentence(tmp_path: Path, words: tuple[str, ...], status: int, sentence: str) -> None:
    assert sentence in ca(*words, "--dir", tmp_path, expect=status)
    assert list(tmp_path.iterdir()) == []


def test_wrong__authority_that_would_be_lost_others_could_read_or_of_another_place(tmp_path: Path) -> None:
    ca("init", "--dir", tmp_path)
    key = (tmp_path / "ca.key").read_bytes()
    assert "ca.key: already exists and would be overwritten" in ca("init", "--dir", tmp_path, expect=1)
    assert (tmp_path / "ca.key").read_bytes() == key
    (tmp_path / "ca.key").chmod(0o644)
    said = ca("issue", "n1", "--dir", tmp_path, expect=1)
    assert re.search(r"ca.key: has mode 0644, so that others can read or change it: make a new one", said)
    (tmp_path / "ca.key").chmod(0o600)
    (tmp_path / "other").mkdir()
    ca("init", "--dir", tmp_path / "other")
    (tmp_path / "ca.crt").write_bytes((tmp_path / "other/ca.crt").read_bytes())
    assert "ca.crt: does not belong to ca.key" in ca("issue", "n1", "--dir", tmp_path, expect=1)
    (tmp_path / "ca.crt").write_text("nonsense")
    assert "ca.crt: holds no certificate" in ca("issue", "n1", "--dir", tmp_path, expect=1)
