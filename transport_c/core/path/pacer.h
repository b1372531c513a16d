/* SPDX-License-Identifier: Apache-2.0
 *
 * Bursts of a path, spread over its round trip. A window that opens all at once would stand in the first queue all at
 * once, and what shares that queue would wait for it. The kernel could pace only with a queue discipline that few hosts
 * have, so it is done here, in bursts that keep GSO worth its while: about a millisecond of the path's rate, at most
 * 64 KiB, at least two packets.
 *
 * It stands aside where it would only cost: below half a millisecond of round trip a burst is the window; and a window
 * that was not cut below half of its share meets hardly a queue but our own. To pace that would split the sender's
 * link evenly between peers that the schedule serves in turn (1.3 to 1.5 of the wire's bound, not 1.04, simulated).
 */
#ifndef UT_PACER_H
#define UT_PACER_H

#include "core/base/ut.h"

enum {
    UT_PACER_SRTT_MIN_NS = 500 * 1000,
    UT_PACER_BURST_NS = 1000 * 1000,
    UT_PACER_WAIT_MAX_NS = 5 * 1000 * 1000, /* longest wait for a packet's turn */
    UT_PACER_BURST_MAX = 64 << 10,
    UT_PACER_BURST_PACKETS_MIN = 2,
};

typedef struct ut_pacer {
    uint64_t rate;    /* bytes per second; 0: not paced */
    uint64_t burst;   /* bytes */
    ut_ns next;       /* when the next burst may go */
    ut_ns held_until; /* data waits for that; UT_NEVER: none does */
} ut_pacer;

void ut_pacer_reset(ut_pacer *p);
/* A window of |window| bytes, each |srtt| old when it is acknowledged, in packets of |packet| bytes; one of |large| or
 * more is not paced. */
void ut_pacer_set(ut_pacer *p, uint64_t window, ut_ns srtt, uint32_t packet, uint64_t large);
/* Of |n| packets of |packet| bytes, those that may go now. If none, the pacer remembers that data waits. */
uint32_t ut_pacer_take(ut_pacer *p, uint32_t n, uint32_t packet, ut_ns now);
void ut_pacer_sent(ut_pacer *p, uint32_t bytes, ut_ns now);

#endif
