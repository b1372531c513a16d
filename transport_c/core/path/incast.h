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

enum { UT_TRICKLE_PACKETS = 4 };

/* One look over the transfers that this host receives, in the order of the schedule. */
typedef struct ut_incast_turn {
    uint64_t begun; /* hosts that have their turn and are not through */
    uint64_t heard; /* of those, who was heard lately */
    unsigned factor;
    bool full; /* the next in order has to wait, and with it all after it */
} ut_incast_turn;

typedef struct ut_incast {
    uint8_t dynamic; /* present factor, 1 .. hosts - 1 */
    uint64_t slow;   /* the host that had most of what was missing in the newest op, if one had: it does not count */
    bool gated;      /* fewer than all: full credit is handed out in turn */
    bool stale;      /* something ended or began: look again */
    ut_ns look_at;   /* when a silent sender stops counting; UT_NEVER for none */
    ut_incast_turn turn;
} ut_incast;

/* What an op that has ended lacks. */
typedef struct ut_incast_loss {
    bool expired;                   /* t_B ran out in one of its stages */
    uint64_t expected, lost;        /* bytes */
    uint64_t missing[UT_HOSTS_MAX]; /* bytes that never came, of each host */
} ut_incast_loss;

/* For a job of |hosts|, this one included. */
void ut_incast_init(ut_incast *i, uint32_t hosts);
/* An op has ended here: a dynamic factor falls by one after t_B ran out or more than 1/64 was lost, else rises by one.
 */
void ut_incast_learn(ut_incast *i, uint32_t hosts, const ut_incast_loss *loss);
/* A look begins with |factor| in force: first ut_incast_has_turn for each transfer whose sender has its turn already,
 * then ut_incast_begins for each other one, in the order of the schedule. */
void ut_incast_look(ut_incast *i, uint32_t hosts, unsigned factor);
/* |host| has its turn, and has had its say unless it speaks before |silent_at|. */
void ut_incast_has_turn(ut_incast *i, uint32_t host, ut_ns silent_at, ut_ns now);
/* Whether |host|, the next in order, gets its turn now. */
bool ut_incast_begins(ut_incast *i, uint32_t host);

#endif
