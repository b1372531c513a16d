# SPDX-License-Identifier: Apache-2.0
"""Paths of sockets as gRPC is told them: by a server, and by those who look for it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from ultima.v1.unix_target import unix_target

NAMES = ("plain", "sp ace", "umläut", "a%41", "100%", "job#7", "what?", "a,b", "x:y", "b\udcff", "~tilde+=&")


@pytest.mark.parametrize("name", NAMES)
def test_unix_target__whatever_the_name_of_the_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "x.sock"
    path.parent.mkdir()
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        server.add_insecure_port(unix_target(path))
        server.start()
        try:
            assert path.is_socket()
            with grpc.insecure_channel(unix_target(path)) as channel:
                grpc.channel_ready_future(channel).result(timeout=20)
        finally:
            server.stop(None)
