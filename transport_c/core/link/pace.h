/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast a host may send in all, whoever the peers are: an administrator's limit, and a pace of its own finding that
 * keeps the queue in front of its link short.
 *
 * A sender that only its windows hold back always has a queue before it, in its own card or at a switch. That adds to
 * everybody's delay and, where a shaper makes the link, costs a timer for each packet. So a host sends at 31/32 of the
 * most that it has seen its link carry, and by 1/1024 more with each pulse that the pace held it up in, until it has
 * passed that. If more came through, it lets go for a few pulses to see how much it is. If not, the cycle begins anew,
 * a little lower, for a link may also carry less than it did.
 *
 * On a fast link, where a burst lasts shorter than waking for the next takes, there is no pace.
 */
#ifndef UT_PACE_H
#define UT_PACE_H

#include "core/base/ut.h"

enum {
    UT_PACE_BURST_NS = 250 * 1000,   /* sent at once, or the thread would do nothing but wake */
    UT_PACE_BURST_PACKETS = 16,      /* and no less than this */
    UT_PACE_BURST_BYTES = 128 << 10, /* a thread that woke late makes up for so much */
    UT_PACE_MBYTES_MAX = 300,        /* per second: above 2.4 Gbit/s not paced */
    UT_PACE_MEAN = 3,                /* pulses that are looked at together: one alone is off by its ends */
    UT_PACE_MEANS_MIN = 10,          /* that must have been seen before there is a pace */
    UT_PACE_LEAST = 992,             /* of 1024 parts of the most, where a cycle begins */
    UT_PACE_CYCLE = 44,              /* pulses held up, a part more with each */
    UT_PACE_STEP = 128,              /* that part of the most is a difference */
    UT_PACE_FADE = 256,              /* and that part is forgotten in a cycle without one */
    UT_PACE_FREE = 4,                /* means to see how much more a link carries */
};

typedef struct ut_pace {
    uint64_t limit;  /* bytes per second that the administrator allows; 0: any */
    uint64_t rate;   /* and our own finding; 0: none */
    uint64_t tokens; /* bytes that may go now */
    ut_ns tokens_at;
    bool spent;           /* a quantum is used up: the next must be whole */
    bool held;            /* data waits for tokens alone */
    bool was_held;        /* and did so in the pulse that runs */
    uint64_t most;        /* that the link carried in UT_PACE_MEAN pulses, bytes per second */
    uint64_t most_before; /* when the cycle began */
    uint32_t means;
    uint32_t lift; /* pulses of this cycle */
    uint32_t pulses;
    uint64_t carried[UT_PACE_MEAN];
} ut_pace;

/* |limit|: bytes per second, 0 for none. */
void ut_pace_init(ut_pace *p, uint64_t limit);
/* A look for data to send begins. */
static inline void ut_pace_look(ut_pace *p)
{
    p->held = false;
}
/* Of |n| packets of |packet| bytes, those that may go. If none, the pace remembers that data waits. */
uint32_t ut_pace_take(ut_pace *p, uint32_t n, uint32_t packet, ut_ns now);
void ut_pace_sent(ut_pace *p, uint32_t bytes);
/* When data that waits may go; UT_NEVER if none does. */
ut_ns ut_pace_wake(const ut_pace *p, uint32_t packet);
/* The end of a pulse in which the link carried |carried| bytes per second. |idle|: for a time in it or just before it
 * had nothing to carry, so this is not what it can; and a shaper that was idle lets a burst through that is no rate. */
void ut_pace_pulse(ut_pace *p, uint64_t carried, bool idle);

#endif
