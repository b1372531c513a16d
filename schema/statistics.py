# SPDX-License-Identifier: Apache-2.0
"""What an engine, its driver and each path count: counters since start, unless their text says otherwise."""

from __future__ import annotations

from schema.rows import Counter, Struct

STATS = Struct(
    "ut_stats",
    (
        Counter("Data packets sent.", c="uint64_t data_sent", at=0),
        Counter("Bytes of those datagrams, headers included.", c="uint64_t data_sent_bytes", at=8),
        Counter("How many of them were repairs.", c="uint64_t data_resent", at=16),
        Counter("Feedbacks sent.", c="uint64_t feedback_sent", at=24),
        Counter("Grants sent.", c="uint64_t grants_sent", at=32),
        Counter("Probes sent: packets that ask whether the last ones came.", c="uint64_t probes_sent", at=40),
        Counter(
            "Bursts, of one packet or more, that data packets and pieces were handed over in.",
            c="uint64_t bursts_sent",
            at=48,
        ),
        Counter(
            "How many of data_sent are pieces of packets too large for their path.", c="uint64_t pieces_sent", at=56
        ),
        Counter(
            "Datagrams received: the sum of the classes less stash_replayed.", c="uint64_t packets_received", at=64
        ),
        Counter("Data packets that were folded or placed.", c="uint64_t data_used", at=72, packet_class=True),
        Counter("Data packets whose place was filled already.", c="uint64_t data_duplicate", at=80, packet_class=True),
        Counter("Data packets for an op or stage that has ended.", c="uint64_t data_late", at=88, packet_class=True),
        Counter(
            "Data packets that came early and are kept until their op opens here; then they are "
            "counted again under one of the others.",
            c="uint64_t data_stashed",
            at=96,
            packet_class=True,
        ),
        Counter(
            "Authentic data packets that are impossible: range, stage, no room to keep them.",
            c="uint64_t data_refused",
            at=104,
            packet_class=True,
        ),
        Counter(
            "Pieces of a packet of which more must come; its last piece counts as the packet.",
            c="uint64_t data_pieces",
            at=112,
            packet_class=True,
        ),
        Counter("Feedbacks and grants that were new.", c="uint64_t feedback_received", at=120, packet_class=True),
        Counter("Feedbacks overtaken by a newer one.", c="uint64_t feedback_old", at=128, packet_class=True),
        Counter(
            "Datagrams whose packet number was seen before, or is too old to tell.",
            c="uint64_t replayed",
            at=136,
            packet_class=True,
        ),
        Counter(
            "Datagrams with no known connection id: of another job, or of another life.",
            c="uint64_t unknown",
            at=144,
            packet_class=True,
        ),
        Counter(
            "Datagrams that are too short, of another version, or inconsistent in themselves.",
            c="uint64_t malformed",
            at=152,
            packet_class=True,
        ),
        Counter("Datagrams whose checksum or tag is wrong.", c="uint64_t bad_checksum", at=160, packet_class=True),
        Counter("Kept packets that were looked at again.", c="uint64_t stash_replayed", at=168),
        Counter("Bytes of payload that were folded or placed.", c="uint64_t bytes_used", at=176),
        Counter("Bytes of payload that came too late.", c="uint64_t bytes_late", at=184),
        Counter("Bytes of payload that came again.", c="uint64_t bytes_duplicate", at=192),
        Counter("How many of the used bytes came as repairs.", c="uint64_t bytes_repaired", at=200),
        Counter("Results of peers that were compared with ours.", c="uint64_t replicas_compared", at=208),
        Counter("How many of them differ.", c="uint64_t replicas_differ", at=216),
        Counter("Ops that ended COMPLETE.", c="uint64_t ops_complete", at=224),
        Counter("Ops that ended PARTIAL.", c="uint64_t ops_partial", at=232),
        Counter("Ops that ended INSUFFICIENT.", c="uint64_t ops_insufficient", at=240),
        Counter("Ops that ended FAILED.", c="uint64_t ops_failed", at=248),
        Counter("Packets that this host sent and took for lost.", c="uint64_t lost_packets", at=256),
        Counter("How many of those were acknowledged afterwards.", c="uint64_t spurious_losses", at=264),
        Counter("Calls of trainers that were refused.", c="uint64_t bad_submissions", at=272),
        Counter(
            "Events lost because the daemon had not taken the older ones.",
            c="uint64_t events_dropped",
            at=280,
        ),
        Counter(
            "Receipts lost because the trainer had not taken those that its ring holds.",
            c="uint64_t receipts_dropped",
            at=288,
        ),
        Counter("Datagrams that the kernel dropped, as the driver tells.", c="uint64_t kernel_drops", at=296),
        Counter("Rises whenever the engine does anything; the watchdog reads it.", c="uint64_t progress", at=304),
        Counter(
            "Start of the oldest open op; UT_NEVER if there is none.", c="uint64_t oldest_open_ns", at=312, least=True
        ),
        Counter(
            "Its deadline; UT_NEVER while only the engine's own work is left of it.",
            c="uint64_t oldest_deadline_ns",
            at=320,
            least=True,
        ),
        Counter(
            "Bytes a second at which data arrive at best, by which grants go out; 0: not known yet.",
            c="uint64_t arrival_rate",
            at=328,
            largest=True,
        ),
        Counter(
            "Bytes of receive buffer that suffice for that rate and for how late this host is; 0: not known yet.",
            c="uint64_t receive_wanted",
            at=336,
            largest=True,
        ),
        Counter(
            "Path packets sent: they ask whether a peer is where its packets come from, or answer.",
            c="uint64_t path_sent",
            at=344,
        ),
        Counter("Ports of peers that were followed to a new address.", c="uint64_t path_moves", at=352),
        Counter("How many of data_sent are parity of packets before them.", c="uint64_t parity_sent", at=360),
        Counter("Parity packets that came.", c="uint64_t data_parity", at=368, packet_class=True),
        Counter(
            "Data packets that did not come and were made of parity; their bytes are used ones.",
            c="uint64_t data_rebuilt",
            at=376,
        ),
    ),
    384,
)

DRIVER_STATS = Struct(
    "ut_driver_stats",
    (
        Counter("What the engine counts.", c="ut_stats engine", at=0),
        Counter("System calls that sent.", c="uint64_t send_calls", at=384),
        Counter("System calls that received.", c="uint64_t receive_calls", at=392),
        Counter("How often the thread waited for something to do.", c="uint64_t polls", at=400),
        Counter("Times that a socket was full, and its bursts waited for room.", c="uint64_t send_blocked", at=408),
        Counter(
            "How often the data socket was asked what stands in the host's own queue.", c="uint64_t send_looks", at=416
        ),
        Counter(
            "Kernel's bytes a second that leave that queue, as measured; 0: nothing stands there.",
            c="uint64_t send_drain_rate",
            at=424,
            largest=True,
        ),
        Counter(
            "Bytes of data a second that are handed to it at most; 0: it is not paced.",
            c="uint64_t send_pace",
            at=432,
            largest=True,
        ),
        Counter(
            "The most bytes that stood there after a sending, since a rate is known.",
            c="uint64_t send_queued_max",
            at=440,
            largest=True,
        ),
        Counter(
            "Datagrams that the kernel refused; they count as lost in the network.", c="uint64_t send_errors", at=448
        ),
        Counter("Why the last of them was refused; 0 if none was.", c="uint64_t send_errno", at=456, largest=True),
        Counter("Receives that the kernel refused.", c="uint64_t receive_errors", at=464),
        Counter("Receives that held more than one datagram.", c="uint64_t gro_batches", at=472),
        Counter("CPU time of the engine's thread.", c="uint64_t cpu_ns", at=480),
        Counter("How often that thread went to another CPU.", c="uint64_t thread_moves", at=488),
        Counter("Allocations on the data path since start; always 0.", c="uint64_t allocations", at=496),
    ),
    504,
)

PEER_STATS = Struct(
    "ut_peer_stats",
    (
        Counter("1 once it is connected and not absent.", c="uint32_t up", at=0, python="up: bool = False"),
        Counter("Nothing yet.", c="uint32_t reserved", at=4),
        Counter("Smoothed round trip; 0: not known.", c="uint64_t srtt_ns", at=8, python="srtt_ns: int = 0"),
        Counter(
            "Bytes of datagrams of data sent to it.",
            c="uint64_t sent_bytes",
            at=16,
            proto=4,
            python="sent_bytes: int = 0",
        ),
        Counter(
            "Bytes of datagrams of data received from it.",
            c="uint64_t received_bytes",
            at=24,
            proto=5,
            python="received_bytes: int = 0",
        ),
        Counter(
            "How many of the sent bytes were lost.",
            c="uint64_t lost_bytes",
            at=32,
            proto=6,
            python="lost_bytes: int = 0",
        ),
        Counter(
            "Congestion window in bytes; NEVER, the largest number, where there is none.",
            c="uint64_t window_bytes",
            at=40,
            proto=8,
            python="window_bytes: int = NEVER",
        ),
        Counter(
            "Least round trip of the last seconds; 0: not known.",
            c="uint64_t base_rtt_ns",
            at=48,
            python="base_rtt_ns: int = 0",
        ),
        Counter(
            "Packets sent that were marked on the way (ECN).",
            c="uint64_t ce_packets",
            at=56,
            proto=10,
            python="ce_packets: int = 0",
        ),
        Counter(
            "How often the congestion control has reduced its window.",
            c="uint64_t window_cuts",
            at=64,
            python="window_cuts: int = 0",
        ),
        Counter(
            "Data packets sent since the path was made.",
            c="uint64_t sent_packets",
            at=72,
            proto=11,
            python="sent_packets: int = 0",
        ),
        Counter(
            "Feedbacks and grants sent since the path was made.",
            c="uint64_t feedbacks_sent",
            at=80,
            proto=12,
            python="feedbacks_sent: int = 0",
        ),
        Counter(
            "Feedbacks and grants that came at the feedback port.",
            c="uint64_t feedbacks_heard",
            at=88,
            proto=13,
            python="feedbacks_heard: int = 0",
        ),
        Counter(
            "Feedbacks and grants that came at the data port, beside data.",
            c="uint64_t feedbacks_beside",
            at=96,
            proto=17,
            python="feedbacks_beside: int = 0",
        ),
    ),
    104,
)
