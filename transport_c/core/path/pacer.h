/* SPDX-License-Identifier: Apache-2.0
 *
 * Bursts of one path, spread over its round trip. A whole window that is sent at once would stand in the first queue at
 * once, and all traffic that shares that queue would wait for it. The kernel could spread packets only with a queue
 * discipline that few hosts have, so the core does it, in bursts that are large enough for GSO (segmentation offload)
 * to be useful: about a millisecond of the path's rate, at most 64 KiB, at least two packets.
 *
 * The pacer does nothing where it would only cost. Below half a millisecond of round trip a burst is as large as the
 * window. And a window that was not reduced below half of its share meets hardly any queue but our own; to spread it
 * would split the sender's link evenly between peers that the schedule serves in turn (1.3 to 1.5 of the wire's bound,
 * not 1.04, simulated).
 */
#ifndef UT_PACER_H
#define UT_PACER_H

#include "core/base/ut.h"

enum {
    UT_PACER_SRTT_MIN_NS = 500 * 1000,
    UT_PACER_BURST_NS = 1000 * 1000,
    UT_PACER_WAIT_MAX_NS = 5 * 1000 * 1000, /* the longest time for which a packet is held */
    UT_PACER_BURST_MAX = 64 << 10,
    UT_PACER_BURST_PACKETS_MIN = 2,
};

typedef struct ut_pacer {
    uint64_t rate;    /* bytes per second; 0: not paced */
    uint64_t burst;   /* bytes */
    ut_ns next;       /* when the next burst may go */
    ut_ns held_until; /* the time for which data waits; UT_NEVER: no data waits */
} ut_pacer;

void ut_pacer_reset(ut_pacer *p);
/* Sets the rate by a window of |window| bytes per round trip |srtt|, in packets of |packet| bytes. A window of |large|
 * bytes or more is not spread. */
void ut_pacer_set(ut_pacer *p, uint64_t window, ut_ns srtt, uint32_t packet, uint64_t large);
/* Of |n| packets of |packet| bytes, those that may go now. If none, the pacer remembers that data waits. */
uint32_t ut_pacer_take(ut_pacer *p, uint32_t n, uint32_t packet, ut_ns now);
void ut_pacer_sent(ut_pacer *p, uint32_t bytes, ut_ns now);

#endif
