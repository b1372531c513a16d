/* SPDX-License-Identifier: Apache-2.0
 *
 * How many senders a host hears at once (SPEC 1a.3), enforced by the receiver: only so many have a window of credit, in
 * the order of the schedule; the others have a trickle of a few packets until their turn comes, which is when an
 * earlier one's tail has been seen. A window once granted cannot be taken back, so it is never larger than what its
 * transfer still needs.
 *
 * A sender that is silent for a few round trips does not hold up the others: one more is let in for it. Nor does one
 * that had most of what was missing in the op before. So the factor
 * is a bound on who competes for the link, and nobody waits for somebody who is not there.
 *
 * All hosts use the least factor that any advertises. A dynamic factor starts at all senders at once: with rotation,
 * credit and congestion control that is the fastest, and only trouble lowers it.
 */
#ifndef UT_INCAST_H
#define UT_INCAST_H

#include "core/base/ut.h"

struct ut_job;
struct ut_op;

enum { UT_TRICKLE_PACKETS = 4 };

typedef struct ut_incast {
    uint8_t dynamic; /* present factor, 1 .. hosts - 1 */
    uint64_t slow;   /* the host that had most of what was missing in the newest op, if one had: it does not count */
    bool gated;      /* fewer than all: windows are handed out in turn */
    bool stale;      /* something ended or began: look again */
    ut_ns look_at;   /* when a silent sender stops counting; UT_NEVER for none */
} ut_incast;

void ut_incast_init(struct ut_job *j);
/* What this host advertises: its option, or the dynamic factor. */
uint8_t ut_incast_own(const struct ut_job *j);
/* The least that any host that is up advertises, at least 1. */
uint8_t ut_incast_in_force(const struct ut_job *j);
/* An op has ended here: a dynamic factor falls by one after t_B ran out or more than 1/64 was lost, else rises by one.
 */
void ut_incast_learn(struct ut_job *j, const struct ut_op *op);
/* Opens the windows whose turn it is. */
void ut_incast_tick(struct ut_job *j, ut_ns now);
ut_ns ut_incast_next_wake(const struct ut_job *j);
/* Datagram bytes that |host| may have in flight or stashed; below |window|, its window without a gate. */
uint64_t ut_incast_window(const struct ut_job *j, uint32_t host, uint64_t window);

#endif
