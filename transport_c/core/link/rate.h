/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast a host should send in all, whichever jobs and peers the data are for, so that the queue in front of its link
 * stays short.
 *
 * A sender that only its windows hold back always has a queue before it, in its own card or at a switch. That queue
 * adds to the delay of all traffic and, where a shaper makes the link, costs a timer for each packet. So a host begins
 * a cycle at 31/32 of the most that it has seen its link carry. The rate rises by 1/1024 with every pulse (meter.h) in
 * which it was the limit, until it has passed that most. If more came through then, the host sends without a rate for a
 * few pulses to see how much the link carries. If not, the next cycle begins a little lower, because a link may also
 * carry less than it did.
 *
 * There is no rate on a fast link, where sending a burst takes less time than waking up for the next one.
 *
 * The rate is only found here. Tokens (tokens.h) make each job keep to its part of it.
 */
#ifndef UT_RATE_H
#define UT_RATE_H

#include "core/base/ut.h"

enum {
    UT_RATE_MBYTES_MAX = 300, /* per second: above 2.4 Gbit/s there is no rate */
    UT_RATE_MEAN = 3,         /* pulses in one mean: a single pulse is off by its two ends */
    UT_RATE_MEANS_MIN = 10,   /* means that must have been seen before there is a rate */
    UT_RATE_LEAST = 992,      /* a cycle begins at this many 1024ths of the most */
    UT_RATE_CYCLE = 44,       /* pulses of a cycle in which the rate was the limit; each adds 1/1024 */
    UT_RATE_STEP = 128,       /* a change by 1/128 of the most counts as one */
    UT_RATE_FADE = 256,       /* a cycle without a change lowers the most by 1/256 */
    UT_RATE_FREE = 4,         /* means in which the host sends without a rate */
};

/* All zero: nothing is known. */
typedef struct ut_rate {
    uint64_t rate;        /* bytes per second; 0: none */
    bool found;           /* there was a rate, or the link was found to need none */
    uint64_t most;        /* bytes per second that the link carried in UT_RATE_MEAN pulses */
    uint64_t most_before; /* the same when the cycle began */
    uint32_t means;
    uint32_t lift; /* pulses of this cycle in which the rate was the limit */
    uint32_t pulses;
    uint64_t carried[UT_RATE_MEAN];
} ut_rate;

/* A pulse has ended in which the link carried |carried| bytes per second. |idle|: the link had nothing to carry for a
 * time in the pulse or just before it, so |carried| is not what it can carry; also, a shaper that was idle lets a burst
 * through that says nothing of its rate. |held|: the rate held data up in the pulse. */
void ut_rate_pulse(ut_rate *r, uint64_t carried, bool idle, bool held);

#endif
