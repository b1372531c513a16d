/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast a host may send to all its peers together: an administrator's limit, and a *pace* that the host finds itself
 * and that keeps the queue in front of its link short.
 *
 * A sender that only its windows hold back always has a queue before it, in its own card or at a switch. That queue
 * adds to the delay of all traffic and, where a shaper makes the link, costs a timer for each packet. So a host begins
 * a cycle at 31/32 of the most that it has seen its link carry. A *pulse* is an interval of 20 ms (window.h). The rate
 * rises by 1/1024 with every pulse in which it was the limit, until it has passed that most. If more came through then,
 * the host sends without a pace for a few pulses to see how much the link carries. If not, the next cycle begins a
 * little lower, because a link may also carry less than it did.
 *
 * There is no pace on a fast link, where sending a burst takes less time than waking up for the next one.
 */
#ifndef UT_PACE_H
#define UT_PACE_H

#include "core/base/ut.h"

enum {
    UT_PACE_BURST_NS = 250 * 1000,   /* how much is sent at once; with less the thread would only wake and sleep */
    UT_PACE_BURST_PACKETS = 16,      /* the least that is sent at once */
    UT_PACE_BURST_BYTES = 128 << 10, /* what a thread that woke late may make up for */
    UT_PACE_MBYTES_MAX = 300,        /* per second: above it, 2.4 Gbit/s, there is no pace */
    UT_PACE_MEAN = 3,                /* pulses in one mean: a single pulse is off by its two ends */
    UT_PACE_MEANS_MIN = 10,          /* means that must have been seen before there is a pace */
    UT_PACE_LEAST = 992,             /* a cycle begins at this many 1024ths of the most */
    UT_PACE_CYCLE = 44,              /* pulses of a cycle in which the pace was the limit; each adds 1/1024 */
    UT_PACE_STEP = 128,              /* a change by 1/128 of the most counts as one */
    UT_PACE_FADE = 256,              /* a cycle without a change lowers the most by 1/256 */
    UT_PACE_FREE = 4,                /* means in which the host sends without a pace */
};

typedef struct ut_pace {
    uint64_t limit;  /* bytes per second that the administrator allows; 0: any */
    uint64_t rate;   /* the pace, in bytes per second; 0: none */
    uint64_t tokens; /* bytes that may go now */
    ut_ns tokens_at;
    bool spent;           /* what may be sent at once is used up: the next burst must be whole */
    bool held;            /* data waits for tokens alone */
    bool was_held;        /* data waited for tokens alone in the pulse that runs */
    uint64_t most;        /* the most that the link carried in UT_PACE_MEAN pulses, bytes per second */
    uint64_t most_before; /* `most` when the cycle began */
    uint32_t means;
    uint32_t lift; /* pulses of this cycle */
    uint32_t pulses;
    uint64_t carried[UT_PACE_MEAN];
} ut_pace;

/* |limit| is the administrator's, in bytes per second; 0 for none. */
void ut_pace_init(ut_pace *p, uint64_t limit);
/* The engine begins to look for data to send. */
static inline void ut_pace_look(ut_pace *p)
{
    p->held = false;
}
/* Returns how many of |n| packets of |packet| bytes may be sent. If none may, the pace remembers that data waits. */
uint32_t ut_pace_take(ut_pace *p, uint32_t n, uint32_t packet, ut_ns now);
void ut_pace_sent(ut_pace *p, uint32_t bytes);
/* When the data that waits may be sent; UT_NEVER if no data waits. */
ut_ns ut_pace_wake(const ut_pace *p, uint32_t packet);
/* A pulse has ended in which the link carried |carried| bytes per second. |idle|: the link had nothing to carry for a
 * time in the pulse or just before it, so |carried| is not what it can carry; also, a shaper that was idle lets a burst
 * through that says nothing of its rate. */
void ut_pace_pulse(ut_pace *p, uint64_t carried, bool idle);

#endif
