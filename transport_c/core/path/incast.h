/* SPDX-License-Identifier: Apache-2.0
 *
 * How many senders a host hears at once: the incast factor (SPEC 1a.3). The receiver enforces it: only so many senders
 * have full credit, in the order of the schedule. Each other sender has a *trickle* of a few packets until its turn
 * comes, which is when the tail (the last hundredth) of an earlier sender has been seen. Credit once granted cannot be
 * taken back, so it is never more than what the transfer still needs.
 *
 * A sender that is silent for a few round trips does not hold up the others: one more sender is let in for it. The
 * sender that caused most of the previous op's missing bytes is also exempt from the limit. So the factor bounds how
 * many senders compete for the link, and no sender waits for one that does not send.
 *
 * All hosts use the least factor that any host advertises. A dynamic factor starts with all senders at once: with
 * rotation, credit and congestion control that is the fastest, and only trouble lowers the factor.
 */
#ifndef UT_INCAST_H
#define UT_INCAST_H

#include "core/base/ut.h"

struct ut_job;
struct ut_op;

enum { UT_TRICKLE_PACKETS = 4 };

typedef struct ut_incast {
    uint8_t dynamic; /* the present dynamic factor, 1 .. hosts - 1 */
    uint64_t slow;   /* mask of the one sender from which most of the missing bytes of the newest op were due, if there
                        was one; it does not count against the factor */
    bool gated;      /* the factor is below the number of senders: credit is handed out in turn */
    bool stale;      /* something ended or began: ut_incast_tick must look again */
    ut_ns look_at;   /* when a silent sender stops counting; UT_NEVER for none */
} ut_incast;

void ut_incast_init(struct ut_job *j);
/* The factor that this host advertises: its option, or the dynamic factor. */
uint8_t ut_incast_own(const struct ut_job *j);
/* The least factor that any host which is up advertises; at least 1. */
uint8_t ut_incast_in_force(const struct ut_job *j);
/* Learns from an op that has ended here. The dynamic factor falls by one if t_B ran out or more than 1/64 was lost, and
 * rises by one otherwise; it stays as it is if more than two thirds of the missing bytes were due from one of several
 * senders.
 */
void ut_incast_learn(struct ut_job *j, const struct ut_op *op);
/* Gives credit to the senders whose turn it is. */
void ut_incast_tick(struct ut_job *j, ut_ns now);
ut_ns ut_incast_next_wake(const struct ut_job *j);
/* Datagram bytes that |host| may have in flight or stashed now; at most |window|, its credit without incast. */
uint64_t ut_incast_window(const struct ut_job *j, uint32_t host, uint64_t window);

#endif
