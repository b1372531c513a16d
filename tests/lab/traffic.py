# SPDX-License-Identifier: Apache-2.0
"""Traffic of others in a lab: a flow between two hosts that competes with what is tested.

UDP knows no congestion and takes what it is told to, in bursts or steadily; the kernel drops it at the far end, where
a socket is bound that nobody reads. TCP takes what its congestion control finds, and its far end counts what arrived.
Each flow is a process on its host: leaving the context ends it, and so does the end of the lab.
"""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import IO, Literal

from tests.lab.lab import Lab

SECONDS_MAX = 3600  # a flow whose owner was killed ends by itself
START_S = 10.0

# Of both ends: says "ready" or its port, works until its input closes, then says how many bytes. To a line it answers
# with the count so far.
_COMMON = """
import json, random, socket, struct, sys, threading, time
asked = json.loads(sys.argv[1])
stop = threading.Event()
count = [0]
def watch():
    for line in sys.stdin: say(count[0])
    stop.set()
def say(text): print(text, flush=True)
threading.Thread(target=watch, daemon=True).start()
end = time.monotonic() + asked["seconds"]
def going(): return not stop.is_set() and time.monotonic() < end
"""
_SINK = (
    _COMMON
    + """
if asked["kind"] == "udp":
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); ear.bind((asked["address"], 0))
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    say(ear.getsockname()[1]); stop.wait(asked["seconds"]); say(0)
else:
    ear = socket.create_server((asked["address"], 0)); ear.settimeout(asked["seconds"])
    say(ear.getsockname()[1])
    peer, _ = ear.accept(); peer.settimeout(0.2)
    room = bytearray(1 << 20)
    while going():
        try: got = peer.recv_into(room)
        except TimeoutError: continue
        if not got: break
        count[0] += got
    say(count[0])
"""
)
_SOURCE = (
    _COMMON
    + """
UDP_SEGMENT, TCP_CONGESTION, SO_MAX_PACING_RATE = 103, 13, 47
to = (asked["address"], asked["port"])
per_s = asked["mbit"] * 125e3
sent = 0
if asked["kind"] == "udp":
    mouth = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    mouth.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 1472)
    piece = bytes(1472 * (8 if per_s * 0.01 > 1472 * 8 else 1))
    rng = random.Random(asked["seed"])
    say("ready")
    while going():
        # Without a pause the flow is one endless burst.
        until = time.monotonic() + asked["on_ms"] / 1e3 if asked["off_ms"] else end
        begun, mine = time.monotonic(), 0
        while going() and time.monotonic() < until:
            ahead = begun + mine / per_s - time.monotonic()
            if ahead > 0: time.sleep(ahead)
            try: mine += mouth.sendto(piece, to)
            except (BlockingIOError, ConnectionRefusedError): pass
        sent += mine
        if asked["off_ms"]: stop.wait(rng.expovariate(1e3 / asked["off_ms"]))
else:
    mouth = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if asked["congestion"]: mouth.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, asked["congestion"].encode())
    if per_s: mouth.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(per_s))
    mouth.connect(to); mouth.settimeout(0.2)
    say("ready")
    block = bytes(1 << 18)
    while going():
        try: sent += mouth.send(block)
        except TimeoutError: pass
say(sent)
"""
)


class Flow:
    """A flow from host |source| to host |target| while the context lasts.

    |mbit|: UDP's rate, or the most that TCP may take (0: all that it gets; UDP needs a rate). |on_ms|, |off_ms|: a UDP
    flow sends for so long and then rests for a random time of that mean (exponential, drawn from |seed|); without a
    rest it never stops. |congestion|: of TCP, "" for the host's own. Raises ValueError naming the argument.
    """

    def __init__(self, lab: Lab, source: int, target: int, kind: Literal["udp", "tcp"] = "udp", mbit: float = 0,
                 on_ms: float = 0, off_ms: float = 0, congestion: str = "", seed: int = 1) -> None:  # fmt: skip
        if kind not in ("udp", "tcp"):
            raise ValueError(f"kind is {kind!r}, must be 'udp' or 'tcp'")
        if mbit < 0 or (kind == "udp" and not mbit):
            raise ValueError(f"mbit is {mbit}, must be above 0 (0 is for TCP alone: no limit)")
        if (on_ms > 0) != (off_ms > 0) or on_ms < 0:
            raise ValueError(f"on_ms and off_ms are {on_ms} and {off_ms}, must both be 0 or both be above it")
        if source == target:
            raise ValueError(f"source and target are both {source}, must be two hosts")
        self._lab, self._source, self._target = lab, source, target
        self._asked: dict[str, object] = {
            "kind": kind, "mbit": mbit, "on_ms": on_ms, "off_ms": off_ms, "congestion": congestion, "seed": seed,
            "seconds": SECONDS_MAX, "address": lab.host(target).address,
        }  # fmt: skip
        self._ends: list[subprocess.Popen[str]] = []
        self.sent_bytes = 0
        """UDP: what left the sender's socket. TCP: what it took. Known after the context."""
        self.received_bytes = 0
        """TCP: what the far end read; UDP: always 0, nobody reads. Known after the context."""

    def __enter__(self) -> Flow:
        sink = self._start(self._target, _SINK)
        self._asked["port"] = int(_line(sink.stdout))
        source = self._start(self._source, _SOURCE)
        if _line(source.stdout) != "ready":
            self._close()
            raise RuntimeError("the flow's sender did not start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def received(self) -> int:
        """Bytes that TCP's far end has read until now."""
        sink = self._ends[0]
        assert sink.stdin is not None
        sink.stdin.write("\n")
        sink.stdin.flush()
        return int(_line(sink.stdout))

    def _start(self, host: int, program: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        end = self._lab.host(host).popen([sys.executable, "-c", program, json.dumps(self._asked)], **pipes)
        self._ends.append(end)
        return end

    def _close(self) -> None:
        # The sender first: the far end reads what is still on its way.
        for end in reversed(self._ends):
            try:
                said, _ = end.communicate(timeout=START_S)
            except subprocess.TimeoutExpired:
                end.kill()
                said, _ = end.communicate()
            count = int(said.split()[-1]) if said.split() else 0
            if end is self._ends[0]:
                self.received_bytes = count
            else:
                self.sent_bytes = count
        self._ends.clear()


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()
