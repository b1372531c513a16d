/* SPDX-License-Identifier: Apache-2.0
 *
 * Two hosts that do one op after the other, for tests of what time does to an op.
 */
#ifndef UT_TEST_ONE_BY_ONE_H
#define UT_TEST_ONE_BY_ONE_H

#include "core/base/bits.h"
#include "pair.h"

static void tune_timer(ut_ns t_b, ut_ns t_c, unsigned percent, unsigned timer_start)
{
    static uint64_t number;
    ut_epoch e = {.number = ++number, .members = ut_bits_below(HOSTS), .owners = ut_bits_below(HOSTS)};
    e.id = number;
    e.world = ut_engine_world(hosts[0].engine, 3);
    e.options = (ut_job_options){.algorithm = UT_TAR,
                                 .t_b_ns = t_b,
                                 .t_c_ns = t_c,
                                 .early_percent = (uint8_t)percent,
                                 .timer_start = (uint8_t)timer_start};
    for (uint32_t h = 0; h < HOSTS; h++)
        CHECK_EQ(ut_engine_epoch(hosts[h].engine, 3, &e, now), UT_OK);
}

static void tune(ut_ns t_b, ut_ns t_c, unsigned percent)
{
    tune_timer(t_b, t_c, percent, 0);
}

static uint64_t op_seq;

static void begin(void)
{
    world(1, 0);
    run(now + 300 * UT_MS); /* greetings are over */
    op_seq = 0;
}

static void call(uint32_t h, unsigned mode, ut_ns budget)
{
    fill(h, 0, 10 * (h + 1));
    ut_submission s = call_of(op_seq, ELEMENTS, UT_SUM, mode, budget);
    if (budget == UT_NEVER)
        s.deadline_ns = UT_NEVER;
    submit(h, 0, s);
}

/* One op on both hosts; |skew| later on host 1. */
static void op(unsigned mode, ut_ns budget, ut_ns skew)
{
    call(0, mode, budget);
    run(now + skew);
    call(1, mode, budget);
    op_seq++;
}

#endif
