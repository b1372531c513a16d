/* SPDX-License-Identifier: Apache-2.0
 *
 * What a host's own link carries, and the windows that follow from it.
 *
 * All peers of a job have the same window: an AllReduce is as slow as its slowest pair. It holds 1.75 ms of what the
 * link has been seen to carry: enough to ride out a thread that wakes late, too little to stand in anybody's queue for
 * long. A link of 1 Gbit/s gets 220 KB, one without a bound all that the credit allows.
 *
 * Seen is what peers acknowledged within a pulse of 20 ms; a host's output dips for shorter times. The best pulse is
 * remembered and fades over seconds.
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
    uint64_t acked;        /* bytes, by all peers, in the pulse that runs */
    uint64_t gone;         /* and what is known to have been lost, too: what our own link carried */
    uint64_t best;         /* the most of late */
    ut_ns since;           /* the pulse's start */
    bool begun;            /* it is an op's first */
    bool full;             /* data waited in it for a window or the pace */
    bool dry;              /* and there was a moment in it in which there was nothing to carry */
    bool held;             /* a peer kept its turn in it: see op_send.c */
    uint64_t spread_below; /* ops below this op_seq send to all peers at once */
} ut_window;

/* An op begins: the pulse starts anew, for the pause before it says nothing of the link. */
void ut_window_begin(struct ut_job *j, ut_ns now);
/* Closes the pulse if it has passed. With |news|: a feedback just told what came through, so the pulse ends where its
 * bytes do; without it, a pulse is waited for twice as long. */
void ut_window_look(struct ut_job *j, ut_ns now, bool news);

#endif
