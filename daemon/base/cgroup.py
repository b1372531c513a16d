# SPDX-License-Identifier: Apache-2.0
"""The control groups (version 2) that this process is in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

OWN_CGROUP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def files(name: str, own: Path | None = None, root: Path | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Each file of this name that holds for this process, from its own group upwards, with its words.

    A group above limits it as well. A level without the file, such as the root, is left out. `own` and `root` stand in
    for the kernel's files, for tests.
    """
    try:
        lines = (own or OWN_CGROUP).read_text().splitlines()
    except OSError:
        return
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if path is None:
        return  # cgroup v1 alone
    root = root or CGROUPS
    folder = root / path.lstrip("/")
    for at in (folder, *folder.parents):
        if not at.is_relative_to(root):
            return
        try:
            words = (at / name).read_text().split()
        except OSError:
            continue
        yield at / name, words
