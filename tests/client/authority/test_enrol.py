# SPDX-License-Identifier: Apache-2.0
"""Certificates over their life: a host enrols once by a token, renews while it is valid, and never after."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from typer.testing import CliRunner

from tests.client.cli.conftest import published  # noqa: F401
from ultima.authority import authority as authorities
from ultima.authority import enrol, serve
from ultima.authority.authority import Authority, life
from ultima.base.errors import UltimaError
from ultima.cli import main
from ultima.daemon.trust.files import from_files
from ultima.v1 import certificates

runner = CliRunner()


def ca(*words: object, expect: int = 0, text: str = "") -> str:
    result = runner.invoke(main.build(), ["ca", *map(str, words)], input=text)
    assert result.exit_code == expect, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority's."""
    ret = tmp_path / "authority"
    ret.mkdir()
    ca("init", "--cluster", "lab", "--dir", ret)
    return ret


@pytest.fixture
def server(folder: Path) -> Iterator[Any]:
    """`ultima ca serve` of that authority; what it tells is in `said`."""
    said: list[str] = []
    with serve.EnrolmentServer(Authority(folder), "127.0.0.1", 0, 365, said.append) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        server.said = said  # type: ignore[attr-defined]
        yield server
        server.shutdown()
        thread.join(5)


def place(server: Any) -> tuple[str, int]:
    return "127.0.0.1", int(server.server_address[1])


def given(host: Path, node: str) -> Any:
    """What a daemon makes of a host's files."""
    names = (f"{node}.crt", f"{node}.key", "ca.crt")
    return from_files(*(host / name for name in names), time.time(), host / "withdrawn.json")


def test_enroll__by_the_verbs(folder: Path, server: Any, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    token = ca("token", "n1", "--dir", folder).splitlines()[0]
    where = f"127.0.0.1:{place(server)[1]}"
    said = ca("enroll", where, "-", "--dir", host, text=token + "\n")
    assert "node 'n1' of 'lab'" in said and f'key = "{host / "n1.key"}"' in said
    found = given(host, "n1")
    assert (found.cluster, found.node) == ("lab", "n1")
    assert stat.S_IMODE((host / "n1.key").stat().st_mode) == 0o600 and not (folder / "n1.key").exists()
    assert token[:32] not in (folder / "tokens.json").read_text(), "what is kept enrols nobody"
    assert server.said == [f"node n1: enrolled by 127.0.0.1, valid until {_day(found.life.end)}"]
    rows = json.loads(ca("show", "--json", "--dir", folder))
    assert [(row["node"], row["state"]) for row in rows["nodes"]] == [("n1", "valid")]
    assert [(row["node"], row["state"]) for row in rows["tokens"]] == [("n1", "used")]
    assert "node n1: valid until" in ca("show", "--dir", host), "on a host too"
    before = (host / "n1.crt").read_bytes()
    assert "more than a third" in ca("renew", where, "--dir", host)
    assert (host / "n1.crt").read_bytes() == before
    assert "node 'n1': valid until" in ca("renew", where, "--now", "--dir", host)
    assert (host / "n1.crt").read_bytes() != before and given(host, "n1").node == "n1"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


@pytest.mark.parametrize("case", ["wrong", "used", "ended", "withdrawn", "foreign"])
def test_token__that_is_not_good_gives_nothing(
    folder: Path, server: Any, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, authority = tmp_path / "host", Authority(folder)
    host.mkdir()
    token, sentence = authority.token("n1", 60), ""
    if case == "wrong":
        token, sentence = "00" * 16 + authority.pin.hex(), "unknown here"
    elif case == "used":
        enrol.enroll(*place(server), token, host)
        sentence = "was used already.*ultima ca withdraw n1"
    elif case == "ended":
        now = time.time()
        monkeypatch.setattr(authorities.time, "time", lambda: now + 61)
        sentence = "node 'n1' ended on"
    elif case == "withdrawn":
        authority.withdraw(["n1"])
        sentence = "node 'n1' was withdrawn"
    else:
        (tmp_path / "other").mkdir()
        ca("init", "--cluster", "lab", "--dir", tmp_path / "other")
        token, sentence = Authority(tmp_path / "other").token("n1", 60), "not the authority that made the token"
    before = sorted(path.name for path in host.iterdir())
    with pytest.raises(UltimaError, match=sentence):
        enrol.enroll(*place(server), token, host)
    assert sorted(path.name for path in host.iterdir()) == before
    if case == "foreign":
        assert not server.said, "the token has not travelled"


def test_token__of_two_that_use_one_at_once_one_enrols(folder: Path, server: Any, tmp_path: Path) -> None:
    """Breaks if a token is looked at and marked in two steps."""
    token, ends = Authority(folder).token("n1", 60), list[str]()

    def try_it(number: int) -> None:
        host = tmp_path / f"host{number}"
        host.mkdir()
        try:
            enrol.enroll(*place(server), token, host)
            ends.append("in")
        except UltimaError as error:
            ends.append("used" if "used already" in str(error) else str(error))

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(ends) == ["in", *["used"] * 5]


def pair(folder: Path, host: Path, node: str, days: tuple[int, int]) -> None:
    """Certificate and key of a node, valid from and to so many days from now."""
    authority, key = Authority(folder), certificates.new_key()
    begin, end = life(days[0])[1], life(days[1])[1]
    made = certificates.leaf(authority.key, authority.certificate, "lab", node, key, begin, end)
    (host / f"{node}.crt").write_bytes(certificates.certificate_pem(made))
    (host / f"{node}.key").write_bytes(certificates.key_pem(key))
    (host / f"{node}.key").chmod(0o600)
    (host / "ca.crt").write_bytes((folder / "ca.crt").read_bytes())


def test_renew__of_one_that_ends_soon_has_ended_or_is_withdrawn(folder: Path, server: Any, tmp_path: Path) -> None:
    host, authority = tmp_path / "host", Authority(folder)
    host.mkdir()
    pair(folder, host, "n1", (-80, 20))
    renewed = enrol.renew(*place(server), host, "n1", now=False)
    assert renewed is not None and given(host, "n1").life.end > time.time() + 300 * 86400
    authority.withdraw(["n7"])
    assert enrol.renew(*place(server), host, "n1", now=False) is None
    assert given(host, "n1").withdrawn == {"n7"}, "the list came although the certificate stays"
    pair(folder, host, "n1", (-80, -1))
    with pytest.raises(UltimaError, match="enrol again"):
        enrol.renew(*place(server), host, "n1", now=True)
    pair(folder, host, "n1", (-1, 20))
    authority.withdraw(["n1"])
    with pytest.raises(UltimaError, match="node 'n1' was withdrawn"):
        enrol.renew(*place(server), host, "n1", now=True)


def asked(server: Any, path: str, body: bytes, length: str | None = None) -> tuple[int, str]:
    """A request by hand, of a client without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(*place(server), context=context, timeout=10)
    connection.request("POST", path, body, {"Content-Length": length} if length is not None else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def request_of(key: Any) -> str:
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return certificates.request_pem(made).decode()


def test_serve__what_is_no_request_is_refused_and_uses_up_no_token(folder: Path, server: Any, tmp_path: Path) -> None:
    token = Authority(folder).token("n1", 60)
    good, secret = request_of(certificates.new_key()), token[:32]
    rows = [
        ("/renew", json.dumps({"request": good}), "no certificate of a node"),
        ("/enroll", "nonsense", "the request is none"),
        ("/enroll", json.dumps({"token": "zz", "request": good}), "the request is none"),
        ("/enroll", json.dumps({"token": secret, "request": "pem"}), "the request is none"),
        (
            "/enroll",
            json.dumps({"token": secret, "request": request_of(rsa.generate_private_key(65537, 2048))}),
            "P-256",
        ),
        (
            "/enroll",
            json.dumps({"token": secret, "request": request_of(ec.generate_private_key(ec.SECP384R1()))}),
            "P-256",
        ),
    ]
    for path, body, sentence in rows:
        status, text = asked(server, path, body.encode())
        assert status == 403 and sentence in text, (body, text)
    assert asked(server, "/enroll", b"{}", str(1 << 20))[0] == 403
    assert asked(server, "/other", b"{}")[0] == 404
    host = tmp_path / "host"
    host.mkdir()
    assert enrol.enroll(*place(server), token, host).node == "n1", "the token is still good"


def test_serve__silent_clients_hold_up_nobody(folder: Path, server: Any, tmp_path: Path) -> None:
    silent = [socket.create_connection(place(server)) for _ in range(serve.CLIENTS_MAX // 2)]
    try:
        host = tmp_path / "host"
        host.mkdir()
        assert enrol.enroll(*place(server), Authority(folder).token("n1", 60), host).node == "n1"
    finally:
        for connection in silent:
            connection.close()


def test_serve__who_drips_has_a_time_for_all_of_it(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks where each byte begins the time anew."""
    monkeypatch.setattr(serve, "WHOLE_SECONDS", 0.5)
    began = time.monotonic()
    with socket.create_connection(place(server)) as dripping:
        dripping.settimeout(0.05)
        dripping.sendall(b"\x16\x03\x01\x40\x00")  # a TLS record of 16 KiB begins
        with pytest.raises(ConnectionError):
            while time.monotonic() - began < 10:
                dripping.sendall(b"\x01")
                with contextlib.suppress(TimeoutError):
                    if not dripping.recv(1):
                        raise ConnectionError
    assert time.monotonic() - began < 10


def test_show__of_a_node_that_was_withdrawn_or_has_expired_ends_with_1(folder: Path) -> None:
    ca("issue", "n1", "--dir", folder)
    ca("issue", "n2", "--dir", folder)
    assert "withdrawn: n2" in ca("withdraw", "n2", "--dir", folder)
    assert "node n2: valid until" in ca("show", "--dir", folder, expect=1)
    assert "(WITHDRAWN)" in ca("show", "--dir", folder, expect=1)
    for verb in ("issue", "token"):
        assert "node 'n2' was withdrawn: give the host another name" in ca(verb, "n2", "--dir", folder, expect=1)
    assert "withdrawn: none" in ca("withdraw", "--undo", "n2", "--dir", folder)
    ca("show", "--dir", folder)
    assert Authority(folder).listed().number == 2
