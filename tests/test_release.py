# SPDX-License-Identifier: Apache-2.0
"""A release is what was signed, and nothing else: with a key made for the test."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from deploy import release

pytestmark = pytest.mark.check


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def signers_of(key: Path) -> Path:
    path = key.with_suffix(".signers")
    path.write_text(f"{release.SIGNER} {key.with_suffix('.pub').read_text()}")
    return path


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Once: the tool takes its time."""
    return release.bill(tmp_path_factory.mktemp("bill"))


@pytest.fixture
def dist(tmp_path: Path, key: Path, bill: Path) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "ultima-0.1.0.tar.gz").write_bytes(b"an archive")
    (folder / bill.name).write_bytes(bill.read_bytes())
    release.sign(folder, key)
    return folder


def test_bill__names_each_dependency_of_the_lock_with_its_hashes(dist: Path) -> None:
    (path,) = dist.glob("*.cdx.json")
    told = json.loads(path.read_text())
    assert told["bomFormat"] == "CycloneDX" and told["metadata"]["component"]["name"] == "ultimad"
    found = {
        f"{part['name']}=={part['version']}": {
            hash["content"] for reference in part["externalReferences"] for hash in reference.get("hashes", ())
        }
        for part in told["components"]
    }
    text = release.LOCK.read_text().replace("\\\n", " ")
    locked = {
        line.split()[0]: set(re.findall(r"sha256:([0-9a-f]{64})", line))
        for line in text.splitlines()
        if line and not line.startswith("#")
    }
    assert found == locked and len(locked) >= 12


def test_verify__takes_what_was_signed(dist: Path, key: Path) -> None:
    release.verify(dist, signers_of(key))


def test_verify__refuses_what_was_changed_added_or_removed(dist: Path, key: Path) -> None:
    signers, archive = signers_of(key), dist / "ultima-0.1.0.tar.gz"
    archive.write_bytes(b"another archive")
    with pytest.raises(release.Refused, match=r"differs from what was signed: ultima-0\.1\.0\.tar\.gz"):
        release.verify(dist, signers)
    archive.write_bytes(b"an archive")
    (dist / "more.whl").write_bytes(b"")
    with pytest.raises(release.Refused, match=r"more\.whl"):
        release.verify(dist, signers)
    (dist / "more.whl").unlink()
    archive.unlink()
    with pytest.raises(release.Refused, match=r"ultima-0\.1\.0\.tar\.gz"):
        release.verify(dist, signers)
    (dist / release.SUMS).write_text(release.sums_of(dist))  # the sums are right again, but nobody has signed them
    with pytest.raises(release.Refused, match="ssh-keygen"):
        release.verify(dist, signers)
    (dist / f"{release.SUMS}.sig").unlink()
    with pytest.raises(release.Refused, match=r"SHA256SUMS\.sig: is missing"):
        release.verify(dist, signers)


def test_verify__refuses_names_like_its_own_and_what_is_no_file(dist: Path, key: Path) -> None:
    signers = signers_of(key)
    wheel = dist / "SHA256SUMS-1.0-py3-none-any.whl"  # pip would install it
    wheel.write_bytes(b"")
    with pytest.raises(release.Refused, match=r"differs from what was signed: SHA256SUMS-1\.0"):
        release.verify(dist, signers)
    wheel.unlink()
    (dist / "more").mkdir()
    with pytest.raises(release.Refused, match="more: is a folder, a link"):
        release.verify(dist, signers)
    (dist / "more").rmdir()
    for target in ("nowhere", "ultima-0.1.0.tar.gz"):
        (dist / "link").symlink_to(target)
        with pytest.raises(release.Refused, match="link: is a folder, a link"):
            release.verify(dist, signers)
        (dist / "link").unlink()
    release.verify(dist, signers)


def test_verify__refuses_another_key_and_a_signature_for_something_else(dist: Path, key: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    with pytest.raises(release.Refused, match="ssh-keygen"):
        release.verify(dist, signers_of(other))
    (dist / f"{release.SUMS}.sig").unlink()
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "git", dist / release.SUMS], check=True)
    with pytest.raises(release.Refused, match="ssh-keygen"):
        release.verify(dist, signers_of(key))


def test_make__only_what_is_committed_into_an_empty_folder(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "run", lambda *command, **rest: b" M daemon/x.py\n" if "status" in command else b"1")
    with pytest.raises(release.Refused, match=r"1 files are not committed, the first is daemon/x\.py"):
        release.check_tree()
    monkeypatch.setattr(release, "check_tree", lambda: "1")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/old.whl").write_bytes(b"")
    monkeypatch.setattr("sys.argv", ["release.py", "make", "--key", str(key), "--dist", str(tmp_path / "full")])
    assert release.main() == 1 and "is not empty" in capsys.readouterr().err
