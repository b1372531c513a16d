/* SPDX-License-Identifier: Apache-2.0
 *
 * How many senders a host hears at once: the incast factor (docs/papers.md, section 1.3). The receiver enforces it:
 * only so many senders have full credit, in the order of the schedule. Each other sender has a *trickle* of a few
 * packets until its turn comes, which is when the tail (the last hundredth) of an earlier sender has been seen. Credit
 * once granted cannot be taken back, so it is never more than what the transfer still needs.
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

enum { UT_TRICKLE_PACKETS = 4 };

/* The state of one look over the transfers that this host receives, in the order of the schedule. */
typedef struct ut_incast_turn {
    uint64_t begun; /* mask of the hosts that have their turn and are not through */
    uint64_t heard; /* mask of those hosts that were heard lately */
    unsigned factor;
    bool full; /* the next sender in order has to wait, and with it all senders after it */
} ut_incast_turn;

typedef struct ut_incast {
    uint8_t dynamic; /* the present dynamic factor, 1 .. hosts - 1 */
    uint64_t slow;   /* mask of the one sender from which most of the missing bytes of the newest op were due, if there
                        was one; it does not count against the factor */
    bool gated;      /* the factor is below the number of senders: full credit is handed out in turn */
    bool stale;      /* something ended or began: it must be looked again */
    ut_ns look_at;   /* when a silent sender stops counting; UT_NEVER for none */
    ut_incast_turn turn;
} ut_incast;

/* What an op that has ended lacks. */
typedef struct ut_incast_loss {
    uint64_t expected, lost;        /* bytes; lost is what something else overtook, not what t_B was too short for */
    uint64_t missing[UT_HOSTS_MAX]; /* per host: bytes due from it that never came */
} ut_incast_loss;

/* For a job of |hosts|, this one included. */
void ut_incast_init(ut_incast *i, uint32_t hosts);
/* Learns from an op that has ended here. The dynamic factor falls by one if more than 1/64 was lost, and rises by one
 * otherwise; it stays as it is if more than two thirds of the missing bytes were due from one of several senders. */
void ut_incast_learn(ut_incast *i, uint32_t hosts, const ut_incast_loss *loss);
/* Begins a look with |factor| in force. The caller then calls ut_incast_has_turn for each transfer whose sender has its
 * turn already, and after that ut_incast_begins for each other transfer, in the order of the schedule. */
void ut_incast_look(ut_incast *i, uint32_t hosts, unsigned factor);
/* |host| has its turn. It no longer counts against the factor from |silent_at| on, if it is silent until then. */
void ut_incast_has_turn(ut_incast *i, uint32_t host, ut_ns silent_at, ut_ns now);
/* Whether |host|, the next sender in order, gets its turn now. */
bool ut_incast_begins(ut_incast *i, uint32_t host);

#endif
