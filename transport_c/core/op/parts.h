/* SPDX-License-Identifier: Apache-2.0
 *
 * The object of one collective on one host, in parts. Each part belongs to one group of files, which is named above it;
 * the other files read it, and change it only through that group's functions.
 */
#ifndef UT_OP_PARTS_H
#define UT_OP_PARTS_H

#include "core/account/account.h"
#include "core/base/submission.h"
#include "core/codec/codec.h"
#include "core/epoch/epoch.h"
#include "core/fold/fold.h"
#include "core/op/timing.h"

enum { UT_VARIANTS = 2 /* of the allreduce (core/op/ext.h) */ };
enum ut_op_state { UT_OP_FREE, UT_OP_GATHERING, UT_OP_OPENING, UT_OP_RUNNING, UT_OP_ENDING, UT_OP_LINGERING };

/* The call of one local rank. */
typedef struct ut_call {
    uint32_t session; /* UINT32_MAX: the trainer has gone, and no receipt is wanted */
    uint32_t place;   /* of the rank among those of this host */
    ut_submission submission;
    const uint8_t *src;
    uint8_t *dst;
    ut_ns at;
} ut_call;

/* When the op's stages begin and end: op_time.c. */
typedef struct ut_op_time {
    ut_ns start;   /* when the first local rank called */
    ut_ns opened;  /* when stage 1 started; stage 2 starts when stage 1 has ended here */
    ut_ns clock;   /* when t_B began to run; UT_NEVER: not yet */
    ut_ns look_at; /* while t_B does not run: when to see whether the other hosts are still there */
    ut_ns deadline;
    ut_ns latest;        /* the latest time to which an adaptive deadline may be put off; else the deadline */
    ut_ns gather_until;  /* ranks of this host that have not called by then are left out */
    ut_ns cut;           /* when stage 1 gives up on what is missing; UT_NEVER in reliable mode */
    uint16_t rounds_cut; /* where sums are forwarded: how many rounds of stage 1 have been given up */
    ut_ns linger_until;
    ut_ns hold_until;          /* when ut_gathering.held is called next; UT_NEVER: not */
    ut_ns stage_at[2];         /* when each stage ended */
    uint8_t stage_end[2];      /* enum ut_stage_end */
    ut_times learnt;           /* t_B and t_C in force */
    uint64_t epoch;            /* by whose options: its number */
    ut_ns alone;               /* t_B as it would be in force if no other op were under way; 0: not known */
    ut_ns stage_last[2];       /* when the newest packet of each stage came; 0 for none */
    ut_ns early_wait[2];       /* how long to wait after that packet before an early end; 0: no early end */
    uint64_t timeout_heard[2]; /* per stage: mask of the hosts whose Timeout field was taken */
    bool bounded_by_t_b;       /* a stage ends when t_B has passed */
    bool adaptive;             /* the caller named no deadline: the deadline follows t_B */
    bool repairs;              /* lost slots are sent again */
} ut_op_time;

/* The ranks of this host that are in the op: op.c. */
typedef struct ut_op_local {
    uint16_t weight; /* number of ranks in this host's contribution */
    uint32_t share;  /* of a weighted op: the sum of the weights of these */
    uint16_t calls;  /* number of calls in `call` */
    uint16_t places; /* ordinary jobs: the ranks that have called and whose contribution is there, bit per place */
    bool held;       /* it was called when the host was about to go, and does not open: op_pause.c */
    ut_call call[UT_LOCAL_MAX];
} ut_op_local;

/* What the other hosts have said of the op: op_recv.c. All 64-bit fields are masks of hosts. */
typedef struct ut_op_peers {
    uint64_t record_matched;      /* hosts whose record was seen and agrees */
    uint64_t rx_done;             /* hosts that want no more data */
    uint64_t tx_done;             /* hosts that send no more data */
    uint64_t full_mask, any_mask; /* hosts in every byte, and in some byte, of our shard */
    uint8_t complete_masks;       /* 1: those two are final */
    uint64_t peer_full;           /* hosts in every byte of the shards of `peer_masks` */
    uint64_t peer_masks;          /* hosts that have told the masks of their shards */
    uint64_t masks_waived;        /* hosts that will say no more of the op */
} ut_op_peers;

typedef struct ut_op {
    uint8_t state; /* enum ut_op_state */
    uint64_t seq;
    ut_progress work;
    ut_epoch epoch;        /* under which it opened: a copy, which is kept until the op is over */
    const ut_codec *codec; /* the codec in which the op travels */
    ut_op_what what;
    ut_op_time time;
    ut_op_local local;
    ut_op_memory memory;
    ut_op_fold fold;
    ut_op_peers peers;
    ut_op_plan plan;
    ut_op_account account;
    struct ut_op_partial *partial;    /* of a partial job; else NULL */
    const struct ut_variant *variant; /* of an allreduce of which something else travels (variant.h); else NULL */
    void *variant_memory;             /* that of its variant */
    void *of_variant[UT_VARIANTS];    /* given at job_add; NULL where no op of the job can be of that variant */
} ut_op;

#endif
