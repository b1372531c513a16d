/* SPDX-License-Identifier: Apache-2.0
 *
 * The object that one collective is on one host, in parts. Each part belongs to one group of files, which is named
 * above it; the other files read it, and change it only through that group's functions.
 */
#ifndef UT_OP_PARTS_H
#define UT_OP_PARTS_H

#include "core/account/account.h"
#include "core/base/submission.h"
#include "core/codec/codec.h"
#include "core/fold/fold.h"
#include "core/op/timing.h"

enum ut_op_state { UT_OP_FREE, UT_OP_GATHERING, UT_OP_OPENING, UT_OP_RUNNING, UT_OP_ENDING, UT_OP_LINGERING };

/* One local rank's part. */
typedef struct ut_call {
    uint32_t session; /* UINT32_MAX: it has gone, nobody waits for a receipt */
    ut_submission submission;
    const uint8_t *src;
    uint8_t *dst;
    ut_ns at;
} ut_call;

/* When its stages begin and end: op_time.c. */
typedef struct ut_op_time {
    ut_ns start;   /* first local call */
    ut_ns opened;  /* start of stage 1; stage 2 starts when stage 1 has ended here */
    ut_ns clock;   /* from when t_B bounds it; UT_NEVER: not yet */
    ut_ns look_at; /* until then: when to see whether the others are still there */
    ut_ns deadline;
    ut_ns latest;        /* what an adaptive deadline may be put off to; else the deadline */
    ut_ns gather_until;  /* ranks of this host that have not called by then are left out */
    ut_ns cut;           /* stage 1 gives up on what is missing; UT_NEVER in reliable mode */
    uint16_t rounds_cut; /* where sums are forwarded: rounds of stage 1 that have been given up */
    ut_ns linger_until;
    ut_ns stage_at[2];         /* end of each stage */
    uint8_t stage_end[2];      /* enum ut_stage_end */
    ut_times learnt;           /* t_B and t_C in force */
    ut_ns stage_last[2];       /* newest packet of each stage; 0 for none */
    ut_ns early_wait[2];       /* x percent of t_C; 0: no early end */
    uint64_t timeout_heard[2]; /* hosts whose Timeout field was taken, per stage */
    bool bounded_by_t_b;       /* a stage ends when t_B has passed */
    bool adaptive;             /* the caller named no deadline: it follows t_B */
    bool repairs;              /* what is lost is sent again */
} ut_op_time;

/* The ranks of this host that are in it: op.c. */
typedef struct ut_op_local {
    uint16_t weight; /* ranks */
    uint16_t calls;
    ut_call call[UT_LOCAL_MAX];
} ut_op_local;

/* What the other hosts have said of it: op_recv.c. Masks of hosts. */
typedef struct ut_op_peers {
    uint64_t record_matched;      /* their record was seen and agrees */
    uint64_t record_known;        /* they have seen ours */
    uint64_t rx_done;             /* want no more */
    uint64_t tx_done;             /* send no more */
    uint64_t full_mask, any_mask; /* of our shard */
    uint8_t complete_masks;       /* those two are final */
    uint64_t peer_full;           /* intersection over the shards of other hosts whose masks are known */
    uint64_t peer_masks;          /* their masks are known */
    uint64_t masks_waived;        /* will not say any more */
} ut_op_peers;

typedef struct ut_op {
    uint8_t state; /* enum ut_op_state */
    uint64_t seq;
    ut_progress work;
    const ut_codec *codec; /* that it travels in */
    ut_op_what what;
    ut_op_time time;
    ut_op_local local;
    ut_op_memory memory;
    ut_op_fold fold;
    ut_op_peers peers;
    ut_op_plan plan;
    ut_op_account account;
    struct ut_op_partial *partial; /* of a partial job; else NULL */
} ut_op;

#endif
