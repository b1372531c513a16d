/* SPDX-License-Identifier: Apache-2.0
 *
 * What one turn of an engine may cost. All jobs of a host share a thread, and a bucket may have 4 GiB: a pass over all
 * of it (combining the ranks of a host, encoding, finishing, copying results out) would keep every other job waiting
 * for a second. So such passes are cut. Each asks here how far it may go now, keeps its place, and goes on with the
 * next turn; between two turns packets, timers and calls of all jobs are served. Work that is small as a whole is done
 * at once, or small ops would queue behind the slices of large ones.
 */
#ifndef UT_WORK_H
#define UT_WORK_H

#include "core/base/ut.h"

#ifndef UT_TURN_BYTES
#define UT_TURN_BYTES (512 << 10) /* of passes in a turn: about a tenth of a millisecond, page faults apart */
#endif
#ifndef UT_SMALL_BYTES
#define UT_SMALL_BYTES (64 << 10) /* an op of up to so many bytes is not cut */
#endif
enum { UT_CALL_BYTES = UT_TURN_BYTES / 128 /* what a call costs, and opening its op, in bytes of a pass */ };

typedef struct ut_work {
    int64_t left;   /* bytes that may still be passed over in this turn; small work may overdraw it */
    bool waits;     /* something was refused since the turn began: there must be another one at once */
    uint32_t first; /* job whose passes come first in this turn */
} ut_work;

/* How far an op has come with passes over its bucket. */
typedef struct ut_progress {
    uint8_t step;   /* of OPENING (op.c) or ENDING (op_end.c) */
    bool unsettled; /* sums that no more comes for are still to be finished */
    uint32_t index; /* of a chunk, a shard or a call: where the step has come to */
    uint64_t at;    /* and how far in it: bytes, or groups of rows */
} ut_progress;

static inline void ut_work_begin_turn(ut_work *w)
{
    w->left = UT_MIN2(w->left + UT_TURN_BYTES, (int64_t)UT_TURN_BYTES);
    w->waits = false;
}

/* How many of the |want| bytes that come next may be passed over now; 0: none before the next turn. |total|: of the
 * whole bucket. Multiples of 64 but for the last. */
uint64_t ut_work_take(ut_work *w, uint64_t total, uint64_t want);
/* The same for |bytes| that cannot be cut. */
bool ut_work_pass(ut_work *w, uint64_t total, uint64_t bytes);

#endif
