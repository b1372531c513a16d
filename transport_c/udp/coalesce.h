/* SPDX-License-Identifier: Apache-2.0
 *
 * How long data may gather in the socket before the thread wakes for it, as network cards let packets gather before
 * they interrupt. On a slow link a packet comes every 50 us, and a wake-up with its system calls costs more than the
 * packet. In the middle of a large op nothing needs an answer within that time.
 *
 * Three things bound the *span* between two readings. A wake-up that finds 64 packets is paid for by them, so fast
 * links need hardly any span. Nothing waits longer than a millisecond: receivers keep news to themselves for as long in
 * any case (UT_HOLD_NS). And the peers' windows must outlast it: an acknowledgement that comes a span later costs
 * nothing while more than that time is spent in queues anyway, which is what a round trip takes beyond the least that
 * was seen; a quarter of it stays for what else is late. Round trips are measured towards the peers; they are believed
 * to hold for the way back.
 *
 * A thread wakes to refill its link as well. Data gathers until then if that is at most half a span later.
 *
 * Where the kernel hands over large aggregates (GRO), packets have gathered on the way, and nothing is left to gain.
 *
 * Only what is far from its end may wait. When what is missing of a stage could come within two spans, and for
 * the smallest ops from the start, every packet is served at once. Timers wait as long as data does, and feedback where
 * what it lets go would wait for the link in any case (loop.c).
 */
#ifndef UT_UDP_COALESCE_H
#define UT_UDP_COALESCE_H

#include "core/base/ut.h"

enum {
    UT_COALESCE_PACKETS = 64,              /* packets that pay for a wake-up, */
    UT_COALESCE_SPAN_MAX_NS = 1000 * 1000, /* but none waits longer than this for others, */
    UT_COALESCE_SLACK_QUARTERS = 3,        /* nor than such a part of what round trips take in queues */
    UT_COALESCE_GATHERED = 16,             /* packets in one message of the kernel's: they have gathered already */
    UT_COALESCE_PULSE_NS = 2000 * 1000,    /* the shortest time to tell a rate by; after a silence all is heard */
};

typedef struct ut_coalesce {
    ut_ns read;                 /* when data was last read, or would have been */
    ut_ns came, begin;          /* the newest packets; the pulse */
    uint64_t packets, messages; /* in this pulse */
    uint64_t rate; /* packets a second, of the last pulse; 0: too few to tell, or they come in large aggregates */
    ut_ns slack;   /* what round trips take beyond the least, with the peers that send; 0: not known */
} ut_coalesce;

/* |packets| were read from the data socket, in so many |messages|: with GRO one may hold tens of them. */
void ut_coalesce_came(ut_coalesce *c, uint64_t packets, uint64_t messages, ut_ns now);
/* How long packets may gather, by the rate at which they come and |slack|; 0: not at all. */
ut_ns ut_coalesce_span(uint64_t rate, ut_ns slack);
/* Until when the data socket need not be looked at, when |awaited| packets are missing of the stage that is nearest to
 * its end; 0: it must be looked at. */
ut_ns ut_coalesce_until(const ut_coalesce *c, uint64_t awaited, ut_ns now);
/* |until|, as ut_coalesce_until has it, or |other|, when the thread wakes in any case, if that is at most half a span
 * later: then one wake-up does for both. */
ut_ns ut_coalesce_join(const ut_coalesce *c, ut_ns until, ut_ns other);

#endif
