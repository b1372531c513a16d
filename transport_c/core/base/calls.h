/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of one trainer that were taken out of its ring and have no answer yet, oldest first.
 */
#ifndef UT_CALLS_H
#define UT_CALLS_H

#include "core/base/submission.h"

/* As many as the ring holds, and a number that was skipped before each. */
enum { UT_CALLS_MAX = 2 * UT_RING_ENTRIES };

/* A call that was checked. It waits until its job has room; in a partial job, until an op has an answer for it. */
typedef struct ut_waiting {
    ut_submission submission; /* mode 0: the call has its receipt already, or the number is skipped */
    const uint8_t *src;       /* the trainer's memory that the submission names */
    uint8_t *dst;
    ut_ns since;
    bool late; /* its time is over: the rank gets its own value back */
    bool own;  /* partial jobs: with `late`, the call has a value of its own to get back */
    uint64_t
        answer;   /* partial jobs: number, among the kept receipts, of the one that answers it, plus one; 0: none yet */
    uint8_t slot; /* enum ut_slot: what its rank had given to that op */
    bool differs; /* the call asks for another kind of result than that op has */
    uint64_t copied; /* bytes of its result that have been copied out; ut_variant.own counts in its own way */
    float most;      /* of a variant: the largest magnitude of the values so far, and the least index that may come */
    uint32_t more;
} ut_waiting;

/* A ring of such calls. All zero is an empty ring. */
typedef struct ut_calls {
    uint32_t first, count;
    ut_waiting entry[UT_CALLS_MAX];
} ut_calls;

/* The |i|-th oldest call. */
static inline ut_waiting *ut_calls_at(ut_calls *c, uint32_t i)
{
    return &c->entry[(c->first + i) % UT_CALLS_MAX];
}
static inline const ut_waiting *ut_calls_see(const ut_calls *c, uint32_t i)
{
    return &c->entry[(c->first + i) % UT_CALLS_MAX];
}

/* Adds |call| as the newest. Assumes that there is room: fewer than UT_CALLS_MAX wait. */
static inline ut_waiting *ut_calls_add(ut_calls *c, const ut_waiting *call)
{
    ut_waiting *at = ut_calls_at(c, c->count++);
    *at = *call;
    return at;
}

static inline void ut_calls_drop_first(ut_calls *c)
{
    c->first = (c->first + 1) % UT_CALLS_MAX;
    c->count--;
}

/* Takes the |i|-th oldest call out; the calls after it move up. */
static inline ut_waiting ut_calls_remove(ut_calls *c, uint32_t i)
{
    ut_waiting w = *ut_calls_at(c, i);
    for (c->count--; i < c->count; i++)
        *ut_calls_at(c, i) = *ut_calls_at(c, i + 1);
    return w;
}

#endif
