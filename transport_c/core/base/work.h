/* SPDX-License-Identifier: Apache-2.0
 *
 * How much work one turn of an engine may do. All jobs of a host share a thread, and a bucket may have 4 GiB: a *pass*
 * over the whole bucket (combining the ranks of a host, encoding, finishing, copying results out) would keep every
 * other job waiting for a second. So passes are cut into slices. A pass asks here how far it may go now, remembers
 * where it stopped, and goes on in the next turn. Between two turns packets, timers and calls of all jobs are served. A
 * pass that is small as a whole is done at once; otherwise small ops would queue behind the slices of large ones.
 */
#ifndef UT_WORK_H
#define UT_WORK_H

#include "core/base/ut.h"

#ifndef UT_TURN_BYTES
#define UT_TURN_BYTES (512 << 10) /* of passes in one turn: about a tenth of a millisecond without page faults */
#endif
#ifndef UT_SMALL_BYTES
#define UT_SMALL_BYTES (64 << 10) /* passes over a bucket of up to so many bytes are not cut */
#endif
enum { UT_CALL_BYTES = UT_TURN_BYTES / 128 /* what a call costs, and opening its op, in bytes of a pass */ };

typedef struct ut_work {
    int64_t left;   /* bytes that may still be passed over in this turn; small work may overdraw it */
    bool waits;     /* something was refused since the turn began: the next turn must come at once */
    uint32_t first; /* job whose passes come first in this turn */
} ut_work;

/* How far an op has come with the passes over its bucket. */
typedef struct ut_progress {
    uint8_t step;   /* of OPENING (op.c) or ENDING (op_end.c) */
    bool unsettled; /* sums to which nothing more comes are still to be finished */
    uint32_t index; /* the chunk, shard or call to which the step has come */
    uint64_t at;    /* how far the step has come in it: bytes, or groups of rows */
} ut_progress;

static inline void ut_work_begin_turn(ut_work *w)
{
    w->left = UT_MIN2(w->left + UT_TURN_BYTES, (int64_t)UT_TURN_BYTES);
    w->waits = false;
}

/* How many of the next |want| bytes a pass may do now; 0: none before the next turn. |total| is the size of the whole
 * bucket. The result is a multiple of 64, except at the bucket's end. */
uint64_t ut_work_take(ut_work *w, uint64_t total, uint64_t want);
/* Whether a pass may do |bytes| that cannot be cut now. */
bool ut_work_pass(ut_work *w, uint64_t total, uint64_t bytes);
/* A pass that was allowed has turned out to be of |bytes| more. */
static inline void ut_work_add(ut_work *w, uint64_t bytes)
{
    w->left -= (int64_t)bytes;
}

#endif
