# SPDX-License-Identifier: Apache-2.0
"""`ultima explain`: what became of one op, by the receipt that the daemon on this host remembers; or of one round of
local SGD, by what the ranks here told the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ultima.cli.common import AsJson, Socket, print_json, say, socket_named

if TYPE_CHECKING:
    from ultima.base.receipt import Host, Receipt
    from ultima.v1 import admin_pb2


def explain(
    op: Annotated[int | None, typer.Argument(help="Number of the op; by default the newest one.")] = None,
    job: Annotated[str, typer.Option(help="Name of the job; not needed if there is only one.")] = "",
    last: Annotated[bool, typer.Option("--last", help="The newest op, as if no number were given.")] = False,
    slowest: Annotated[bool, typer.Option("--slowest", help="The slowest op that is recorded of the job.")] = False,
    at: Annotated[str, typer.Option(help="The op that was under way at a time: 03:12, 'yesterday 03:12'.")] = "",
    round_: Annotated[
        int | None, typer.Option("--round", help="A round of local SGD in the place of an op; -1 for the newest.")
    ] = None,
    as_json: AsJson = False,
    socket: Socket = None,
) -> None:
    from ultima.admin.calls import get_receipts
    from ultima.admin.flight import op_facts
    from ultima.admin.sentences import explain as lines_of
    from ultima.base.errors import InvalidArgument
    from ultima.cli.job_view import outside_lines
    from ultima.cli.past_op import pick, receipt_or_lines

    if op is not None and (last or op < 0):
        raise InvalidArgument("OP", op, "0 or more, and not together with --last")
    if [op is not None or last, slowest, bool(at), round_ is not None].count(True) > 1:
        allowed = "one of OP, --last, --slowest, --at and --round"
        raise InvalidArgument("--at and --slowest" if round_ is None else "--round", at or "given", allowed)
    if round_ is not None:
        explain_round(socket_named(socket), job, round_, as_json)
        return
    if slowest or at:
        life, record = pick(socket_named(socket), job, slowest, at)
        found, told = receipt_or_lines(life, record)
        if found is None and as_json:
            print_json({"job": life.job, "op": op_facts(life, record), "receipt": None})
        for line in () if as_json else told:
            say(line)
        if found is None:
            return
        answer = found
    else:
        answer = get_receipts(socket_named(socket), job, op)
    receipt, hosts, here = decoded(answer)
    if as_json:
        print_json(to_dict(answer, receipt, hosts, here))
        return
    say(f"Job {answer.job}" + ("" if answer.running else ", which has ended"))
    for line in [*lines_of(receipt, hosts, here), *outside_lines(answer)]:
        say(line)


def explain_round(socket: str, job: str, number: int, as_json: bool) -> None:
    """Says what became of a round; -1 is the newest. Raises InvalidArgument for one that is not kept."""
    from ultima.admin.round_view import get_rounds, round_lines
    from ultima.base.errors import InvalidArgument
    from ultima.cli.status import to_dict as fields_of

    if number < -1:
        raise InvalidArgument("--round", number, "0 or more, or -1 for the newest")
    answer = get_rounds(socket, job, None if number == -1 else number)
    if as_json:
        rounds = [fields_of(told) for told in answer.rounds]
        kept = {"oldest": answer.oldest, "newest": answer.newest}
        print_json({"job": answer.job, "running": answer.running, "receipt": None, "rounds": rounds, "kept": kept})
        return
    say(f"Job {answer.job}" + ("" if answer.running else ", which has ended"))
    for line in round_lines(answer):
        say(line)


def decoded(answer: admin_pb2.GetReceiptsResponse) -> tuple[Receipt, list[Host], int]:
    """The receipt, the hosts of its job, and the host that made it. Raises ProtocolError if one is missing."""
    from ultima.base.errors import ProtocolError
    from ultima.base.receipt import Host
    from ultima.session.decode import decode_receipt

    if not _whole(answer):
        raise ProtocolError("the daemon's answer is no receipt of a job: different releases?")
    hosts = [Host(host.index, host.address, tuple(sorted(host.ranks))) for host in answer.hosts]
    (raw,) = answer.receipts
    here = raw.self
    mine = hosts[here].ranks if here < len(hosts) else ()
    world_size = 0 if answer.elastic else answer.world_size  # where hosts come and go the view says it
    return decode_receipt(raw, hosts, mine[0] if mine else -1, world_size), hosts, here


def _whole(answer: admin_pb2.GetReceiptsResponse) -> bool:
    """Whether it is one receipt of a job."""
    from ultima.session.decode import is_whole
    from ultima.v1.limits import HOSTS_MAX, WORLD_SIZE_MAX

    if len(answer.receipts) != 1 or not 1 <= answer.world_size <= WORLD_SIZE_MAX or len(answer.hosts) > HOSTS_MAX:
        return False
    return all(host.index == index for index, host in enumerate(answer.hosts)) and is_whole(answer.receipts[0])


def to_dict(answer: admin_pb2.GetReceiptsResponse, receipt: Receipt, hosts: list[Host], here: int) -> dict[str, Any]:
    from ultima.cli.job_view import view_facts

    return {
        "job": answer.job,
        "running": answer.running,
        "host": here,
        "hosts": [{"index": host.index, "address": host.address, "ranks": list(host.ranks)} for host in hosts],
        "receipt": receipt.as_dict(),
        "view": view_facts(answer),
    }
