/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine's end of its host's link: one meter and one rate for all its jobs. What a job sends over the link is a
 * flow. Flows share the host's rate by what each has been seen to want: one that tokens hold up wants more than it
 * gets, any other what it sent in the last pulse and a quarter more. Other lanes' flows count as well (link.h).
 *
 *     part = what the others leave of the rate, divided among those that want more; at least an equal part
 *
 * so a job alone has all of the rate, and nobody waits for one that sends nothing.
 */
#ifndef UT_UPLINK_H
#define UT_UPLINK_H

#include "core/link/link.h"
#include "core/link/meter.h"
#include "core/link/rate.h"
#include "core/link/tokens.h"

enum {
    UT_WINDOW_NS = 1750 * 1000, /* what the link carries in this time is in flight to a peer: see ut_flow.window */
};

typedef struct ut_uplink ut_uplink;

/* One job's use of the link. */
typedef struct ut_flow {
    ut_uplink *uplink;
    ut_tokens tokens;
    uint64_t acked, gone; /* bytes in the pulse that runs, as in ut_meter */
    bool full;            /* data waited in it for a window or for tokens */
    uint64_t wants;       /* bytes per second; UT_WANTS_MORE: more than it gets */
    uint64_t window;      /* bytes that may be in flight to each of its peers, by the last pulse: see below */
} ut_flow;
#define UT_WANTS_MORE UINT64_MAX
/* All peers of a job have the same window, because an AllReduce is as slow as its slowest pair. It holds UT_WINDOW_NS
 * of what the link has been seen to carry: enough for the time until a thread that wakes late sends again, and too
 * little to stand in any queue for long. A link of 1 Gbit/s gets 220 KB, and a link without a bound all that the credit
 * allows.
 */

struct ut_uplink {
    ut_meter meter;
    ut_rate rate;
    ut_flow *flow[UT_JOBS_MAX];         /* by job; NULL: none */
    ut_link *link;                      /* NULL: the engine is the host's only one */
    uint32_t lane;                      /* its row there */
    uint64_t acked, gone;               /* since the start */
    uint64_t others_acked, others_gone; /* of the other lanes, when the pulse began */
};

/* |link| may be NULL. */
void ut_uplink_init(ut_uplink *u, ut_link *link, uint32_t lane);
/* Job |job| begins to use the link with |flow|, which stays until it leaves. |limit|: bytes per second, 0 for any. */
void ut_uplink_join(ut_uplink *u, uint32_t job, ut_flow *flow, uint64_t limit);
void ut_uplink_leave(ut_uplink *u, uint32_t job);
/* An op begins to send. Unless other flows are at it, the pulse starts anew. Returns whether it did. */
bool ut_flow_begin(ut_flow *f, ut_ns now);
/* The fate of |bytes| is known. */
static inline void ut_flow_fate(ut_flow *f, uint32_t bytes, bool acked)
{
    f->acked += acked ? bytes : 0;
    f->gone += bytes;
    f->uplink->acked += acked ? bytes : 0;
    f->uplink->gone += bytes;
}
/* Of |n| packets of |packet| bytes, those that may go now. */
uint32_t ut_flow_take(ut_flow *f, uint32_t n, uint32_t packet, ut_ns now);
/* Ends the pulse if it has passed, and sets every flow's window and part of the rate. |news|: see meter.h; |dry|: there
 * is nothing to carry now. Returns whether a pulse has ended; |ret| then holds it. */
bool ut_uplink_look(ut_uplink *u, bool news, bool dry, ut_ns now, ut_pulse *ret);

#endif
