# SPDX-License-Identifier: Apache-2.0
"""A folder that another user has made ready for the daemon's sockets, to put his own in their place later."""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

import pytest

from tests.daemon.conftest import folder, house  # noqa: F401
from tests.daemon.helpers import House
from ultima.daemon.base.errors import StartupError
from ultima.daemon.process.runtime_dir import RuntimeDir

OTHER = 65534


def refused(path: Path, *words: str, group: str = "") -> None:
    with pytest.raises(StartupError) as caught:
        RuntimeDir(path, group)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(f"runtime_dir = '{path}': "), text
    for word in words:
        assert word in text
    assert not (path / "ultimad.lock").exists(), "nothing was put there"


def taken(path: Path, group: str = "") -> None:
    held = RuntimeDir(path, group)
    held.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of another user")
def test_folder__of_another_user(folder: Path) -> None:  # noqa: F811
    path = folder / "theirs"
    path.mkdir(mode=0o700)
    os.chown(path, OTHER, -1)
    refused(path, f"belongs to uid {OTHER}", "mode 0700", "allowed: a folder of uid 0")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_folder__that_others_may_write_to(folder: Path, mode: int) -> None:  # noqa: F811
    path = folder / "open"
    path.mkdir()
    path.chmod(mode)
    refused(path, f"mode {mode:04o}", "others may not write")


def test_folder__that_a_group_may_write_to(folder: Path) -> None:  # noqa: F811
    path = folder / "shared"
    path.mkdir()
    path.chmod(0o770)
    own = grp.getgrgid(path.stat().st_gid).gr_name
    refused(path, "mode 0770", "allow_group = ''")
    other = next(entry.gr_name for entry in grp.getgrall() if entry.gr_gid != path.stat().st_gid)
    refused(path, f"allow_group = {other!r}", group=other)
    taken(path, own)
    path.chmod(0o750)
    taken(path)


def test_folder__that_is_a_link(folder: Path) -> None:  # noqa: F811
    (folder / "real").mkdir(mode=0o700)
    (folder / "link").symlink_to(folder / "real")
    refused(folder / "link", "it is a link")
    taken(folder / "real")


def test_socket__swapped_for_a_link_before_it_is_handed_over(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who may write to the folder puts a link in the socket's place: what it points to stays whose it was."""
    precious, path = folder / "precious", folder / "x.sock"
    precious.write_text("")
    path.symlink_to(precious)
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "chown", lambda *args, **more: given.append((*args, more)))
    RuntimeDir.hand_over(path, grp.getgrall()[0].gr_name)
    RuntimeDir.hand_over(path, "")
    assert given == [(path, -1, grp.getgrall()[0].gr_gid, {"follow_symlinks": False})]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to a group")
async def test_sockets__are_the_groups_and_nobody_elses(house: House) -> None:  # noqa: F811
    group = next(entry for entry in grp.getgrall() if entry.gr_gid != os.getegid())
    daemon = await house.daemon(allow_group=group.gr_name)
    for path in (daemon.config.socket, daemon.config.attach_socket):
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (os.geteuid(), group.gr_gid)
        assert stat.S_IMODE(found.st_mode) == 0o660
