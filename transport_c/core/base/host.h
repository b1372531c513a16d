/* SPDX-License-Identifier: Apache-2.0
 *
 * The host of an op: what an op may ask of whoever holds its job, and what it tells there. The engine (core/face/) is
 * such a host, and hands its ut_host to each job at the start; a test is another, without an engine (tests/c/op/). So
 * the rooms below the engine call nothing by name that lies above them.
 */
#ifndef UT_HOST_H
#define UT_HOST_H

#include "core/base/receipt.h"
#include "core/base/work.h"

enum ut_event_kind {
    UT_EVENT_OP_DONE = 1,    /* a: status, b: elapsed ns, c: bytes missing */
    UT_EVENT_DESYNC,         /* host, a: field, b: value here, c: value there */
    UT_EVENT_BAD_SUBMISSION, /* session, a: error (as a positive number) */
    UT_EVENT_VIOLATION,      /* host: it acknowledged what was never sent, or broke its credit */
    UT_EVENT_DIVERGED,       /* a: mask of the hosts whose result differs from ours, b: of those that were compared */
    UT_EVENT_PATH,           /* host: a: 1 full packets do not get through to it and go in pieces, 0 they do again */
    UT_EVENT_READY,     /* partial jobs: the next op is op_seq; a: ranks here that have given for it, bit per place */
    UT_EVENT_ACTIVATED, /* partial jobs: op_seq has started here; host: initiator; a: ranks here that are in it */
};
typedef struct ut_event {
    uint32_t kind; /* enum ut_event_kind */
    uint32_t job;
    uint32_t session; /* UINT32_MAX where none */
    uint32_t host;    /* UINT32_MAX where none */
    uint64_t op_seq;
    uint64_t a, b, c;
} ut_event;

/* Counters since start; each datagram that comes in lands in exactly one of the packet classes marked *. */
typedef struct ut_stats {
    uint64_t data_sent, data_sent_bytes, data_resent, feedback_sent, probes_sent, bursts_sent; /* datagrams */
    uint64_t pieces_sent;       /* of data_sent: pieces of packets that are too large for their path */
    uint64_t packets_received;  /* = sum of the classes below, less stash_replayed */
    uint64_t data_used;         /* * folded or placed */
    uint64_t data_duplicate;    /* * a slot that was there already */
    uint64_t data_late;         /* * for an op or stage that has ended */
    uint64_t data_stashed;      /* * early: kept until its op opens here; counted again under one of the others then */
    uint64_t data_refused;      /* * authentic but impossible: range, stage, stash overflow */
    uint64_t data_pieces;       /* * of a packet of which more must come; its last piece counts as the packet does */
    uint64_t feedback_received; /* * */
    uint64_t feedback_old;      /* * overtaken by a newer one */
    uint64_t replayed;          /* * packet number seen before, or below the window */
    uint64_t unknown;           /* * no such connection id: another job, another life */
    uint64_t malformed;         /* * */
    uint64_t bad_checksum;      /* * */
    uint64_t stash_replayed;    /* stashed packets that were looked at again */
    uint64_t bytes_used, bytes_late, bytes_duplicate, bytes_repaired;
    uint64_t replicas_compared, replicas_differ; /* results of peers held against ours; of those, not the same */
    uint64_t ops_complete, ops_partial, ops_insufficient, ops_failed;
    uint64_t lost_packets;    /* declared lost by us as a sender */
    uint64_t spurious_losses; /* of those, acknowledged afterwards */
    uint64_t bad_submissions;
    uint64_t events_dropped;     /* the daemon had not taken UT_EVENTS_MAX older ones */
    uint64_t receipts_dropped;   /* the trainer had not taken those that its ring holds */
    uint64_t kernel_drops;       /* told by the driver */
    uint64_t progress;           /* moves whenever the engine does anything; the watchdog reads it */
    uint64_t oldest_open_ns;     /* start of the oldest open op; UT_NEVER if none */
    uint64_t oldest_deadline_ns; /* its deadline; UT_NEVER while only the engine's own work is left of it */
} ut_stats;

/* Functions are called from the thread that drives the engine, and must not call back into the op. What is asked for
 * each packet is a plain pointer or number. */
typedef struct ut_host {
    void *context;         /* the first argument of each function */
    ut_stats *counters;    /* of all jobs */
    ut_work *turn;         /* what passes over buckets may still cost in this turn */
    uint32_t segments_max; /* packets that one burst may hold */

    /* A trainer's call is answered. The receipt is copied; a session that has gone meanwhile is no mistake. */
    void (*complete)(void *context, uint32_t session, const ut_receipt *receipt);
    /* Something happened that the daemon should know of. The event is copied. */
    void (*emit)(void *context, const ut_event *event);
    /* Partial jobs: what a trainer's ring says of its contributions and of results (ut_completion_ring). */
    void (*tell)(void *context, uint32_t session, uint64_t taken, uint64_t freed, uint64_t results);
    /* Ops ended: calls that waited for room may be taken, later. */
    void (*room)(void *context);
    /* Attached ranks of |job| that have not called op |seq| and still may. */
    uint32_t (*sessions_due)(void *context, uint32_t job, uint64_t seq);
    /* Lowest op_seq that a rank of |job| has still to call; UINT64_MAX if there is none. */
    uint64_t (*next_call)(void *context, uint32_t job);
    /* Calls of |job| wait for room. */
    bool (*anyone_waits)(void *context, uint32_t job);
} ut_host;

#endif
