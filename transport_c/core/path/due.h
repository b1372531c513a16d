/* SPDX-License-Identifier: Apache-2.0
 *
 * When a host speaks to a peer: a row for each reason, with the time by which it must. A feedback says all that there
 * is to say, so the earliest row decides when one goes, and it settles all rows. Whatever else leaves takes a feedback
 * along if a row is due within its *slack*:
 *
 *   the last data of a short transfer to this peer     ut_conn_hold       it costs no wake-up at either end
 *   a grant to this peer, feedback to another peer,    UT_TIMER_MIN_NS    this host is awake, and would sleep no longer
 *   the end of an op
 */
#ifndef UT_DUE_H
#define UT_DUE_H

#include "core/base/ut.h"

enum {
    UT_HOLD_NS = 1000 * 1000,     /* news that nobody waits for gathers so long; a window lasts that much longer */
    UT_TIMER_MIN_NS = 100 * 1000, /* a thread that sleeps for less than this wakes late */
    /* A sender asks for a feedback in each such part of its window, so that one may be lost before the window is full.
     * So many packets are worth a feedback in place of a grant: a sender hears so of half as many as it would ask for
     * when the widest window is half full, and what a short queue has dropped is heard of before more is sent into it.
     * A feedback is due after so many though their sender never asks: one may be lost before there are more than one
     * reports on. */
    UT_ASK_PART = 4,
    UT_REPORT_PACKETS = UT_ACK_BITS / 4 / UT_ASK_PART,
    UT_FEEDBACK_PACKETS = UT_ACK_BITS / 2,
    /* So many packets are worth a feedback although their sender has not asked: a window that is far from what fits the
     * path lets much less fly than it could, so that its sender asks for nothing, and yet has to hear of the queue
     * while that builds up. Feedback so costs a sixteenth of the packets at most. */
    UT_SAMPLE_PACKETS = UT_ACK_BITS / 64,
};

enum ut_due_row {
    UT_DUE_CREDIT, /* more was granted than the peer was told; a grant alone settles this row, so it comes first */
    UT_DUE_CAME,   /* data came, and no more does, or enough to tell of; or credit was given that nobody waits for */
    UT_DUE_ASKED,  /* data came, and its sender asks for word of it; or some is missing */
    UT_DUE_STATE,  /* ops have news, or the peer asks for what there is */
    UT_DUE_ROWS,
    UT_DUE_FEEDBACK = UT_DUE_CREDIT + 1 /* from this row on a feedback is needed */
};

typedef struct ut_due {
    ut_ns at[UT_DUE_ROWS]; /* UT_NEVER: no reason */
} ut_due;

static inline void ut_due_settle(ut_due *d)
{
    for (unsigned row = 0; row < UT_DUE_ROWS; row++)
        d->at[row] = UT_NEVER;
}

/* The host speaks at |at| or earlier. */
static inline void ut_due_at(ut_due *d, enum ut_due_row row, ut_ns at)
{
    d->at[row] = UT_MIN2(d->at[row], at);
}

/* The earliest of all rows from |first| on: UT_DUE_CREDIT for all, UT_DUE_FEEDBACK for those that a feedback settles.
 */
static inline ut_ns ut_due_next(const ut_due *d, enum ut_due_row first)
{
    ut_ns next = UT_NEVER;
    for (unsigned row = first; row < UT_DUE_ROWS; row++)
        next = UT_MIN2(next, d->at[row]);
    return next;
}

#endif
