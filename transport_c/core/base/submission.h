/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trainer asks for. Submissions travel in shared memory (core/face/ring.h), so their layout is fixed.
 */
#ifndef UT_SUBMISSION_H
#define UT_SUBMISSION_H

#include "core/base/what.h"

/* One request, 64 bytes. All offsets are bytes into the session's arena.
 *
 * The bucket of a reduce-scatter, an all-gather and an all-to-all consists of equal shards, one for each host, with one
 * rank on each host; `count` is that of the whole bucket. A rank gives only its own shard to an all-gather, and gets
 * only its own shard of a reduce-scatter: `src` or `dst` is where that shard lies. In place then means that it lies
 * where it belongs in the other one's bucket. An all-to-all is never in place, a broadcast always. The bucket of a
 * barrier is one byte (UT_BYTES) per host, and its `count` is 0.
 *
 * A sparse allreduce (UT_ALLREDUCE_SPARSE): `src` is where a rank's indices lie, ascending numbers of 32 bits, and then
 * its values, float32, `alike.sparse.group` of them for each index; `count` is that of the dense tensor that `dst`
 * becomes.
 *
 * A quantised allreduce (UT_ALLREDUCE_QUANT) is one of float32 that travels in few bits an element. What rounding takes
 * from the contribution is kept in the rank's `residual`, which is added to the next contribution; the engine writes it
 * between the call and the receipt. */
typedef struct ut_submission {
    uint64_t op_seq;      /* number of this op in the job, from 0, the same on every rank */
    uint64_t src;         /* where the rank's contribution lies; element-aligned */
    uint64_t dst;         /* where the result goes; equal to src for in place, else not overlapping it */
    uint64_t count;       /* elements of the bucket; 0 is legal */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; UT_NEVER for none */
    uint8_t dtype;        /* enum ut_dtype */
    uint8_t redop;        /* enum ut_redop; 0 where nothing is reduced */
    uint8_t mode;         /* enum ut_mode */
    uint8_t flags;        /* UT_SUBMIT_... */
    uint8_t collective;   /* enum ut_collective */
    uint8_t rounding;     /* of a quantised allreduce: 0 at random, 1 to the nearest; else 0 */
    uint8_t portion;      /* of a call that is split (core/base/portion.h); 0: the call is one op */
    union {
        uint8_t skipped;    /* 1: no rank of the job uses the number before op_seq; else 0 */
        uint8_t gift_forms; /* in partial jobs: the forms of a quantised contribution, as ut_alike has them; else 0 */
    };
    /* The job says which of the two it is. */
    union {
        struct {                  /* in partial jobs */
            uint64_t wanted;      /* the caller takes the result of this op, of a later one, or of what took its gift */
            uint32_t oldest_step; /* the trainer's own number of the oldest step in what it gives */
            union {
                uint32_t newest_step; /* the number of the newest step in it */
                /* Of a quantised contribution: where its residual lies, in units of UT_GIFT_RESIDUAL bytes, plus 1; 0:
                 * it has none. */
                uint32_t gift_residual;
            };
        };
        struct { /* in all others; the collective says which */
            union {
                uint64_t entries; /* of a sparse allreduce: how many the rank gives; 0 of what is named nowhere */
                /* Of a quantised one: where its residual lies, plus 1; 0: it has none. Above that, from bit
                 * UT_RESIDUAL_BITS on, the weight of what a rank gives, if WEIGHTED says so. */
                uint64_t residual;
            };
            ut_alike alike;
        };
    };
} ut_submission;
_Static_assert(sizeof(ut_submission) == 64, "a cache line");

/* What |s| says for its collective alone; of a partial job's see ut_submission_asks. */
static inline ut_alike ut_submission_alike(const ut_submission *s)
{
    bool has = s->collective == UT_BROADCAST || s->collective == UT_BARRIER || s->collective == UT_ALLREDUCE_SPARSE ||
               s->collective == UT_ALLREDUCE_QUANT;
    return has ? s->alike : (ut_alike){0};
}

enum { UT_RESIDUAL_BITS = 40, UT_WEIGHT_MAX = (1 << (64 - UT_RESIDUAL_BITS)) - 1, UT_GIFT_RESIDUAL = 64 };

/* The weight of what a rank gives to an op of which WEIGHTED says that it has one. */
static inline uint32_t ut_submission_weight(const ut_submission *s)
{
    return (uint32_t)(s->residual >> UT_RESIDUAL_BITS);
}

/* Where the residual lies, plus 1; 0: there is none. */
static inline uint64_t ut_submission_residual(const ut_submission *s)
{
    return s->residual & ((UINT64_C(1) << UT_RESIDUAL_BITS) - 1);
}

/* The op that a submission to a partial job asks for, in the words of other jobs. */
static inline ut_submission ut_submission_asks(const ut_submission *gift)
{
    const bool quant = gift->collective == UT_ALLREDUCE_QUANT;
    const uint64_t units = quant ? gift->gift_residual : 0;
    ut_submission op = *gift;
    op.residual = units ? (units - 1) * UT_GIFT_RESIDUAL + 1 : 0;
    op.alike = (ut_alike){.quant = {.forms = quant ? gift->gift_forms : 0}};
    op.skipped = 0;
    return op;
}

/* Whether |bytes| from |at| on lie in an arena of |arena| bytes. */
static inline bool ut_lies_inside(uint64_t at, uint64_t bytes, uint64_t arena)
{
    return at <= arena && bytes <= arena - at;
}

/* WEIGHTED: each rank gives its contribution a weight, a whole number from 0 to UT_WEIGHT_MAX, and AVG is the weighted
 * mean of what is in it; 0 where all that weighs nothing. Of a rank whose weight is 0 nothing is in the result, which
 * it gets all the same.
 *
 * RETURN: values of the contribution become 0, but for those that the result lacks, where ut_receipt.lacks says that
 * there are some. An owner answers who is in each range of its sum; where no answer came, the rank's own entries stand
 * in the result. So each entry is either in the result that its rank gets, or is returned. */

/* AGREE: all ranks that get a result get identical bytes. The op fails (TIMEOUT, ABSENT) on a host that cannot have all
 * of every shard by the deadline, where it would otherwise put its own value into the holes. Contributions may be
 * missing as the mode allows.
 *
 * ADAPTIVE, in bounded mode: the caller named no deadline. deadline_ns is the latest end, and the op ends earlier once
 * it is known how long such an op takes. The other modes ignore the flag: reliable has no bound of its own, and best
 * effort has t_B and t_C.
 *
 * In a partial job a submission is no op. It gives a contribution, or asks for a result, or both, and `op_seq` counts
 * the session's submissions.
 * - GIVE: `src` holds a contribution. It belongs to the engine until an op has taken it and ended
 *   (ut_completion_ring.freed), or until another contribution replaced it. At most one waits for an op.
 * - REPLACE, with GIVE: this contribution includes the one that waits, and replaces it. If an op was quicker, nothing
 * is done and the receipt says OVERTAKEN. Without REPLACE no contribution may wait.
 * - STICKY, with GIVE: ops take the contribution again and again, until it is replaced.
 * - NOWAIT: if no op from `wanted` on has ended, the answer comes at once, EMPTY.
 *
 * Without NOWAIT the call waits until its deadline for such an op, or for the one that takes its contribution. If none
 * has ended by then, a contribution that no op took is taken back, and the call is answered INSUFFICIENT with its own
 * value. An op that this contribution starts has as much time as lies between the submission and the deadline. */
enum {
    UT_SUBMIT_AGREE = 0x01,
    UT_SUBMIT_ADAPTIVE = 0x02,
    UT_SUBMIT_GIVE = 0x04,
    UT_SUBMIT_REPLACE = 0x08,
    UT_SUBMIT_STICKY = 0x10,
    UT_SUBMIT_NOWAIT = 0x20,
    UT_SUBMIT_WORLD = 0x40,    /* AVG divides by the ranks of the job, not by those that are in the op */
    UT_SUBMIT_RETURN = 0x80,   /* sparse allreduces: see there */
    UT_SUBMIT_WEIGHTED = 0x80, /* other allreduces of ordinary jobs: see there */
};

#endif
