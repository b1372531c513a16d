/* SPDX-License-Identifier: Apache-2.0
 *
 * The rate of a host: what it finds of a link.
 */
#include "check.h"

#include "core/link/rate.h"

static const uint64_t LINK = 120 * 1000 * 1000;

static ut_rate p;

static void fresh(void)
{
    p = (ut_rate){0};
}

/* What a link of |link| carries when the host keeps to its rate. */
static uint64_t over(uint64_t link)
{
    return p.rate ? UT_MIN2(p.rate, link) : link;
}

/* |n| pulses in which the link carries |carried|, and the rate held data up. */
static void pulses(unsigned n, uint64_t carried, bool held)
{
    for (unsigned i = 0; i < n; i++)
        ut_rate_pulse(&p, carried, false, held);
}

static void ut_rate_pulse__waits_until_it_has_seen_enough(void)
{
    fresh();
    ut_rate_pulse(&p, LINK, true, false);
    pulses(UT_RATE_MEAN - 1, LINK, false);
    CHECK_EQ(p.means, 0);
    pulses(UT_RATE_MEANS_MIN - 1, LINK, false);
    CHECK_EQ(p.rate, 0);
    pulses(1, LINK, false);
    CHECK_EQ(p.rate, LINK / 1024 * 992);
}

static void found(void)
{
    fresh();
    ut_rate_pulse(&p, LINK, true, false);
    pulses(UT_RATE_MEAN + UT_RATE_MEANS_MIN, LINK, false);
    CHECK_EQ(p.rate, LINK / 1024 * 992);
}

/* A shaper that was idle lets a burst through at once: an op's first pulses are no rate. */
static void ut_rate_pulse__believes_no_burst_after_a_pause(void)
{
    found();
    for (unsigned op = 0; op < 10; op++) {
        ut_rate_pulse(&p, 2 * LINK, true, false);
        pulses(UT_RATE_MEAN - 1, LINK, false);
    }
    CHECK_EQ(p.most, LINK);
}

/* Ops that are over within three pulses tell of the link together. */
static void ut_rate_pulse__short_ops_count(void)
{
    fresh();
    for (unsigned op = 0; op < UT_RATE_MEAN + UT_RATE_MEANS_MIN; op++) {
        ut_rate_pulse(&p, 2 * LINK, true, false);
        pulses(1, LINK, false);
    }
    CHECK_EQ(p.rate, LINK / 1024 * 992);
}

static void ut_rate_pulse__one_good_pulse_is_no_rate(void)
{
    found();
    pulses(1, LINK + LINK / 10, false);
    CHECK(p.most <= LINK + LINK / 30 + 1);
    CHECK(p.most >= LINK + LINK / 30 - 1);
}

/* It climbs past what it knows; where nothing more comes through, it begins again, a little lower. */
static void ut_rate_pulse__cycles_about_the_link(void)
{
    found();
    uint64_t least = UINT64_MAX, most = 0;
    unsigned frees = 0;
    for (unsigned i = 0; i < 50 * UT_RATE_CYCLE; i++) {
        pulses(1, over(LINK), true);
        if (p.rate == 0)
            frees++;
        else
            least = UT_MIN2(least, p.rate);
        most = UT_MAX2(most, p.rate);
    }
    CHECK_EQ(frees, 0);
    CHECK_MSG(least > LINK / 100 * 95, "fell to %zu of %zu", (size_t)least, (size_t)LINK);
    CHECK_MSG(most > LINK && most < LINK / 100 * 102, "rose to %zu of %zu", (size_t)most, (size_t)LINK);
}

static void ut_rate_pulse__follows_a_link_that_changes(void)
{
    found();
    unsigned n = 0;
    while (p.rate < LINK / 4 * 5 && n++ < 10000)
        pulses(1, over(2 * LINK), true);
    CHECK_MSG(n < 200, "%u pulses", n);
    for (n = 0; p.rate > LINK / 4 && n < 100000; n++)
        pulses(1, over(LINK / 4), true);
    CHECK_MSG(n < 30000, "%u pulses", n); /* minutes: meanwhile it is as if there were no rate */
}

static void ut_rate_pulse__leaves_fast_links_alone(void)
{
    fresh();
    pulses(100, UT_RATE_MBYTES_MAX * UINT64_C(1000000) + 1000, true);
    CHECK_EQ(p.rate, 0);
}

int main(void)
{
    RUN(ut_rate_pulse__waits_until_it_has_seen_enough);
    RUN(ut_rate_pulse__believes_no_burst_after_a_pause);
    RUN(ut_rate_pulse__short_ops_count);
    RUN(ut_rate_pulse__one_good_pulse_is_no_rate);
    RUN(ut_rate_pulse__cycles_about_the_link);
    RUN(ut_rate_pulse__follows_a_link_that_changes);
    RUN(ut_rate_pulse__leaves_fast_links_alone);
    return check_end();
}
