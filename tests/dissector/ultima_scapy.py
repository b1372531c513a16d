# SPDX-License-Identifier: Apache-2.0
"""Ultima's packets for scapy, written from transport_c/PROTOCOL.md and from nothing else.

A second implementation of the wire, by another reader of the same page: where it and the C code disagree, one of them
or the page is wrong. It dissects captures, builds packets for tests, and names everything about a packet that the page
does not allow. `bind_ports` makes scapy's own tools (sniff, rdpcap, show) speak it.
"""

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    FieldLenField,
    FieldListField,
    FlagsField,
    IntField,
    LongField,
    PacketListField,
    ShortField,
    XByteField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_layers

VERSION = 4
KIND_DATA, KIND_FEEDBACK, KIND_PIECE, KIND_GRANT, KIND_PATH, KIND_PARITY = 1, 2, 3, 4, 5, 6
DATA_HEADER, FEEDBACK_HEADER, PIECE_HEADER, GRANT_BYTES, PATH_BYTES, OP_RECORD = 32, 80, 16, 24, 24, 80
CHECKSUM_AT = 12
PIECES_MAX, PACKET_MAX = 8, 9216
RECORDS_MAX, WORDS_MAX = 4, 16
NOBODY = 0xFF
NOTHING_YET = 0xFFFFFFFF

DTYPES = {1: "float32", 2: "float64", 3: "float16", 4: "bfloat16", 5: "int32", 6: "int64", 7: "bytes"}
REDUCTIONS = {1: "sum", 2: "avg", 3: "min", 4: "max", 5: "prod"}
ALGORITHMS = {1: "tar", 2: "ring", 3: "bcube", 4: "ps", 5: "tree"}
COLLECTIVES = {
    0: "allreduce",
    1: "reduce_scatter",
    2: "all_gather",
    3: "broadcast",
    4: "all_to_all",
    5: "barrier",
    6: "allreduce_sparse",
    7: "allreduce_quant",
}
ALLREDUCE, REDUCE_SCATTER, BROADCAST, RELIABLE, BYTES, HOSTS_MAX = 0, 1, 3, 3, 7, 64
SPARSE, QUANT, FLOAT32 = 6, 7, 1
MODES = {1: "bounded", 2: "best_effort", 3: "reliable"}
POLICIES = {0: "none", 2: "full", 3: "solo", 4: "majority", 5: "quorum", 6: "probe", 7: "seeded", 8: "coded"}
TAR, TREE, CODED, SUM, AVG = 1, 5, 8, 1, 2
CODECS = {0: "none", 1: "hadamard"}


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc32c_table()


def crc32c(data: bytes) -> int:
    """CRC32C (Castagnoli) of |data|: crc32c(b"123456789") == 0xe3069283."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class _Checked(Packet):
    """A packet with a checksum over the whole datagram, its own four bytes taken as zero."""

    def post_build(self, header: bytes, payload: bytes) -> bytes:
        whole = header + payload
        if self.checksum is not None:
            return whole
        at = CHECKSUM_AT
        crc = crc32c(whole[:at] + bytes(4) + whole[at + 4 :])
        return whole[:at] + crc.to_bytes(4, "big") + whole[at + 4 :]


class UltimaData(_Checked):
    """Kind 1: one slot of a transfer. The payload follows as Raw."""

    name = "Ultima data"
    fields_desc = [
        BitField("version", VERSION, 4),
        BitField("kind", KIND_DATA, 4),
        FlagsField("flags", 0, 2, ["repair", "ask"]),
        BitField("sent_us", 0, 22),
        XIntField("connection", 0),
        IntField("number", 0),
        XIntField("checksum", None),
        BitField("op_high", 0, 28),
        BitEnumField("stage", 0, 1, {0: "scatter_reduce", 1: "broadcast"}),
        BitField("coverage", 1, 11),
        XShortField("view", 0),
        ShortField("bucket", 0),
        IntField("offset", 0),
        ShortField("timeout", 0),
        BitField("last", 0, 4),
        BitField("incast", 0, 4),
    ]

    def op_seq(self) -> int:
        """The op's number, of which the bucket id holds the low bits."""
        return int(self.op_high << 16 | self.bucket)

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        return Raw


class UltimaParity(UltimaData):
    """Kind 6: the sum of several slots. `timeout` holds which of its group it is, and how many members that has."""

    name = "Ultima parity"
    fields_desc = [UltimaData.fields_desc[0], BitField("kind", KIND_PARITY, 4), *UltimaData.fields_desc[2:]]


class UltimaRecord(Packet):
    """What a host says of one op."""

    name = "Ultima op record"
    fields_desc = [
        LongField("op_seq", 0),
        LongField("count", 0),
        ByteEnumField("dtype", 1, DTYPES),
        ByteEnumField("reduction", 1, REDUCTIONS),
        ByteEnumField("mode", 1, MODES),
        FlagsField("flags", 0, 8, ["bit0", "receive_done", "send_done", "failed", "masks", "digest", "active", "sent"]),
        ShortField("weight", 1),
        ByteField("field", 0),
        BitEnumField("algorithm", 1, 4, ALGORITHMS),
        BitEnumField("collective", 0, 3, COLLECTIVES),
        BitField("agree", 0, 1),
        IntField("left_us", NOTHING_YET),
        XIntField("digest", 0),
        XLongField("full_mask", 0),
        XLongField("any_mask", 0),
        XShortField("fresh", 0),
        XShortField("stale", 0),
        IntField("oldest_step", 0),
        ShortField("initiator", 0),
        ByteEnumField("policy", 0, POLICIES),
        XByteField("submitted", 0),
        XShortField("attached", 0),
        XShortField("view", 0),
        ShortField("group", 0),
        XByteField("form", 0),
        XByteField("portion", 0),
        IntField("hint", 0),
        XLongField("epoch", 0),
    ]

    def extract_padding(self, rest: bytes) -> tuple[bytes, bytes]:
        return b"", rest


class UltimaFeedback(_Checked):
    """Kind 2: cumulative news of one path, and of the ops that are open."""

    name = "Ultima feedback"
    fields_desc = [
        BitField("version", VERSION, 4),
        BitField("kind", KIND_FEEDBACK, 4),
        ByteField("flags", 0),
        FieldLenField("record_count", None, fmt="B", count_of="records"),
        ByteField("incast", 0),
        XIntField("connection", 0),
        IntField("number", 0),
        XIntField("checksum", None),
        LongField("grant", 0),
        LongField("received", 0),
        LongField("receive_floor", 0),
        LongField("send_floor", 0),
        IntField("highest", 0),
        IntField("marked", 0),
        IntField("drops", 0),
        IntField("echo_us", NOTHING_YET),
        IntField("hold_us", 0),
        ByteField("nothing_yet", 0),
        FieldLenField("word_count", None, fmt="B", count_of="words"),
        ShortField("missed", 0),
        IntField("state", 0),
        IntField("state_seen", 0),
        PacketListField("records", [], UltimaRecord, count_from=lambda packet: packet.record_count),
        FieldListField("words", [], XLongField("", 0), count_from=lambda packet: packet.word_count),
    ]

    def loss(self) -> float:
        """Share of its bytes that the sender still misses after repair."""
        return int(self.missed) / 2**15

    def acknowledged(self) -> list[int]:
        """Packet numbers (mod 2^32) that came, newest first."""
        bits = ((64 * w + i, word >> i & 1) for w, word in enumerate(self.words) for i in range(64))
        return [(self.highest - back) % 2**32 for back, bit in bits if bit]


class UltimaPiece(_Checked):
    """Kind 3: a part of a data packet that is too large for its path. Its bytes follow as Raw."""

    name = "Ultima piece"
    fields_desc = [
        BitField("version", VERSION, 4),
        BitField("kind", KIND_PIECE, 4),
        ByteField("index", 0),
        ShortField("whole", 0),
        XIntField("connection", 0),
        IntField("number", 0),
        XIntField("checksum", None),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        return Raw


class UltimaGrant(_Checked):
    """Kind 4: credit alone."""

    name = "Ultima grant"
    fields_desc = [
        BitField("version", VERSION, 4),
        BitField("kind", KIND_GRANT, 4),
        ByteField("flags", 0),
        ShortField("reserved", 0),
        XIntField("connection", 0),
        IntField("number", 0),
        XIntField("checksum", None),
        LongField("grant", 0),
    ]


class UltimaPath(_Checked):
    """Kind 5: asks whether a peer can be reached at an address, or answers."""

    name = "Ultima path"
    fields_desc = [
        BitField("version", VERSION, 4),
        BitField("kind", KIND_PATH, 4),
        ByteField("what", 1),
        ShortField("reserved", 0),
        XIntField("connection", 0),
        IntField("number", 0),
        XIntField("checksum", None),
        XLongField("token", 0),
    ]


class UltimaUnknown(Packet):
    """A datagram on Ultima's ports that is none of the kinds above."""

    name = "Ultima unknown"


def packet_class(data: bytes) -> type[Packet]:
    """Which layer |data| is, by its first byte and its least length."""
    first = data[0] if data else 0
    if first == VERSION << 4 | KIND_DATA and len(data) > DATA_HEADER:
        return UltimaData
    if first == VERSION << 4 | KIND_PARITY and len(data) > DATA_HEADER:
        return UltimaParity
    if first == VERSION << 4 | KIND_FEEDBACK and len(data) >= FEEDBACK_HEADER:
        return UltimaFeedback
    if first == VERSION << 4 | KIND_PIECE and len(data) > PIECE_HEADER:
        return UltimaPiece
    if first == VERSION << 4 | KIND_GRANT and len(data) == GRANT_BYTES:
        return UltimaGrant
    if first == VERSION << 4 | KIND_PATH and len(data) == PATH_BYTES:
        return UltimaPath
    return UltimaUnknown


class Ultima(Packet):
    """Dispatches on the first byte; never appears in a dissected packet itself."""

    @classmethod
    def dispatch_hook(cls, data: bytes | None = None, *arguments: object, **options: object) -> type[Packet]:
        return packet_class(data or b"")


def dissect(data: bytes) -> Packet:
    """|data| is one UDP payload. What is no packet of ours comes back as UltimaUnknown."""
    return packet_class(data)(data)


def bind_ports(*ports: int) -> None:
    """Makes scapy dissect UDP datagrams from and to |ports| as Ultima's."""
    for port in ports:
        bind_layers(UDP, Ultima, dport=port)
        bind_layers(UDP, Ultima, sport=port)


def problems(data: bytes) -> list[str]:
    """All that PROTOCOL.md does not allow in the datagram |data|; empty for a good one."""
    packet = dissect(data)
    if isinstance(packet, UltimaUnknown):
        return [f"unknown packet of {len(data)} bytes, begins with {data[:2].hex() or 'nothing'}"]
    if isinstance(packet, UltimaData):
        found = _data_problems(packet)
    elif isinstance(packet, UltimaPiece):
        found = _piece_problems(packet)
    elif isinstance(packet, UltimaGrant):
        found = ["flags and reserved: 0"] if packet.flags or packet.reserved else []
    elif isinstance(packet, UltimaPath):
        rules = [(packet.what in (1, 2), f"what {packet.what}: 1 or 2"), (packet.reserved == 0, "reserved: 0")]
        found = [complaint for holds, complaint in rules if not holds]
    else:
        found = _feedback_problems(packet, len(data))
    at = CHECKSUM_AT
    crc = crc32c(data[:at] + bytes(4) + data[at + 4 :])
    if crc != packet.checksum:
        found.append(f"checksum is {packet.checksum:#010x}, computed {crc:#010x}")
    return found


def _data_problems(packet: UltimaData) -> list[str]:
    rules = [
        (packet.stage or packet.coverage >= 1, "coverage 0 in stage 1: 1 to 2047"),
        (packet.last in (0, 1, 15), f"last%ile {packet.last}: 0, 1 or 15"),
    ]
    return [complaint for holds, complaint in rules if not holds]


def _piece_problems(packet: UltimaPiece) -> list[str]:
    rules = [
        (packet.index < PIECES_MAX, f"piece {packet.index}: 0 to {PIECES_MAX - 1}"),
        (DATA_HEADER < packet.whole <= PACKET_MAX, f"of {packet.whole} bytes: {DATA_HEADER + 1} to {PACKET_MAX}"),
    ]
    return [complaint for holds, complaint in rules if not holds]


def _feedback_problems(packet: UltimaFeedback, length: int) -> list[str]:
    expected = FEEDBACK_HEADER + OP_RECORD * packet.record_count + 8 * packet.word_count
    echo, none = packet.echo_us, packet.echo_us == NOTHING_YET
    rules = [
        (packet.flags == 0, f"flags {int(packet.flags):#04x}: none exists"),
        (packet.record_count <= RECORDS_MAX, f"{packet.record_count} op records: 0 to {RECORDS_MAX}"),
        (packet.word_count <= WORDS_MAX, f"{packet.word_count} acknowledgement words: 0 to {WORDS_MAX}"),
        (packet.nothing_yet == 0, f"offset 68 holds {packet.nothing_yet}: 0"),
        (packet.missed <= 2**15, f"loss {packet.missed}: 32768 at most"),
        (echo < 2**22 or none, f"echoed time {echo:#x}: 22 bits, or all ones"),
        (length == expected, f"{length} bytes: {expected} with these records and words"),
    ]
    found = [complaint for holds, complaint in rules if not holds]
    if length != expected:
        return found  # what stands in the records is anybody's guess
    for record in packet.records:
        found += [f"op {record.op_seq}: {complaint}" for complaint in _record_problems(record)]
    return found


def _reduction_rule(record: UltimaRecord) -> tuple[bool, str]:
    reduction = record.reduction
    if record.collective in (SPARSE, QUANT):
        return reduction in (SUM, AVG) and record.dtype == FLOAT32, f"reduction {reduction}: 1 or 2, and of float32"
    if record.collective in (ALLREDUCE, REDUCE_SCATTER):
        holds = reduction in REDUCTIONS and record.dtype != BYTES
        return holds, f"reduction {reduction} of dtype {record.dtype}: 1 to {max(REDUCTIONS)}, and not of bytes"
    if record.collective == BROADCAST:
        return reduction < HOSTS_MAX, f"root {reduction}: 0 to {HOSTS_MAX - 1}"
    return reduction == 0, f"reduction {reduction}: 0 where nothing is reduced"


def _ready_problems(record: UltimaRecord) -> list[str]:
    """Of a partial job's op that has not started: who is ready, and nothing of what it will be."""
    shape = (record.count, record.dtype, record.reduction, record.mode, record.flags, record.digest, record.full_mask)
    rules = [
        (not any(int(value) for value in shape), "a shape or a result of an op that has not started"),
        (record.weight == int(record.fresh).bit_count(), f"weight {record.weight}: as many as are ready"),
        (not (record.stale or record.submitted or record.view or record.epoch), "what only a started op can say"),
        (not (record.group or record.form or record.hint or record.portion), "what only other ops say"),
    ]
    return [complaint for holds, complaint in rules if not holds]


def _partial_problems(record: UltimaRecord) -> list[str]:
    slots = record.fresh | record.stale
    said = (record.stale, record.oldest_step, record.initiator, record.submitted, record.flags & 0x40)
    told = not record.fresh or record.weight == int(record.fresh).bit_count() or record.flags & 0x08
    rules = [
        (record.policy in POLICIES, f"policy {record.policy}: 0 or 2 to {max(POLICIES)}"),
        (record.policy or not any(int(value) for value in said), "the words of a partial job, without a policy"),
        (record.policy or told, f"weight {record.weight}: as many as there are local ranks in it"),
    ]
    if record.policy:
        ways = 0x4A if record.policy == CODED else 0x42
        rules += [
            (record.collective == ALLREDUCE, "only allreduce is partial"),
            (
                record.algorithm == TAR or (record.algorithm, record.policy) == (TREE, CODED),
                f"algorithm {record.algorithm}: 1 in a partial job, or 5 in a coded one",
            ),
            (record.reduction in (SUM, AVG), f"reduction {record.reduction}: 1 or 2 in a partial job"),
            (record.fresh & record.stale == 0, "a slot that is both fresh and stale"),
            (record.weight == int(slots).bit_count(), f"weight {record.weight}: as many as have given"),
            (record.initiator in (*range(HOSTS_MAX), 0xFFFF), f"initiator {record.initiator}: a host, or 0xffff"),
            (record.submitted & ~ways == 0, f"submitted {record.submitted:#04x}: {ways:#04x} at most"),
        ]
    return [complaint for holds, complaint in rules if not holds]


def _is_portion(record: UltimaRecord) -> bool:
    portions, at = divmod(int(record.portion), 16)
    if not record.portion:
        return True
    return record.collective in (ALLREDUCE, QUANT) and not record.policy and 2 <= portions <= 4 and at < portions


def _record_problems(record: UltimaRecord) -> list[str]:
    if record.policy and not record.flags & 0x40:
        return _ready_problems(record)
    sparse, quant = record.collective == SPARSE, record.collective == QUANT
    reduced = sparse or quant or record.collective == ALLREDUCE
    answer, given = divmod(int(record.form), 16)
    spares_some = record.algorithm in (TAR, TREE) and (sparse or quant or (reduced and record.mode != RELIABLE))
    rules = [
        (record.dtype in DTYPES, f"dtype {record.dtype}: 1 to {max(DTYPES)}"),
        _reduction_rule(record),
        (record.mode in MODES, f"mode {record.mode}: 1 to {max(MODES)}"),
        (record.collective in COLLECTIVES, f"collective {record.collective}: 0 to {max(COLLECTIVES)}"),
        (reduced or record.mode == RELIABLE, f"mode {record.mode}: only allreduce has others"),
        (record.view == 0 or spares_some, f"view {record.view:#06x}: 0 but in TAR's allreduce, not reliable"),
        (record.epoch == 0 or spares_some, f"epoch {record.epoch:#x}: 0 but in TAR's allreduce, not reliable"),
        (reduced or not record.agree, "agree: only allreduce has it"),
        (record.flags & 0x20 or record.digest == 0, "digest: 0 without flag 0x20"),
        (record.algorithm in ALGORITHMS, f"algorithm {record.algorithm}: 1 to {max(ALGORITHMS)}"),
        (record.field <= (15 if record.flags & 0x08 else 0), f"field {record.field}: 0 to 15, and 0 without flag 0x08"),
        (
            (1 <= record.group <= 256 and record.form <= 3)
            if sparse
            else not (record.group or record.hint or (record.form and not quant)),
            f"group {record.group}, form {record.form}, hint {record.hint}: only of sparse ops, 1 to 256 and 0 to 3",
        ),
        (not quant or 4 <= answer <= given <= 6, f"forms {record.form:#04x}: 4 to 6 twice, answers the finer ones"),
        (_is_portion(record), f"portion {record.portion:#04x}: 0, or one of 2 to 4 of an allreduce without a policy"),
        (record.field or record.full_mask & ~record.any_mask == 0, "a host in every byte that is not in any"),
    ]
    return [complaint for holds, complaint in rules if not holds] + _partial_problems(record)
