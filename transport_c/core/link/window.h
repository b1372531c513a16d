/* SPDX-License-Identifier: Apache-2.0
 *
 * What a host's own link carries, and the windows that follow from it.
 *
 * A *window* is the number of bytes that may be in flight on a path. All peers of a job have the same window, because
 * an AllReduce is as slow as its slowest pair. It holds 1.75 ms of what the link has been seen to carry: enough for the
 * time until a thread that wakes late sends again, and too little to stand in any queue for long. A link of 1 Gbit/s
 * gets 220 KB, and a link without a bound gets all that the credit allows.
 *
 * What the link carries is measured by what peers acknowledge within a *pulse* of 20 ms; a host's output dips for
 * shorter times. The best pulse is remembered and fades over seconds.
 */
#ifndef UT_WINDOW_H
#define UT_WINDOW_H

#include "core/base/ut.h"

enum {
    UT_PULSE_NS = 20 * 1000 * 1000,
    UT_WINDOW_NS = 1750 * 1000,
};

struct ut_job;

typedef struct ut_window {
    uint64_t acked;        /* bytes that all peers acknowledged in the pulse that runs */
    uint64_t gone;         /* the same, and the bytes known to have been lost: what our own link carried */
    uint64_t best;         /* the most that was acknowledged in a pulse of the last seconds */
    ut_ns since;           /* when the pulse began */
    bool begun;            /* the pulse is the first of an op */
    bool full;             /* data waited in the pulse for a window or for the pace */
    bool dry;              /* there was a moment in the pulse in which there was nothing to carry */
    bool held;             /* a peer kept its turn in the pulse: see op_send.c */
    uint64_t spread_below; /* ops below this op_seq send to all peers at once */
} ut_window;

/* An op begins: the pulse starts anew, because the pause before the op says nothing of the link. */
void ut_window_begin(struct ut_job *j, ut_ns now);
/* Closes the pulse if it has passed. With |news| a feedback has just told what came through, so the pulse ends where
 * its bytes end. Without it the pulse may last twice as long. */
void ut_window_look(struct ut_job *j, ut_ns now, bool news);

#endif
