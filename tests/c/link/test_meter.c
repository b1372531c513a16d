/* SPDX-License-Identifier: Apache-2.0
 *
 * The meter of a link, without any job or path: bytes go in, pulses come out.
 */
#include "check.h"

#include "core/link/meter.h"

static ut_pulse pulse(ut_meter *m, uint64_t acked, uint64_t lost, ut_ns lasted, bool full)
{
    m->acked += acked;
    m->gone += acked + lost;
    return ut_meter_end(m, full, m->since + lasted);
}

static void ut_meter_due__with_news_after_one_pulse_without_after_two(void)
{
    ut_meter m = {0};
    ut_meter_begin(&m, false, UT_SECOND);
    CHECK(!ut_meter_due(&m, true, UT_SECOND + UT_PULSE_NS - 1));
    CHECK(ut_meter_due(&m, true, UT_SECOND + UT_PULSE_NS));
    CHECK(!ut_meter_due(&m, false, UT_SECOND + 2 * UT_PULSE_NS - 1));
    CHECK(ut_meter_due(&m, false, UT_SECOND + 2 * UT_PULSE_NS));
}

static void ut_meter_end__is_per_time(void)
{
    ut_meter m = {0};
    ut_meter_begin(&m, false, UT_SECOND);
    ut_pulse p = pulse(&m, 3000000, 600000, 30 * UT_MS, true);
    CHECK_EQ(p.acked, 2000000);  /* in 20 ms */
    CHECK_EQ(p.gone, 120000000); /* in a second */
    CHECK_EQ(p.sent, 3000000);
    CHECK_EQ(p.lasted, 30 * UT_MS);
    CHECK_EQ(m.since, UT_SECOND + 30 * UT_MS);
    CHECK(m.acked == 0 && m.gone == 0);
}

static void ut_meter_end__the_best_fades(void)
{
    ut_meter m = {0};
    ut_meter_begin(&m, false, UT_SECOND);
    pulse(&m, 2560000, 0, UT_PULSE_NS, true);
    CHECK_EQ(m.best, 2560000);
    pulse(&m, 1000000, 0, UT_PULSE_NS, true);
    CHECK_EQ(m.best, 2550000);
    for (unsigned i = 0; i < 1000; i++)
        pulse(&m, 1000000, 0, UT_PULSE_NS, true);
    CHECK_EQ(m.best, 1000000);
}

/* Only a pulse that was full from its beginning to its end says what the link can. */
static void ut_meter_end__knows_when_the_link_was_idle(void)
{
    ut_meter m = {0};
    ut_meter_begin(&m, true, UT_SECOND);
    CHECK(pulse(&m, 1000, 0, UT_PULSE_NS, true).idle); /* after a pause */
    CHECK(!pulse(&m, 1000, 0, UT_PULSE_NS, true).idle);
    CHECK(pulse(&m, 1000, 0, UT_PULSE_NS, false).idle); /* nothing had to wait */
    m.dry = true;
    CHECK(pulse(&m, 1000, 0, UT_PULSE_NS, true).idle); /* it ran dry */
    CHECK(!pulse(&m, 1000, 0, UT_PULSE_NS, true).idle);
}

int main(void)
{
    RUN(ut_meter_due__with_news_after_one_pulse_without_after_two);
    RUN(ut_meter_end__is_per_time);
    RUN(ut_meter_end__the_best_fades);
    RUN(ut_meter_end__knows_when_the_link_was_idle);
    return check_end();
}
