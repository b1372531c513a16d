# SPDX-License-Identifier: Apache-2.0
"""`ultima ca`: makes the files by which daemons authenticate each other, over their whole life. It needs no daemon, and
no network but for `serve`, `enroll` and `renew`."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ultima.base.errors import InvalidArgument, UltimaError
from ultima.cli import ca_online
from ultima.cli.common import AsJson, print_json, say
from ultima.cli.help import Group, WithExample
from ultima.v1 import secrets
from ultima.v1.nodes import CLUSTER_ALLOWED, NODE_ALLOWED, is_cluster, is_node

if TYPE_CHECKING:
    from typing import Any

AUTHORITY_DAYS = 3650

Dir = ca_online.Dir


def init(
    cluster: Annotated[str, typer.Option(metavar="NAME", help="The cluster's name, in all its certificates.")] = "main",
    days: Annotated[
        int, typer.Option(min=1, max=ca_online.DAYS_MAX, help="How long the authority is valid.")
    ] = AUTHORITY_DAYS,
    folder: Dir = Path("."),
) -> None:
    from ultima.authority.authority import AUTHORITY, AUTHORITY_KEY, life
    from ultima.authority.files import write
    from ultima.v1 import certificates

    if not is_cluster(cluster):
        raise InvalidArgument("--cluster", cluster, CLUSTER_ALLOWED)
    key = certificates.new_key()
    begin, end = life(days)
    authority = certificates.authority(key, cluster, begin, end)
    write(folder / AUTHORITY_KEY, certificates.key_pem(key), 0o600)
    write(folder / AUTHORITY, certificates.certificate_pem(authority), 0o644)
    say(f"{folder / AUTHORITY}: authority of cluster {cluster!r}, valid until {end:%Y-%m-%d}; give it to all hosts")
    say(f"{folder / AUTHORITY_KEY}: its key; keep it off the hosts: with it anyone can pose as any of them")


def issue(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the host: hostname -s.")],
    days: ca_online.Days = ca_online.NODE_DAYS,
    folder: Dir = Path("."),
) -> None:
    from ultima.authority.authority import Authority
    from ultima.authority.files import replace
    from ultima.v1 import certificates

    if not is_node(node):
        raise InvalidArgument("NODE", node, NODE_ALLOWED)
    authority = Authority(folder)
    key = certificates.new_key()
    older = (folder / f"{node}.crt").exists()
    leaf = authority.issue(node, key, days)
    replace(folder / f"{node}.key", certificates.key_pem(key), 0o600)
    replaced = ", in place of the older ones" if older else ""
    say(
        f"{folder / node}.crt, {folder / node}.key: node {node!r} of {authority.cluster!r}, valid until "
        f"{leaf.not_valid_after_utc:%Y-%m-%d}{replaced}"
    )


def show(folder: Dir = Path("."), as_json: AsJson = False) -> None:
    """Exit status 1 if a certificate here has expired, or belongs to a node that was withdrawn."""
    found = _shown(folder)
    if as_json:
        print_json(found)
    else:
        authority = found["authority"]
        say(f"authority of cluster {authority['cluster']!r}, valid until {_day(authority['not_after_s'])}")
        for row in found["nodes"]:
            state = {"valid": "", "ends soon": " (less than a third of its life is left)"}.get(
                row["state"], f" ({row['state'].upper()})"
            )
            say(f"  node {row['node']}: valid until {_day(row['not_after_s'])}{state}, serial {row['serial'][:16]}")
        for token in found["tokens"]:
            until = datetime.datetime.fromtimestamp(token["until_s"], datetime.UTC)
            say(f"  token of node {token['node']}: {token['state']}, until {until:%Y-%m-%d %H:%M} UTC")
        listed = found["withdrawn"]
        say(f"withdrawn (list {listed['number']}): {', '.join(listed['nodes']) or 'none'}")
    if any(row["state"] in ("expired", "withdrawn") for row in found["nodes"]):
        raise typer.Exit(1)


def _shown(folder: Path) -> dict[str, Any]:
    """What a folder holds, of an authority or of a host, in JSON's types."""
    import time

    from cryptography import x509

    from ultima.authority import authority, enrol
    from ultima.v1 import withdrawn
    from ultima.v1.nodes import node_of

    def certificate(path: Path) -> x509.Certificate:
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except OSError as error:
            raise UltimaError(f"{path}: cannot be read: {error.strerror}: --dir names another folder") from None
        except ValueError:
            raise UltimaError(f"{path}: holds no certificate") from None

    own, now = certificate(folder / authority.AUTHORITY), time.time()
    cluster, tokens, listed = enrol.cluster_of(own), [], withdrawn.Withdrawn()
    if (folder / authority.WITHDRAWN).exists():
        try:
            listed = withdrawn.read((folder / authority.WITHDRAWN).read_bytes(), cluster, [own])
        except (OSError, ValueError) as error:
            raise UltimaError(f"{folder / authority.WITHDRAWN}: {error}") from None
    if (folder / authority.AUTHORITY_KEY).exists():
        tokens = authority.Authority(folder).tokens()
    rows = []
    for path in sorted(folder.glob("*.crt")):
        found = certificate(path) if path.name != authority.AUTHORITY else own
        if found is own:
            continue
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        of = [node_of(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
        node = of[0][1] if of and of[0] is not None else ""
        end = found.not_valid_after_utc.timestamp()
        state = "ends soon" if enrol.is_due(found) else "valid"
        state = "withdrawn" if node in listed.nodes else "expired" if end <= now else state
        rows.append({"node": node, "state": state, "not_after_s": int(end), "serial": f"{found.serial_number:x}"})
    return {
        "authority": {"cluster": cluster, "not_after_s": int(own.not_valid_after_utc.timestamp())},
        "nodes": rows,
        "tokens": [
            {
                "node": token.node,
                "state": "used" if token.used else "ended" if token.until <= now else "open",
                "until_s": int(token.until),
            }
            for token in tokens
        ],
        "withdrawn": {"number": listed.number, "nodes": sorted(listed.nodes)},
    }


def _day(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d}"


def secret(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; nothing is overwritten.")],
) -> None:
    from ultima.authority.files import write

    write(file, (secrets.new_text() + "\n").encode(), 0o600)
    say(f"{file}: the secret of a job; with it a process can pose as any rank")


VERBS = (
    ("init", init, "Make the authority of a cluster: ca.crt and ca.key.", "ultima ca init --cluster lab"),
    ("issue", issue, "Make a certificate for a host: NODE.crt and NODE.key.", "ultima ca issue n1 --days 365"),
    (
        "show",
        show,
        "Show the certificates, tokens and withdrawn nodes of a folder.",
        "ultima ca show --dir /etc/ultima",
    ),
    *ca_online.VERBS,
    ("secret", secret, "Make a secret for one job, for hosts without certificates.", "ultima ca secret job.secret"),
)


def group(ends_well: Callable[[Callable[..., None]], Callable[..., None]]) -> typer.Typer:
    """The verbs below `ultima ca`; `ends_well` turns what they raise into a sentence."""
    made = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)
    for name, function, told, example in VERBS:
        made.command(name, cls=WithExample, help=told, epilog=example)(ends_well(function))
    return made
