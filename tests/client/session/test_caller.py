# SPDX-License-Identifier: Apache-2.0
"""The token that proves to the daemon who calls, and every way not to get one."""

from pathlib import Path

import pytest

import ultima
from tests.client.attach_server import AttachServer, Say, refuse, send, token
from ultima.session.caller import METADATA_KEY, proof


def test_proof__asks_the_socket_beside(tmp_path: Path) -> None:
    with AttachServer(tmp_path, token("ef" * 16)) as server:
        assert proof(server.socket, 20) == ((METADATA_KEY, "ef" * 16),)
        assert server.hellos == [{"v": 4, "who": True}]


WRONG: list[tuple[Say | None, type[Exception], str]] = [
    (refuse("PERMISSION_DENIED", "uid 7 may not"), ultima.UltimaError, "does not serve this user: uid 7 may not"),
    (lambda line: send(line, b'{"v": 1, "token": "x"}'), ultima.ProtocolError, "different releases"),
    (lambda line: send(line, b'{"v": 4, "token": 5}'), ultima.ProtocolError, "different releases"),
    (lambda line: send(line, b"\xff"), ultima.ProtocolError, "different releases"),
    (lambda line: line.close(), ultima.ProtocolError, "different releases"),
    (None, ultima.DaemonUnavailable, "no answer within 0.2 s"),
]


@pytest.mark.parametrize(("say", "kind", "words"), WRONG)
def test_proof__wrong_answer(tmp_path: Path, say: Say | None, kind: type[Exception], words: str) -> None:
    with AttachServer(tmp_path, say) as server, pytest.raises(kind, match=words):
        proof(server.socket, 20 if say else 0.2)


def test_proof__nobody_there(tmp_path: Path) -> None:
    with pytest.raises(ultima.DaemonUnavailable, match=r"attach\.sock: No such file"):
        proof(str(tmp_path / "ultimad.sock"), 1)
