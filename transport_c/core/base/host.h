/* SPDX-License-Identifier: Apache-2.0
 *
 * The host of an op is the program part that holds the op's job (and no machine): ut_host is what an op may ask of it
 * and tell it. The engine (core/face/) is such a host, and hands its ut_host to each job at the start; a test is
 * another one, without an engine (tests/c/op/). So the rooms below the engine call nothing by name that lies above
 * them.
 */
#ifndef UT_HOST_H
#define UT_HOST_H

#include "core/base/receipt.h"
#include "core/base/what.h"
#include "core/base/work.h"

enum ut_event_kind {
    /* generated: ut_event_kind (schema/) */
    /* An op has ended here; host: culprit; a: status; b: ns; c: bytes missing; d: of the bucket; e: ut_event_what. */
    UT_EVENT_OP_DONE = 1,
    UT_EVENT_DESYNC = 2,         /* hosts mean different ops; host; a: field; b: value here; c: value there */
    UT_EVENT_BAD_SUBMISSION = 3, /* a call was refused; session; a: error, as a positive number */
    UT_EVENT_VIOLATION = 4,      /* a host acknowledged what was never sent, or broke its credit; host */
    /* Results differ; a: mask of the hosts whose result differs from ours; b: mask of those compared. */
    UT_EVENT_DIVERGED = 5,
    /* What a path carries has changed; host; a: 1 full packets do not get through to it and go in pieces, 0 they do
     * again. */
    UT_EVENT_PATH = 6,
    /* Partial jobs: the next op is op_seq; a: ranks here that have given for it, a bit per local one; 0 while it is
     * held back. */
    UT_EVENT_READY = 7,
    /* Partial jobs: op_seq has started here; host: initiator; a: ranks here that are in it; b: of a coded job: the
     * step. */
    UT_EVENT_ACTIVATED = 8,
    /* A quantised op has ended here; a: its forms; b: bytes of payload sent; c: received; d: bytes of the array due
     * from other hosts that came. */
    UT_EVENT_QUANT = 9,
    /* A port of a host has another address now; host; a: 0 data, 1 feedback; b to e: the address, as it lies in
     * memory. */
    UT_EVENT_PATH_MOVED = 10,
    /* generated: end */
};
typedef struct ut_event {
    /* generated: ut_event (schema/) */
    uint32_t kind;    /* enum ut_event_kind, which says what a to e are */
    uint32_t job;     /* number of the job in the engine */
    uint32_t session; /* number of the session; UINT32_MAX where there is none */
    uint32_t host;    /* index of the host in the job; UINT32_MAX where there is none */
    uint64_t op_seq;  /* number of the op */
    uint64_t a;       /* see the kind */
    uint64_t b;
    uint64_t c;
    uint64_t d;
    uint64_t e;
    ut_ns at; /* when the shell heard of it, which is what fills it in */
    /* generated: end */
} ut_event;

/* What an op was and what its culprit has, in one number: a byte each, the collective lowest, the portion highest. */
static inline uint64_t ut_event_what(const ut_op_what *what, unsigned trouble)
{
    return what->collective | (unsigned)what->dtype << 8 | (unsigned)what->redop << 16 | (uint64_t)trouble << 24 |
           (uint64_t)what->portion << 32;
}

/* Counters since start. */
typedef struct ut_stats {
    /* generated: ut_stats (schema/) */
    uint64_t data_sent;        /* data packets sent */
    uint64_t data_sent_bytes;  /* bytes of those datagrams, headers included */
    uint64_t data_resent;      /* how many of them were repairs */
    uint64_t feedback_sent;    /* feedbacks sent */
    uint64_t grants_sent;      /* grants sent */
    uint64_t probes_sent;      /* probes sent: packets that ask whether the last ones came */
    uint64_t bursts_sent;      /* bursts, of one packet or more, that data packets and pieces were handed over in */
    uint64_t pieces_sent;      /* how many of data_sent are pieces of packets too large for their path */
    uint64_t packets_received; /* datagrams received: the sum of the classes less stash_replayed */
    uint64_t data_used;        /* data packets that were folded or placed */
    uint64_t data_duplicate;   /* data packets whose place was filled already */
    uint64_t data_late;        /* data packets for an op or stage that has ended */
    /* Data packets that came early and are kept until their op opens here; then they are counted again under one of the
     * others. */
    uint64_t data_stashed;
    uint64_t data_refused;       /* authentic data packets that are impossible: range, stage, no room to keep them */
    uint64_t data_pieces;        /* pieces of a packet of which more must come; its last piece counts as the packet */
    uint64_t feedback_received;  /* feedbacks and grants that were new */
    uint64_t feedback_old;       /* feedbacks overtaken by a newer one */
    uint64_t replayed;           /* datagrams whose packet number was seen before, or is too old to tell */
    uint64_t unknown;            /* datagrams with no known connection id: of another job, or of another life */
    uint64_t malformed;          /* datagrams that are too short, of another version, or inconsistent in themselves */
    uint64_t bad_checksum;       /* datagrams whose checksum or tag is wrong */
    uint64_t stash_replayed;     /* kept packets that were looked at again */
    uint64_t bytes_used;         /* bytes of payload that were folded or placed */
    uint64_t bytes_late;         /* bytes of payload that came too late */
    uint64_t bytes_duplicate;    /* bytes of payload that came again */
    uint64_t bytes_repaired;     /* how many of the used bytes came as repairs */
    uint64_t replicas_compared;  /* results of peers that were compared with ours */
    uint64_t replicas_differ;    /* how many of them differ */
    uint64_t ops_complete;       /* ops that ended COMPLETE */
    uint64_t ops_partial;        /* ops that ended PARTIAL */
    uint64_t ops_insufficient;   /* ops that ended INSUFFICIENT */
    uint64_t ops_failed;         /* ops that ended FAILED */
    uint64_t lost_packets;       /* packets that this host sent and took for lost */
    uint64_t spurious_losses;    /* how many of those were acknowledged afterwards */
    uint64_t bad_submissions;    /* calls of trainers that were refused */
    uint64_t events_dropped;     /* events lost because the daemon had not taken the older ones */
    uint64_t receipts_dropped;   /* receipts lost because the trainer had not taken those that its ring holds */
    uint64_t kernel_drops;       /* datagrams that the kernel dropped, as the driver tells */
    uint64_t progress;           /* rises whenever the engine does anything; the watchdog reads it */
    uint64_t oldest_open_ns;     /* start of the oldest open op; UT_NEVER if there is none */
    uint64_t oldest_deadline_ns; /* its deadline; UT_NEVER while only the engine's own work is left of it */
    /* Bytes a second at which data arrive at best, by which grants go out; 0: not known yet. */
    uint64_t arrival_rate;
    /* Bytes of receive buffer that suffice for that rate and for how late this host is; 0: not known yet. */
    uint64_t receive_wanted;
    /* Path packets sent: they ask whether a peer is where its packets come from, or answer. */
    uint64_t path_sent;
    uint64_t path_moves;  /* ports of peers that were followed to a new address */
    uint64_t parity_sent; /* how many of data_sent are parity of packets before them */
    uint64_t data_parity; /* parity packets that came */
    /* Data packets that did not come and were made of parity; their bytes are used ones. */
    uint64_t data_rebuilt;
    /* generated: end */
} ut_stats;

/* The sum of the classes of datagrams. Each datagram that comes in is counted in exactly one of them; one that is
 * looked at again (`stash_replayed`) is counted once more. */
static inline uint64_t ut_stats_classes(const ut_stats *s)
{
    /* generated: classes of datagrams (schema/) */
    return s->data_used + s->data_duplicate + s->data_late + s->data_stashed + s->data_refused + s->data_pieces +
           s->feedback_received + s->feedback_old + s->replayed + s->unknown + s->malformed + s->bad_checksum +
           s->data_parity;
    /* generated: end */
}

/* The functions are called from the thread that drives the engine, and must not call back into the op. What an op needs
 * for each packet is a plain pointer or number. */
typedef struct ut_host {
    void *context;            /* the first argument of each function */
    ut_stats *counters;       /* of all jobs */
    ut_work *turn;            /* how much work on buckets this turn may still do */
    uint32_t segments_max;    /* packets that one burst may hold */
    struct ut_cap_taker *cap; /* what this host may send in all (core/link/cap.h); NULL: anything */

    /* Answers a trainer's call. The receipt is copied. The session may have gone meanwhile. */
    void (*complete)(void *context, uint32_t session, const ut_receipt *receipt);
    /* Tells the daemon of an event, which is copied. */
    void (*emit)(void *context, const ut_event *event);
    /* Partial jobs: sets what a trainer's ring says of its contributions and of results (ut_completion_ring). */
    void (*tell)(void *context, uint32_t session, uint64_t taken, uint64_t freed, uint64_t results);
    /* Tells that ops have ended, so that calls which wait for room can be taken later. */
    void (*room)(void *context);
    /* Returns how many attached ranks of |job| have not called op |seq| and still may. */
    uint32_t (*sessions_due)(void *context, uint32_t job, uint64_t seq);
    /* Returns the lowest op_seq that a rank of |job| has still to call; UINT64_MAX if there is none. */
    uint64_t (*next_call)(void *context, uint32_t job);
    /* Returns the place, among the ranks of this host, of the one that calls by |session|. */
    uint32_t (*place_of)(void *context, uint32_t session);
    /* Returns whether calls of |job| wait for room. */
    bool (*anyone_waits)(void *context, uint32_t job);
} ut_host;

#endif
