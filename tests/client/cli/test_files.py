# SPDX-License-Identifier: Apache-2.0
"""Files that root may write where others can write too: nobody's link is followed, and nobody's file is taken over."""

import os
import tarfile
from pathlib import Path

import pytest

from ultima.base.errors import InvalidArgument
from ultima.cli import bugreport
from ultima.cli.files import write_all


def test_write_all__into_a_new_folder_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "record"
    write_all(folder, {"one": lambda: b"1", "two": lambda: b"2"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"one": b"1", "two": b"2"}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_write_all__nothing_that_is_there_is_touched(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "record"
    folder.mkdir(mode=0o700)
    for there in (lambda: (folder / "one").symlink_to(precious), lambda: (folder / "one").write_text("theirs")):
        there()
        with pytest.raises(InvalidArgument, match="a folder without one, which is never replaced"):
            write_all(folder, {"one": lambda: b"1"})
        (folder / "one").unlink()
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("mode", [0o770, 0o1777])
def test_write_all__not_where_others_may_write(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "record"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(InvalidArgument, match=rf"mode {mode:04o}\)'; allowed: a new folder, or one of this user"):
        write_all(folder, {"one": lambda: b"1"})
    assert not list(folder.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of another user")
def test_write_all__not_into_a_folder_of_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    folder.mkdir()
    os.chown(folder, 65533, 65533)
    with pytest.raises(InvalidArgument, match="of uid 65533"):
        write_all(folder, {"one": lambda: b"1"})


def test_bugreport__is_a_new_file_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bugreport, "gathered", lambda socket: ({"a.json": b"{}"}, {}))
    monkeypatch.setattr(bugreport, "socket_named", lambda socket: "")
    file = tmp_path / "report.tar.gz"
    before = os.umask(0)
    try:
        bugreport.bugreport(file)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        assert archive.getnames() == ["report/a.json"]
    link = tmp_path / "link.tar.gz"
    link.symlink_to(tmp_path / "precious")
    for there in (file, link):
        with pytest.raises(InvalidArgument, match="a file that is not there yet"):
            bugreport.bugreport(there)
    assert not (tmp_path / "precious").exists()
