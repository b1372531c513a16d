# SPDX-License-Identifier: Apache-2.0
"""What ranks print and read: whole lines with the rank's number, files that lose nothing, and nobody who waits."""

import os
import pty
import select
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ultima.base.errors import InvalidArgument
from ultima.launch import output
from ultima.launch.output import Output, Wanted
from ultima.launch.signals import Signals


class Stage:
    """An Output whose own streams are here: what ranks write goes in by `print`, what comes out is `shown`."""

    def __init__(self, wanted: Wanted, ranks: int, own: tuple[int, int, int], reading: int) -> None:
        self.said: list[str] = []
        self.signals = Signals()
        self.signals.__enter__()
        self.output = Output(wanted, ranks > 1, self.signals, self.said.append, own)
        self._reading = reading
        self.ranks = {rank: self.output.attach(rank, 0) for rank in range(ranks)}

    def run(self, seconds: float = 0.0) -> None:
        """Lets the output do what there is to do, and then for |seconds| more."""
        limit = time.monotonic() + seconds
        while True:
            self.signals.next(self.output.patience(min(0.02, max(0.0, seconds))))
            self.output.show_unfinished()
            if time.monotonic() >= limit:
                return

    def print(self, rank: int, text: bytes, stream: int = 1) -> None:
        fd = self.ranks[rank][stream]
        assert fd is not None
        os.write(fd, text)
        self.run()

    def shown(self) -> bytes:
        found = b""
        while select.select([self._reading], [], [], 0)[0] and (piece := os.read(self._reading, 1 << 16)):
            found += piece
        return found

    def end(self, rank: int) -> None:
        for fd in self.ranks.pop(rank):
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        for rank in list(self.ranks):
            self.end(rank)
        self.output.close()
        self.signals.__exit__(None, None, None)


@contextmanager
def stage(wanted: Wanted, ranks: int = 2) -> Iterator[Stage]:
    """On pipes: standard output and error are one."""
    reading, writing = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    found = Stage(wanted, ranks, (null, writing, writing), reading)
    try:
        yield found
    finally:
        found.close()
        for fd in (reading, writing, null):
            os.close(fd)


def test_prefix__stands_before_each_line_and_lines_stay_whole() -> None:
    with stage(Wanted(prefix=True)) as here:
        here.print(0, b"one\ntw")
        here.print(1, b"a\nb\n")
        here.print(0, b"o\n")
        assert here.shown() == b"[rank 0] one\n[rank 1] a\n[rank 1] b\n[rank 0] two\n"


def test_prefix__a_bar_that_is_drawn_over_stays_in_its_line() -> None:
    with stage(Wanted(prefix=True)) as here:
        here.print(0, b"\r10 %\r20 %\r")
        here.run(2 * output.UNFINISHED_S)
        assert here.shown() == b"[rank 0] \r[rank 0] 10 %\r[rank 0] 20 %\r"
        here.print(0, b"windows\r\n")
        assert here.shown() == b"[rank 0] windows\r\n"


def test_question__is_shown_before_its_line_ends_and_others_begin_a_line_of_their_own() -> None:
    with stage(Wanted(prefix=True)) as here:
        here.print(0, b"(Pdb) ")
        assert here.shown() == b""
        here.run(2 * output.UNFINISHED_S)
        assert here.shown() == b"[rank 0] (Pdb) "
        here.print(0, b"42\n")
        assert here.shown() == b"42\n"
        here.print(0, b"(Pdb) ")
        here.run(2 * output.UNFINISHED_S)
        here.print(1, b"loss 1\n")
        here.print(0, b"43\n")
        assert here.shown() == b"[rank 0] (Pdb) \n[rank 1] loss 1\n[rank 0] 43\n"


def test_end__the_last_words_without_a_line_end_are_shown() -> None:
    with stage(Wanted(prefix=True)) as here:
        here.print(0, b"done")
        here.end(0)
        here.run()
        here.print(1, b"also")
        here.close()
        assert here.shown() == b"[rank 0] done\n[rank 1] also\n"
        here.signals.__enter__()  # for the second close


def test_plain__without_prefix_not_a_byte_is_added(tmp_path: Path) -> None:
    with stage(Wanted(folder=tmp_path)) as here:
        here.print(0, b"{1")
        here.print(1, b"{2}\n")
        here.print(0, b"}\nend")
        here.end(0)
        here.run()
        assert here.shown() == b"{2}\n{1}\nend"


def test_default__a_pipe_gets_no_prefix_and_is_not_touched() -> None:
    with stage(Wanted()) as here:
        assert here.ranks == {0: (None, None, None), 1: (None, None, None)}
        assert not here.output.carries(1)


@pytest.mark.parametrize(("ranks", "prefixed"), [(1, False), (2, True)])
def test_default__a_terminal_gets_prefixes_where_there_are_several_ranks(ranks: int, prefixed: bool) -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    null = os.open(os.devnull, os.O_RDONLY)
    here = Stage(Wanted(), ranks, (null, theirs, theirs), ours)
    try:
        assert here.output.carries(1) == here.output.carries(2) == prefixed
        if prefixed:
            here.print(0, b"half")
            here.run(2 * output.UNFINISHED_S)
            here.print(1, b"error\n", stream=2)
            assert here.shown() == b"[rank 0] half\n[rank 1] error\n", "one cursor for both streams"
    finally:
        here.close()
        for fd in (ours, theirs, null):
            os.close(fd)


def test_files__hold_each_stream_of_each_rank_and_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with stage(Wanted(folder=folder, prefix=True)) as here:
        here.print(0, b"out 0\n")
        here.print(1, b"\xff\0 bytes")
        here.print(1, b"error 1\n", stream=2)
        here.end(1)
        here.ranks[1] = here.output.attach(1, 1)
        here.print(1, b" more\n")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found == {
        "rank0.out.log": b"out 0\n",
        "rank0.err.log": b"",
        "rank1.out.log": b"\xff\0 bytes more\n",
        "rank1.err.log": b"error 1\n--- ultima run: rank 1 is started again, restart 1 ---\n",
    }


def test_files__a_full_disk_is_told_once_and_the_terminal_goes_on(tmp_path: Path) -> None:
    (tmp_path / "rank0.out.log").symlink_to("/dev/full")
    with stage(Wanted(folder=tmp_path)) as here:
        here.print(0, b"one\n")
        here.print(0, b"two\n")
        assert here.shown() == b"one\ntwo\n"
        (said,) = here.said
        assert said.startswith(f"--log-dir {tmp_path}: No space left on device; ")


def test_files__a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(InvalidArgument, match=r"--log-dir is '.*file.*'; allowed: a folder in which this user can"):
            Output(Wanted(folder=tmp_path / name), True, Signals(), print)


def test_slow_reader__nobody_waits_and_nothing_is_lost() -> None:
    """The pipe behind standard output is full: signals are still heard, and the rank is held back, not cut off."""
    lines = b"".join(b"line %06d\n" % number for number in range(30_000))
    with stage(Wanted(prefix=True), ranks=1) as here:
        fd = here.ranks[0][1]
        assert fd is not None
        os.set_blocking(fd, False)
        left, found, turns = lines, b"", 0
        while len(found) < len(lines) + 30_000 * len(b"[rank 0] ") and turns < 100_000:
            turns += 1
            try:
                left = left[os.write(fd, left) :] if left else left
            except BlockingIOError:
                for _ in range(5):
                    here.run()
                assert here.output._targets[1].full, "the rank waits since the terminal does"
                found += here.shown()
            here.run()
            assert len(here.output._targets[1]._waiting) < 4 * output.CHUNK, "what waits has a bound"
            if not left:
                found += here.shown()
    assert found == b"".join(b"[rank 0] " + line for line in lines.splitlines(keepends=True))


def test_reader_gone__is_no_error(tmp_path: Path) -> None:
    with stage(Wanted(folder=tmp_path), ranks=1) as here:
        os.close(here._reading)
        here._reading = os.open(os.devnull, os.O_RDONLY)
        for _ in range(3):
            here.print(0, b"x\n")
    assert (tmp_path / "rank0.out.log").read_bytes() == b"x\n" * 3


def test_stdin__a_terminal_gives_its_lines_to_one_rank() -> None:
    ours, theirs = pty.openpty()
    null = os.open(os.devnull, os.O_WRONLY)
    here = Stage(Wanted(stdin=1), 2, (theirs, null, null), ours)
    try:
        assert here.ranks[0][0] is None
        fd = here.ranks[1][0]
        assert fd is not None
        os.write(ours, b"step\n")
        here.run(0.05)
        assert os.read(fd, 100) == b"step\n"
        here.end(1)
        os.write(ours, b"too late\n")
        here.run(0.05)
        here.ranks[1] = here.output.attach(1, 1)
        fd = here.ranks[1][0]
        assert fd is not None
        os.write(ours, b"again\n\x04")  # and a Ctrl-D
        here.run(0.1)
        assert os.read(fd, 100) == b"again\n" and os.read(fd, 100) == b""
    finally:
        here.close()
        for fd in (ours, theirs, null):
            os.close(fd)
