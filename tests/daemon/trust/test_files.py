# SPDX-License-Identifier: Apache-2.0
"""Wrong certificates, keys and secrets: each is one sentence that says which file, what is wrong and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.daemon.trust.papers import Authority, Papers, papers
from ultima.daemon.base.errors import StartupError
from ultima.daemon.trust.files import from_files
from ultima.daemon.trust.identity import Identity
from ultima.v1 import certificates, secrets


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def read(files: Papers, now: float | None = None) -> Identity:
    return from_files(files.certificate, files.key, files.authority, time.time() if now is None else now)


def _encrypted(files: Papers, authority: Authority) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"x")
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))


def _foreign(files: Papers, authority: Authority) -> None:
    files.write(Authority().issue("n1"), (authority,))


def _nameless(files: Papers, authority: Authority) -> None:
    """The authority's own certificate, in place of a node's."""
    files.write((authority.pem, certificates.key_pem(authority.key)), (authority,))


Spoil = Callable[[Papers, Authority], object]
CASES: list[tuple[str, Spoil, str, str]] = [
    ("no certificate", lambda f, a: f.certificate.unlink(), "certificate", "cannot be read: No such file or directory"),
    ("a folder", lambda f, a: (f.authority.unlink(), f.authority.mkdir()), "authority", "cannot be read: Is a dir"),
    ("nonsense", lambda f, a: f.certificate.write_text("hello"), "certificate", "holds no readable cert"),
    ("half a file", lambda f, a: f.certificate.write_bytes(f.certificate.read_bytes()[:200]), "certificate", "holds"),
    ("empty authority", lambda f, a: f.authority.write_text(""), "authority", "holds no readable certificate"),
    (
        "no key",
        lambda f, a: f.key.write_bytes(f.certificate.read_bytes()),
        "key",
        "holds no readable priv",
    ),
    ("a password", _encrypted, "key", "has a password, which cannot be typed in: allowed: a key without one"),
    ("another key", lambda f, a: f.key.write_bytes(a.issue("n1")[1]), "key", "is not the key of tls.certificate"),
    (
        "all may read",
        lambda f, a: f.key.chmod(0o644),
        "key",
        "has mode 0644, so that others can read or change it: mak",
    ),
    ("all may write", lambda f, a: f.key.chmod(0o602), "key", "has mode 0602, so that others can read or change it"),
    ("another user's", lambda f, a: os.chown(f.key, 1234, -1), "key", "belongs to uid 1234: allowed: uid 0, which"),
    ("foreign", _foreign, "certificate", "was not issued by an authority in tls.authority = "),
    ("nameless", _nameless, "certificate", "names no node: it needs the subject alternative names URI:spiffe://"),
    ("other names", lambda f, a: f.write(a.issue("N_1"), (a,)), "certificate", "names no node"),
]


@pytest.mark.parametrize(("spoil", "option", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_files__what_is_wrong_is_said(
    tmp_path: Path, authority: Authority, spoil: Spoil, option: str, words: str
) -> None:
    files = papers(tmp_path, "n1", authority)
    assert read(files).node == "n1"
    spoil(files, authority)
    with pytest.raises(StartupError) as error:
        read(files)
    text = str(error.value)
    assert text.startswith(f"tls.{option} = '{getattr(files, option)}': ") and words in text and "\n" not in text


def test_files__clocks_and_ages(tmp_path: Path, authority: Authority) -> None:
    """An expired certificate and a clock that is wrong look alike; the sentence names both times."""
    files = papers(tmp_path, "n1", authority, days=(-1, 10))
    day = 86400.0
    for shift, words in ((11, "expired on "), (-2, "is valid from "), (101, "expired on ")):
        with pytest.raises(StartupError, match=words) as error:
            read(files, time.time() + shift * day)
        assert "this host's clock says " in str(error.value) and "ultima ca issue n1" in str(error.value)
    old = Authority(days=(-10, -1))
    with pytest.raises(StartupError, match=r"tls\.authority = .*expired on .*make a new one: ultima ca init"):
        read(Papers(tmp_path / "old").write(old.issue("n1"), (old,)))


def test_files__intermediates_bundles_and_group_readable_keys_are_fine(tmp_path: Path, authority: Authority) -> None:
    """As cert-manager and packages of distributions leave them."""
    files = papers(tmp_path, "n1", authority, Authority(days=(-10, -1)), Authority())
    files.key.chmod(0o640)
    found = read(files)
    assert found.authorities.count(b"BEGIN CERTIFICATE") == 3 and found.authority_life.end > time.time()
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    files.key.write_bytes(pem)
    with pytest.raises(StartupError, match=r"is not the key of tls\.certificate"):
        read(files)


def test_library__is_loaded_only_where_it_is_needed() -> None:
    """It takes a tenth of a second, and daemons of one host, or insecure ones, have no use for it."""
    code = "import sys, ultima, ultima.cli.main, ultima.daemon.process.server; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("text", ["", "5e" * 31, "zz" * 32, "5e" * 33, "\0" * 64])
def test_secret__of_another_form_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ValueError, match="holds no secret: allowed: 64 hexadecimal digits") as error:
        secrets.read_file(file)
    assert not text or text not in str(error.value)


def test_secret__that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(secrets.new_text() + "\n")
    file.chmod(0o604)
    with pytest.raises(ValueError, match="has mode 0604, so that others can read or change it"):
        secrets.read_file(file)
    file.chmod(0o600)
    assert len(secrets.read_file(file)) == secrets.SECRET_BYTES
