/* SPDX-License-Identifier: Apache-2.0
 *
 * A job: what lasts across its ops, and how to reach its other hosts. Several ops of a job are open at once; each of
 * them lies in `op`, with everything that a packet of it can ask for.
 */
#ifndef UT_JOB_H
#define UT_JOB_H

#include "core/base/bits.h"
#include "core/base/carve.h"
#include "core/base/host.h"
#include "core/base/options.h"
#include "core/base/work.h"
#include "core/codec/hadamard.h"
#include "core/epoch/epoch.h"
#include "core/fold/ordered.h"
#include "core/ledger/ledger.h"
#include "core/link/pool.h"
#include "core/link/tokens.h"
#include "core/op/gathering.h"
#include "core/op/parts.h"
#include "core/op/timing.h"
#include "core/path/conn.h"
#include "core/path/incast.h"
#include "core/plan/schedule.h"
#include "core/plan/transfer.h"
#include "core/wire/pieces.h"

typedef struct ut_job ut_job;

struct ut_job {
    uint32_t number;
    const ut_host *host;
    ut_job_config config;
    ut_frame frame;     /* sizes of the job's datagrams */
    uint32_t payload;   /* bytes of payload in a full data packet */
    uint32_t world;     /* ranks of the job */
    uint64_t next_open; /* op_seq below which every op has been opened here */
    bool parity_due;    /* parity packets may wait for their turn */
    bool op_ended;      /* since the last turn */
    uint64_t awaited;   /* mask of the hosts that have said that they go and come back: op_pause.c */
    uint64_t back;      /* mask of those of them that have another path, on which nothing was heard yet */
    bool held;          /* this host goes itself: since `held_at` it opens no op more */
    ut_ns held_at;
    uint64_t rx_floor; /* op_seq below which every op has ended here */
    ut_ledger ledger;  /* what the other hosts have claimed of the job's ops */
    ut_timing timing;
    ut_incast incast;
    uint16_t attached; /* the ranks of this host that have a trainer, bit per place */
    ut_tokens tokens;  /* what the administrator lets it send */
    ut_hadamard_losses losses;
    const ut_codec *codec; /* in which its ops travel, if they fit and the hosts have agreed on it */
    ut_epochs epochs;
    const ut_gathering *gathering;
    ut_ordered *ordered;        /* memory of ut_fold_ordered, one for each of `op`; NULL: sums are made as they come */
    struct ut_partial *partial; /* what only a partial job knows; NULL in other jobs */
    ut_job_account account;
    ut_op op[UT_OPS_MAX];
    uint32_t largest[UT_OPS_MAX]; /* packets of the largest transfer into this host, of each of the newest ops */
    ut_conn *conn;                /* one for each host of the job; this host's own is unused */
};

static inline ut_op *ut_job_op(ut_job *j, uint64_t seq)
{
    return &j->op[seq % UT_OPS_MAX];
}

/* Whether data of op |seq| is kept until the op opens here. What is kept for one that may never come would take the
 * sender's credit for good. */
static inline bool ut_job_is_to_come(const ut_job *j, uint64_t seq)
{
    const ut_op *op = &j->op[seq % UT_OPS_MAX];
    bool begins = op->seq == seq && (op->state == UT_OP_GATHERING || op->state == UT_OP_OPENING);
    return begins || (seq >= j->next_open && seq < j->next_open + j->gathering->early);
}

/* The oldest op that is open or lingers, of those after |before|, or of all where that is NULL; NULL: there is none.
 * Numbers may be left out between two of them. */
ut_op *ut_job_op_after(ut_job *j, const ut_op *before);

/* What a decoder must check: the checksum, or nothing where a cipher's tag was checked already. */
static inline enum ut_check ut_job_check(const ut_job *j)
{
    return j->config.cipher ? UT_CHECK_NOTHING : UT_CHECK_SUM;
}

static inline unsigned ut_job_algorithm(const ut_job *j)
{
    return ut_options_algorithm(&j->config.options);
}

/* The options that hold in the next op. */
static inline const ut_job_options *ut_job_options_now(const ut_job *j)
{
    return &ut_epoch_at(&j->epochs, j->next_open)->options;
}

/* Full packets that are kept of each peer if they come before their op is open here. */
static inline uint32_t ut_job_keeps(const ut_job *j)
{
    return (uint32_t)(j->conn[0].rx.stash_size / (j->config.packet_bytes + sizeof(uint16_t)));
}

/* Slots that the largest bucket has at most, however it is cut. */
size_t ut_job_slots(const ut_job_config *config);
/* Lays out a job of |config|, which was checked, in |c|'s memory; contributions to its ops come together as |gathering|
 * says. |early| bytes of early packets of each peer are kept. Returns NULL while |c| only counts. */
ut_job *ut_job_lay_out(ut_carver *c, const ut_job_config *config, uint64_t early, const ut_gathering *gathering);
/* Assumes that |j| was laid out in zeroed memory. |host| is the caller's, and must last as long as the job. */
void ut_job_init(ut_job *j, uint32_t number, const ut_job_config *config, const ut_host *host);

static inline bool ut_job_host_is_up(const ut_job *j, uint32_t host)
{
    return j->conn[host].state == UT_CONN_UP;
}
/* How long an answer to what a feedback says may take: a round trip, its variance, and what the hearer may hold back.
 */
static inline ut_ns ut_job_answer_time(const ut_conn *c)
{
    return c->tx.srtt ? c->tx.srtt + 4 * c->tx.rttvar + UT_HOLD_NS : (ut_ns)UT_PTO_FIRST_NS;
}
/* Number of ranks of the job on |host|. */
uint32_t ut_job_ranks_of(const ut_job *j, uint32_t host);
/* Mask of them, bit per place among the ranks of |host|. */
static inline uint16_t ut_job_places_of(const ut_job *j, uint32_t host)
{
    return (uint16_t)((1u << ut_job_ranks_of(j, host)) - 1);
}
/* Masks of the other hosts: of those that are up, and of those that were up and no longer are. */
uint64_t ut_job_up(const ut_job *j);
uint64_t ut_job_lost(const ut_job *j);
/* Nothing that this host sent was taken for lost lately. Then whoever has got all of a transfer need not say so at
 * once: the answer goes with the data that comes back, and nobody wakes up for it. */
bool ut_job_is_calm(const ut_job *j, ut_ns now);
/* op_pause.c: this host is about to go; if |opens_none|, it opens no op from now on, whatever its ranks call. */
void ut_job_hold(ut_job *j, bool opens_none, ut_ns now);
/* Ops that were begun before, and of which this host or a peer still lacks something. */
uint32_t ut_job_unsettled(const ut_job *j);
/* Lets a feedback go to every peer at |at| or earlier. */
void ut_job_speak(ut_job *j, ut_ns at);
void ut_job_raise_rx_floor(ut_job *j);
/* The op that comes next, for a rank or a host that joins: nobody has been in it. What one other host alone speaks of
 * counts if it is near, for one that lies would send whoever joins out of reach of all others. */
uint64_t ut_job_next_op(const ut_job *j);
/* op_seq below which this host sends nothing more. */
uint64_t ut_job_tx_floor(const ut_job *j);

#endif
