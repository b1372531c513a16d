/* SPDX-License-Identifier: Apache-2.0
 *
 * One pool of credit and the link that it watches, for the tests of the pool.
 */
#ifndef UT_ONE_POOL_H
#define UT_ONE_POOL_H

#include "check.h"

#include "core/link/pool.h"

enum { PACKET = 1472, SENDERS = 63 };

static ut_pool pool;
static ut_pool_count count;
static ut_inlet inlet[SENDERS];
static ut_ns now;

static inline void fresh(void)
{
    now = 5 * UT_SECOND;
    count = (ut_pool_count){0};
    ut_pool_init(&pool, PACKET, 64 << 20);
    memset(inlet, 0, sizeof inlet);
    for (unsigned i = 0; i < SENDERS; i++)
        inlet[i].unasked = UINT64_MAX;
}

static ut_ns queue;         /* how long packets wait in it */
static bool in_runs = true; /* what is lost is lost several packets at a time */

/* What comes in |n| samples of a link of |rate| bytes per second that loses one packet in |one_in| (0: none), |round|
 * away: 8 packets at a time, as a turn of the host reads them. */
static inline void samples(unsigned n, uint64_t rate, uint32_t one_in, ut_ns round, ut_ns late, bool held_back)
{
    enum { TURN = 8 };
    const ut_ns turn = TURN * (ut_ns)PACKET * (UT_SECOND / 1000) / (rate / 1000);
    const ut_ns lasts = UT_MAX2(UT_MAX2(2 * round, 4 * late), 300 * (UT_SECOND * PACKET / rate));
    uint64_t lost = 0;
    ut_pool_measure(&pool, &count, round, late, 3, now);
    for (ut_ns end = now + n * (lasts + turn); now < end;) {
        pool.held_back = held_back;
        if (pool.waits == 0)
            ut_pool_waited(&pool, queue, 1);
        now += turn;
        count.packets += TURN;
        count.bytes += TURN * PACKET;
        lost += TURN;
        const uint64_t gap = one_in && lost >= 2 * one_in ? 2 : 0; /* two in a row */
        lost = gap ? 0 : lost;
        count.numbers += TURN + gap;
        count.runs += in_runs ? gap : 0;
        ut_pool_measure(&pool, &count, round, late, 3, now);
    }
}

/* Within a twenty-fifth: samples end with whole packets. */
static inline bool near(uint64_t a, uint64_t b)
{
    return a <= b + b / 25 && b <= a + a / 25;
}

static inline uint64_t hand_out(uint32_t n)
{
    return ut_pool_hand_out(&pool, inlet, n, 0);
}

#endif
