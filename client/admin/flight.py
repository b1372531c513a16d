# SPDX-License-Identifier: Apache-2.0
"""Recorded ops as files for other tools: torch's flight recorder (`torchfrtrace`), and Chrome traces (Perfetto).

torchfrtrace of torch 2.13 takes names of the backends that it knows and no others, so the ops are called `gloo:...`;
what became of each stands under the key "ultima". It wants one file per rank, named PREFIX and the rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ultima.base.receipt import TROUBLES, Host
from ultima.base.words import COLLECTIVE_BY_CODE, CULPRIT_NOBODY, DTYPE_BY_CODE, OP_BY_CODE
from ultima.session.decode import decode_receipt, status_of
from ultima.v1 import records_pb2

ROWS_MAX, PEER_TRACKS = 100, 10_000  # tracks of one lane or peer; the number of the first track of peers
FR_VERSION = "2.10"
FR_PREFIX = "ultima_rank_"
GROUP = "0"
# Our collectives by the names of torch's.
_TORCH_NAMES = {
    "allreduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "broadcast": "broadcast",
    "all_to_all": "all_to_all",
    "barrier": "barrier",
}
_TORCH_TYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int32": "Int",
    "int64": "Long",
    "bytes": "Byte",
}


def hosts_of(life: records_pb2.JobLife) -> list[Host]:
    """The hosts of a life by index."""
    return [Host(host.index, host.address, tuple(sorted(host.ranks)), host.grpc_port) for host in life.hosts]


def op_facts(life: records_pb2.JobLife, op: records_pb2.OpRecord) -> dict[str, Any]:
    """One op in words and JSON's types."""
    hosts = hosts_of(life)
    blamed = op.culprit != CULPRIT_NOBODY and op.culprit < len(hosts)
    return {
        "op_seq": op.op_seq,
        "status": str(status_of(op.status)),
        "ended_ns": op.ended_ns,
        "ended_monotonic_ns": op.ended_monotonic_ns,
        "elapsed_ns": op.elapsed_ns,
        "bucket_bytes": op.bucket_bytes,
        "bytes_missing": op.bytes_missing,
        "collective": COLLECTIVE_BY_CODE.get(op.collective, "unknown"),
        "dtype": DTYPE_BY_CODE[op.dtype].name if op.dtype in DTYPE_BY_CODE else "unknown",
        "op": OP_BY_CODE.get(op.op),
        "culprit": list(hosts[op.culprit].ranks) if blamed else [],
        "trouble": str(TROUBLES[op.trouble]) if blamed and op.trouble < len(TROUBLES) else "none",
    }


def life_facts(life: records_pb2.JobLife) -> dict[str, Any]:
    """One life with all its ops and receipts, for JSON."""
    hosts = hosts_of(life)
    mine = hosts[life.host_index].ranks if life.host_index < len(hosts) else ()
    receipts = [decode_receipt(each, hosts, mine[0] if mine else -1, life.world_size) for each in life.receipts]
    return {
        "job": life.job,
        "generation": life.generation,
        "world_size": life.world_size,
        "running": life.running,
        "host": life.host_index,
        "lanes": life.lanes,
        "clock_offset_ns": life.clock_offset_ns,
        "hosts": [{"index": host.index, "address": host.address, "ranks": list(host.ranks)} for host in hosts],
        "ops": [op_facts(life, op) for op in life.ops],
        "receipts": [receipt.as_dict() for receipt in receipts],
    }


def flight_records(lives: Iterable[records_pb2.JobLife]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of a file for each rank of the hosts that told of one life of a job."""
    for life in lives:
        hosts = hosts_of(life)
        ranks = sorted(rank for host in hosts for rank in host.ranks)
        group = {"name": GROUP, "desc": life.job or "default_pg", "ranks": str(ranks)}
        newest = life.ops[-1].op_seq if life.ops else -1
        content = {
            "version": FR_VERSION,
            "pg_config": {GROUP: group},
            "pg_status": {GROUP: {"last_completed_collective": newest, "last_started_collective": newest}},
            "entries": [_entry(life, op, number) for number, op in enumerate(life.ops)],
        }
        for rank in hosts[life.host_index].ranks if life.host_index < len(hosts) else ():
            yield f"{FR_PREFIX}{rank}", content


def _entry(life: records_pb2.JobLife, op: records_pb2.OpRecord, number: int) -> dict[str, Any]:
    kind = DTYPE_BY_CODE.get(op.dtype)
    facts = op_facts(life, op)
    name = _TORCH_NAMES.get(str(facts["collective"]), "all_reduce")
    count = op.bucket_bytes // kind.itemsize if kind is not None else op.bucket_bytes
    share = count // max(life.world_size, 1)
    gives = share if name == "all_gather" else count
    gets = share if name == "reduce_scatter" else count
    began = op.ended_ns - life.clock_offset_ns - op.elapsed_ns
    types = [_TORCH_TYPES.get(str(facts["dtype"]), "Byte")]
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": (GROUP, life.job or "default_pg"),
        # Counted from 1, as torch's are.
        "collective_seq_id": op.op_seq + 1,
        "p2p_seq_id": 0,
        "op_id": op.op_seq + 1,
        "is_p2p": False,
        "profiling_name": f"gloo:{name}",
        "input_sizes": [[gives]],
        "input_dtypes": types,
        "output_sizes": [[gets]],
        "output_dtypes": types,
        "time_created_ns": began,
        "time_discovered_started_ns": began,
        "time_discovered_completed_ns": began + op.elapsed_ns,
        "duration_ms": op.elapsed_ns / 1e6,
        "timeout_ms": 0,
        "state": "completed",
        "frames": [],
        "retired": True,
        "ultima": facts,
    }


def chrome_trace(lives: Sequence[records_pb2.JobLife]) -> dict[str, Any]:
    """A trace with a process per host, a track per lane, and one per peer for ops of which there are receipts.

    Times are those of the first life's host, in microseconds. Ops of one lane that overlap are on tracks of their own.
    """
    events: list[dict[str, Any]] = []
    for life in lives:
        pid, hosts = life.host_index, hosts_of(life)
        host = hosts[pid] if pid < len(hosts) else Host(pid, "", ())
        ranks = ", ".join(map(str, host.ranks))
        events.append(_named("process_name", pid, 0, f"host {pid} at {host.address} (ranks {ranks})"))
        receipts = {receipt.op_seq: receipt for receipt in life.receipts}
        rows: dict[int, list[int]] = {}
        peers: dict[int, list[int]] = {}
        lanes = max(life.lanes, 1)
        for op in sorted(life.ops, key=lambda op: op.ended_ns - op.elapsed_ns):
            lane = op.op_seq % lanes
            began = op.ended_ns - op.elapsed_ns - life.clock_offset_ns
            row = _free_row(rows.setdefault(lane, []), began, op.elapsed_ns)
            track = 1 + lane * ROWS_MAX + row
            facts = op_facts(life, op)
            events.append(_named("thread_name", pid, track, f"lane {lane}" + (f" ({row})" if row else "")))
            name = f"op {op.op_seq} {facts['collective']}" + ("" if op.status == 1 else f": {facts['status']}")
            events.append(_stretch(name, pid, track, began, op.elapsed_ns, facts))
            if op.op_seq in receipts:
                events += _peers(receipts[op.op_seq], hosts, pid, began, peers)
    names = {(event["pid"], event["tid"], event["name"]): event for event in events if event["ph"] == "M"}
    stretches = [event for event in events if event["ph"] != "M"]
    return {"traceEvents": [*names.values(), *stretches], "displayTimeUnit": "ms"}


def _peers(
    receipt: records_pb2.OpReceipt, hosts: Sequence[Host], pid: int, began: int, rows: dict[int, list[int]]
) -> Iterator[dict[str, Any]]:
    """From the first to the last byte of each peer's data in an op. |rows| are taken, by peer, as those of lanes are:
    ops of two lanes overlap, and a track holds what is nested or apart alone."""
    for index, row in enumerate(receipt.peer[: len(hosts)]):
        if index == receipt.self or not row.last_us:
            continue
        length = max(row.last_us - row.first_us, 0) * 1000
        number = _free_row(rows.setdefault(index, []), began + row.first_us * 1000, length)
        track = PEER_TRACKS + index * ROWS_MAX + number
        missing = sum(row.missing)
        facts = {"missing_bytes": missing, "lost_packets": row.lost, "repaired_bytes": row.repaired}
        name = f"op {receipt.op_seq}" + (f": {missing} B missing" if missing else "")
        where = f"from host {index} at {hosts[index].address}" + (f" ({number})" if number else "")
        yield _named("thread_name", pid, track, where)
        yield _stretch(name, pid, track, began + row.first_us * 1000, length, facts)


def _free_row(rows: list[int], began: int, length: int) -> int:
    """The first row that is free at |began|; it is taken until the end."""
    for row, until in enumerate(rows):
        if until <= began:
            rows[row] = began + length
            return row
    rows.append(began + length)
    return len(rows) - 1


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _stretch(name: str, pid: int, tid: int, began: int, length: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Both ends in whole microseconds: of times since 1970 a double holds no more than quarters of them, by which two
    that only touch could overlap."""
    ts, end = began // 1000, (began + length) // 1000
    return {"ph": "X", "cat": "op", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": end - ts, "args": facts}
