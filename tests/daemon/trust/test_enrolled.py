# SPDX-License-Identifier: Apache-2.0
"""Daemons whose hosts enrolled by a token: a renewed certificate and a new list count without a restart."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from typer.testing import CliRunner

from tests.daemon.helpers import House, eventually, wired
from ultima.authority import enrol, serve
from ultima.authority.authority import Authority
from ultima.cli import main


async def test_renewed__is_taken_by_daemons_without_a_restart(house: House) -> None:
    folder = house.folder / "authority"
    folder.mkdir()
    assert CliRunner().invoke(main.build(), ["ca", "init", "--cluster", "lab", "--dir", str(folder)]).exit_code == 0
    with serve.EnrolmentServer(Authority(folder), "127.0.0.1", 0, 365, lambda text: None) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        place = "127.0.0.1", int(server.server_address[1])
        daemons, hosts = [], [house.folder / f"h{i}" for i in range(2)]
        for i, host in enumerate(hosts):
            host.mkdir()
            await asyncio.to_thread(enrol.enroll, *place, Authority(folder).token(f"n{i}", 60), host)
            files = dict(CERTIFICATE=f"n{i}.crt", KEY=f"n{i}.key", AUTHORITY="ca.crt", WITHDRAWN="withdrawn.json")
            tls = {f"ULTIMAD_TLS_{name}": str(host / file) for name, file in files.items()}
            daemons.append(await house.daemon(f"n{i}", tls=tls))
        await house.job(daemons)
        await eventually(lambda: wired(daemons), "a path")

        async def renewed(i: int) -> int:
            """How many identities the daemon has had more since."""
            trust: Any = daemons[i].trust
            before = trust.version
            await asyncio.to_thread(enrol.renew, *place, hosts[i], f"n{i}", True)
            trust.look(time.time())
            return int(trust.version - before)

        assert await renewed(0) == 1 and await renewed(1) == 1 and wired(daemons)
        late = await house.trainer(daemons[1])  # a new connection shows the new certificates
        again = await house.trainer(daemons[0])
        joins = (late.join(1, 2, "late", rendezvous=f"127.0.0.1:{daemons[0].grpc_port}"), again.join(0, 2, "late"))
        await asyncio.gather(*joins)
        Authority(folder).withdraw(["n1"])
        await renewed(0)
        await eventually(lambda: not wired(daemons), "n1 is out")
        server.shutdown()
        thread.join(5)
