# SPDX-License-Identifier: Apache-2.0
"""A receipt told in words; and `ultima explain`, against a server that has one."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from tests.client.attach_server import AttachServer, token
from tests.client.cli import golden
from ultima.admin.sentences import explain
from ultima.base.receipt import Host, PeerReceipt, Receipt, StageEnd, Status, Trouble, Why
from ultima.cli import main
from ultima.v1 import admin_pb2, admin_pb2_grpc

HOSTS = (Host(0, "10.0.0.1", (0, 1)), Host(1, "10.0.0.2", (2,)), Host(2, "10.0.0.3", (3,)))
SLOW = PeerReceipt(
    host=2,
    ranks=(3,),
    expected_bytes=(4096, 8192),
    missing_bytes=(1024, 8192),
    weight=1,
    why=Why.LOST,
    last_s=0.41,
    trouble=Trouble.SENDER,
    first_s=0.3,
    opened_s=0.26,
    quiet_s=0.02,
    delay_s=0.004,
    repaired_bytes=2048,
    lost_packets=17,
    drops=40,
)
RECEIPT = Receipt(
    op_seq=41,
    status=Status.PARTIAL,
    world_size=4,
    contributors=(0, 1, 2),
    partly=(3,),
    weight_min=3,
    peers=(
        PeerReceipt(0, (0, 1), (0, 0), (0, 0), 2, Why.NOTHING, None),
        PeerReceipt(1, (2,), (4096, 8192), (0, 0), 1, Why.NOTHING, 0.2, opened_s=0.0),
        SLOW,
    ),
    culprit=(3,),
    stage_ends=(StageEnd.DEADLINE, StageEnd.EARLY),
    stage_s=(0.21, 0.42),
    elapsed_s=0.42,
    bytes_expected=24576,
    bytes_used=15360,
    bytes_missing=9216,
    bytes_repaired=2048,
    bytes_duplicate=0,
    nonfinite=0,
    drops_host=0,
    trouble=Trouble.SENDER,
    digest=0x0123456789ABCDEF,
    agreed_op=40,
    t_b_s=0.25,
    t_c_s=(0.1, None),
    deadline_s=1.4,
)


def test_explain__partial() -> None:
    assert explain(RECEIPT, HOSTS, 0) == [
        "Op 41, as host 0 saw it, is partial: usable, but not every rank is in every element. "
        "It took 420.0 ms from the first call on this host; its deadline was 1400.0 ms.",
        "In every element of the result: ranks 0-2; in some elements, or not known to be in all: rank 3. "
        "The least covered element holds 3 of 4.",
        "Stage 1 (reduce) was ended by its time limit, 210.0 ms after the start (100.0 ms are usual, 19 of 20 take "
        "at most 250.0 ms, counted from the call of the last host, 260.0 ms after the start).",
        "Stage 2 (broadcast) was ended early: nearly all was there, and the rest was overdue, 420.0 ms after the start "
        "(19 of 20 take at most 250.0 ms).",
        "Missing: 9 KiB of 24 KiB (37.5 %).",
        "  host 2 (rank 3): 1 KiB of 4 KiB of its contribution and 8 KiB of 8 KiB of the shard that it reduced, "
        "because it did not arrive in time; its data came from 300.0 ms on, the last at 410.0 ms.",
        "To blame: host 2 at 10.0.0.3 (rank 3): slow sender; it called the op 260.0 ms after this host.",
        "Repaired: 2 KiB were lost first and arrived again in time.",
        "The digest of this result is 0123456789abcdef.",
        "Op 40 is the newest that was compared: all hosts held the same result.",
    ]


def test_explain__complete_blames_nobody() -> None:
    complete = dataclasses.replace(
        RECEIPT,
        t_c_s=(0.2, 0.1),
        status=Status.COMPLETE,
        culprit=(),
        trouble=Trouble.NONE,
        bytes_missing=0,
        stage_ends=(StageEnd.COMPLETE, StageEnd.COMPLETE),
        agreed_op=None,
    )
    text = explain(complete, HOSTS, 0)
    assert "In the result: all 4 ranks." in text
    assert "Nobody is to blame." in text
    assert "No earlier op has been compared with all other hosts yet." in text
    assert not any("Missing" in line for line in text)


ALONE = Host(0, "10.0.0.1", (0, 1, 2))


@pytest.mark.parametrize(("status", "fresh"), [(Status.INSUFFICIENT, (0,)), (Status.FAILED, (0,))])
def test_explain__a_rank_of_the_own_host_that_died(status: Status, fresh: tuple[int, ...]) -> None:
    row = PeerReceipt(0, ALONE.ranks, (0, 0), (0, 0), len(fresh), Why.NOTHING, None, fresh=fresh, gone=(1,), late=(2,))
    died = dataclasses.replace(
        RECEIPT, status=status, world_size=3, contributors=fresh, partly=(), weight_min=1, peers=(row,), culprit=(1,),
        trouble=Trouble.GONE, bytes_expected=0, bytes_missing=0,
    )  # fmt: skip
    text = explain(died, [ALONE], 0)
    assert "To blame: host 0 at 10.0.0.1 (rank 1), this host itself: gone; rank 1 left or died." in text
    if status is Status.INSUFFICIENT:
        assert text[0].startswith(
            "Op 41, as host 0 saw it, is insufficient: the result holds nothing of any other rank, it is this rank's"
        )
        assert (
            "In every element of the result: rank 0; rank 1 left or died; rank 2 called too late. The least covered "
            "element holds 1 of 3." in text
        )
    late = dataclasses.replace(died, culprit=(2,), trouble=Trouble.SENDER)
    line = "To blame: host 0 at 10.0.0.1 (rank 2), this host itself: slow sender; the host did not wait for its call."
    assert line in explain(late, [ALONE], 0)


def test_explain__why_a_complete_op_was_slow() -> None:
    """Nobody is to blame for it, but that is no answer to why it took eight times as long as usual."""
    rows = tuple(dataclasses.replace(peer, missing_bytes=(0, 0), opened_s=0.0) for peer in RECEIPT.peers)
    slow = dataclasses.replace(
        RECEIPT, status=Status.COMPLETE, culprit=(), trouble=Trouble.NONE, bytes_missing=0, bytes_repaired=0,
        peers=rows, elapsed_s=0.8, t_c_s=(0.06, 0.04),
    )  # fmt: skip
    text = "Nobody is to blame. It took 8 times as long as usual"
    (line,) = [each for each in explain(slow, HOSTS, 0) if "to blame" in each]
    assert line.startswith(f"{text}, and the cause is not known: nothing was lost")
    repaired = dataclasses.replace(slow, bytes_repaired=2048)
    assert f"{text}: 2 KiB were lost first and arrived again." in explain(repaired, HOSTS, 0)
    waited = dataclasses.replace(repaired, peers=(*rows[:2], dataclasses.replace(rows[2], opened_s=0.7)))
    assert f"{text}: rank 3 called it 700.0 ms after this host." in explain(waited, HOSTS, 0)
    for usual in (dataclasses.replace(slow, elapsed_s=0.2), dataclasses.replace(slow, t_c_s=(None, None))):
        assert "Nobody is to blame." in explain(usual, HOSTS, 0)


def test_explain__who_owned_the_shards_where_not_all_did() -> None:
    everybody = dataclasses.replace(RECEIPT, owners=(0, 1, 2, 3))
    assert explain(everybody, HOSTS, 0) == explain(RECEIPT, HOSTS, 0), "as of a daemon that does not tell"
    some = explain(dataclasses.replace(RECEIPT, owners=(0, 1, 2)), HOSTS, 0)
    assert "Only ranks 0-2 summed shards: the other hosts were gone when the bucket was cut." in some


def test_explain__a_sparse_op_says_what_travelled() -> None:
    sparse = dataclasses.replace(RECEIPT, values=1000, wire_sent=2048, wire_received=4096)
    line = "Sparse: this host gave 1000 values; 2 KiB were sent for the sum, and 4 KiB came."
    assert line in explain(sparse, HOSTS, 0) and not any("int8" in each for each in explain(sparse, HOSTS, 0))
    rounded = explain(dataclasses.replace(sparse, error_answer=0.125), HOSTS, 0)
    assert "It came back as int8: rounding took about 0.125 from each element of it." in rounded
    assert not any("Sparse" in each or "in no sum" in each for each in explain(RECEIPT, HOSTS, 0))
    assert any("in no sum" in each for each in explain(dataclasses.replace(sparse, lacks=True), HOSTS, 0))


def test_explain__a_quantised_op_says_in_what_it_travelled_and_who_gave_nan() -> None:
    quantised = dataclasses.replace(
        RECEIPT, wire="int4/int8", wire_sent=2048, wire_received=4096, error_given=0.25, error_answer=0.125
    )
    line = "Quantised: it travelled as int4/int8; 2 KiB were sent, and 4 KiB came. Rounding took about 0.25 from an "
    line += "element that this host gave, and 0.125 from one of the result."
    assert line in explain(quantised, HOSTS, 0)
    assert not any("Quantised" in each or "This host gave" in each for each in explain(RECEIPT, HOSTS, 0))
    broken = explain(dataclasses.replace(quantised, nonfinite_given=14), HOSTS, 0)
    assert "This host gave 14 elements that are NaN or Inf." in broken


PARTLY = dataclasses.replace(
    RECEIPT,
    status=Status.COMPLETE,
    culprit=(),
    trouble=Trouble.NONE,
    bytes_missing=0,
    stage_ends=(StageEnd.COMPLETE, StageEnd.COMPLETE),
    contributors=(1, 2),
    partly=(),
    weight_min=2,
    policy="majority",
    included=2,
    initiator=(2,),
    waited_s=0.0123,
    peers=(
        dataclasses.replace(RECEIPT.peers[0], fresh=(1,)),
        dataclasses.replace(RECEIPT.peers[1], stale=(2,), oldest_step=17),
        dataclasses.replace(SLOW, missing_bytes=(0, 0)),
    ),
)


def test_explain__with_a_policy_says_who_was_in_it_and_who_started_it() -> None:
    lines = explain(PARTLY, HOSTS, 0)
    assert lines[:4] == [
        "Op 41, as host 0 saw it, is complete: every element holds all that was given for it. "
        "It took 420.0 ms from its start on this host; its deadline was 1400.0 ms.",
        "By the policy majority, host 1 at 10.0.0.2 started it for rank 2. It started 12.3 ms after this host had "
        "something to give or heard of it.",
        "Included: 2 of 4 ranks. Fresh: rank 1; stale: rank 2 (rank 2 from its step 17 on); absent: ranks 0 3.",
        "Stage 1 (reduce) ended complete, 210.0 ms after the start (100.0 ms are usual, 19 of 20 take at most "
        "250.0 ms).",
    ]
    assert not any("In the result" in line or "every element of" in line for line in lines)


CODED = dataclasses.replace(PARTLY, policy="coded", step=7, exact=True, late=(3,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Op 41, as host 0 saw it, is exact: every element is the sum over all data."),
        (
            {},
            "It was step 7 of a coded job: rank 3 gave nothing in time; this host needed all that arrived.",
        ),
        (
            {"late": (), "unused": (0, 1), "redundant_bytes": 2048},
            "no rank was late; this host did not need what ranks 0-1 gave; 2 KiB arrived after another rank had given "
            "the same.",
        ),
        (
            {"status": Status.PARTIAL, "exact": False, "residual": 2.0},
            "is an estimate: some part of the data is missing from some element.",
        ),
        ({"exact": False, "residual": 2.0}, "The least covered element is 2 away from the sum of all parts."),
    ],
)
def test_explain__a_step_of_a_coded_job(changes: dict[str, Any], words: str) -> None:
    assert words in "\n".join(explain(dataclasses.replace(CODED, **changes), HOSTS, 0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"initiator": ()}, "By the policy majority, it is not known which host started it. It started 12.3 ms after"),
        ({"initiator": (), "policy": "full"}, "By the policy full, each host started it when all its ranks had given."),
        ({"initiator": (0, 1)}, "By the policy majority, host 0 at 10.0.0.1 started it for ranks 0-1. It started"),
        (
            {"status": Status.PARTIAL, "contributors": (1,), "partly": (2,), "weight_min": 1},
            "In every element of the result: rank 1; in some elements, or not known to be in all: rank 2. "
            "The least covered element holds 1 of 2.",
        ),
        ({"nonfinite": 3}, "In every element of the result: ranks 1-2. 3 elements are NaN or Inf."),
    ],
)
def test_explain__with_a_policy(changes: dict[str, Any], words: str) -> None:
    assert words in "\n".join(explain(dataclasses.replace(PARTLY, **changes), HOSTS, 0))


@pytest.mark.parametrize(
    ("trouble", "changes", "words"),
    [
        (Trouble.SENDER, {"opened_s": None}, "slow sender; it never called the op, though its daemon answers"),
        (
            Trouble.SENDER,
            {"quiet_s": 0.3},
            "slow sender; it sent nothing for 300.0 ms, and no packet was lost in that time",
        ),
        (Trouble.PATH, {}, "slow path; it sent in time, but 2 KiB from it and 17 packets to it had to be sent again"),
        (Trouble.RECEIVER, {}, "slow receiver; its kernel dropped 40 datagrams that had arrived, 17 of them were ours"),
        (Trouble.GONE, {}, "gone; it is known to be gone, or nothing was heard from it during the op"),
    ],
)
def test_explain__each_trouble_with_its_evidence(trouble: Trouble, changes: dict[str, Any], words: str) -> None:
    peers = (*RECEIPT.peers[:2], dataclasses.replace(SLOW, **changes))
    (line,) = (
        line
        for line in explain(dataclasses.replace(RECEIPT, trouble=trouble, peers=peers), HOSTS, 0)
        if line.startswith("To blame")
    )
    assert line.startswith(f"To blame: host 2 at 10.0.0.3 (rank 3): {words}")


def test_explain__itself_and_those_who_differ() -> None:
    text = explain(dataclasses.replace(RECEIPT, trouble=Trouble.PATH, differ=(2, 3)), HOSTS, 2)
    assert any(line.startswith("To blame: host 2 at 10.0.0.3 (rank 3), this host itself: slow path;") for line in text)
    assert text[-1] == "Op 40: ranks 2-3 held another result than this host."


def an_answer() -> admin_pb2.GetReceiptsResponse:
    answer = admin_pb2.GetReceiptsResponse(job="resnet", world_size=3, running=True)
    for index in range(3):
        host = answer.hosts.add(index=index, address=f"10.0.0.{index + 1}", grpc_port=29520)
        host.ranks.append(index)
    raw = answer.receipts.add(op_seq=7, status=2, self=0, culprit=2, trouble=2, hosts=3, weight_min=2)
    raw.full_mask, raw.any_mask, raw.digest, raw.agreed_seq, raw.owners = 0b011, 0b111, 2**63 + 1, 6, 0b011
    raw.bytes_expected, raw.bytes_used, raw.bytes_missing, raw.elapsed_ns = 800, 700, 100, 5_000_000
    raw.stage_end.extend([2, 1])
    raw.stage_ns.extend([2_000_000, 5_000_000])
    raw.t_c_us.extend([0, 0])
    for index in range(3):
        row = raw.peer.add(weight=1, why=3 if index == 2 else 0, opened_us=12)
        row.expected.extend([200, 200] if index else [0, 0])
        row.missing.extend([100, 0] if index == 2 else [0, 0])
    return answer


class Servicer(admin_pb2_grpc.AdminServiceServicer):
    def GetReceipts(self, request: admin_pb2.GetReceiptsRequest, context: Any) -> admin_pb2.GetReceiptsResponse:
        metadata = dict(context.invocation_metadata())
        assert metadata["ultima-token"] == "cd" * 16
        if request.job == "theirs":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "job 'theirs' belongs to uid 1000")
        if request.HasField("op_seq") and request.op_seq != 7:
            context.abort(grpc.StatusCode.NOT_FOUND, f"op_seq = {request.op_seq}: not recorded here")
        return an_answer()


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with AttachServer(tmp_path, token(), admin=Servicer()) as server:
        monkeypatch.setenv("ULTIMA_SOCKET", f"unix://{server.socket}")
        yield server.socket


@pytest.mark.parametrize("arguments", [["7"], ["--last"], [], ["7", "--job", "resnet"]])
def test_verb__text(socket: str, arguments: list[str]) -> None:
    result = CliRunner().invoke(main.build(), ["explain", *arguments])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "Job resnet"
    assert "Missing: 100 B of 800 B (12.5 %)." in lines
    assert any(line.startswith("To blame: host 2 at 10.0.0.3 (rank 2): slow path") for line in lines)
    assert "The digest of this result is 8000000000000001." in lines


def test_verb__json(socket: str) -> None:
    result = CliRunner().invoke(main.build(), ["explain", "7", "--json"])
    facts = json.loads(result.output)
    golden.check("explain", facts)
    assert (facts["job"], facts["host"], facts["running"]) == ("resnet", 0, True)
    assert facts["receipt"]["digest"] == "8000000000000001"
    assert facts["receipt"]["contributors"] == facts["receipt"]["owners"] == [0, 1]
    assert (facts["receipt"]["trouble"], facts["receipt"]["agreed_op"]) == ("slow path", 6)
    assert facts["receipt"]["peers"][2]["opened_s"] == pytest.approx(12e-6)


def test_verb__needs_no_extension(socket: str) -> None:
    """An operator's machine may have none that fits; to read a message it takes no C."""
    program = (
        "import sys; sys.modules['ultima._native'] = None\n"
        "from ultima.cli.main import main\n"
        "sys.argv = ['ultima', 'explain', '7']\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "To blame: host 2" in done.stdout, done.stderr


def test_verb__the_job_of_another_user(socket: str) -> None:
    result = CliRunner().invoke(main.build(), ["explain", "--job", "theirs"])
    assert result.exit_code == 1
    assert "belongs to uid 1000" in result.output


def test_verb__unknown_op_and_wrong_use(socket: str) -> None:
    unknown = CliRunner().invoke(main.build(), ["explain", "8"])
    assert unknown.exit_code == 2
    assert "op_seq = 8" in unknown.output
    assert CliRunner().invoke(main.build(), ["explain", "7", "--last"]).exit_code == 2
