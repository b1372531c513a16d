/* SPDX-License-Identifier: Apache-2.0
 *
 * How long packets may gather: functions of rates and times, so rows of numbers and what must come of them.
 */
#include "check.h"

#include "udp/coalesce.h"

static void coalesce_span__is_the_least_of_three(void)
{
    static const struct {
        const char *what;
        uint64_t rate;
        ut_ns slack, span;
    } rows[] = {
        {"no rate is known", 0, UT_MS, 0},
        {"round trips are as short as they can be: nobody may wait", 20000, 0, 0},
        {"1 Gbit/s: 64 packets are worth a wake-up", 80000, 2 * UT_MS, 800 * UT_US},
        {"10 Gbit/s: the same", 800000, UT_MS, 80 * UT_US},
        {"250 Mbit/s: nothing waits longer than a millisecond", 20000, 2 * UT_MS, UT_MS},
        {"a packet now and then: the same", 10, 2 * UT_MS, UT_MS},
        {"three quarters of what round trips take in queues", 20000, 100 * UT_US, 75 * UT_US},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const ut_ns span = ut_coalesce_span(rows[i].rate, rows[i].slack);
        CHECK_MSG(span == rows[i].span, "%s: %lu ns", rows[i].what, (unsigned long)span);
    }
}

/* 20 packets a millisecond from a second on; returns when the last one came. */
static ut_ns run_steadily(ut_coalesce *c, ut_ns ms)
{
    ut_ns now = UT_SECOND;
    for (ut_ns i = 0; i < 4 * ms; i++)
        ut_coalesce_came(c, 5, 5, now += 250 * UT_US);
    return now;
}

static void coalesce_came__tells_the_rate_of_a_flow(void)
{
    ut_coalesce c = {0};
    ut_ns now = run_steadily(&c, 1);
    CHECK_EQ(c.rate, 0); /* too early to tell */
    c = (ut_coalesce){0};
    now = run_steadily(&c, 20);
    CHECK_EQ(c.rate, 20000);
    ut_coalesce_came(&c, 0, 0, now + UT_MS); /* nothing: no news */
    CHECK_EQ(c.rate, 20000);
    ut_coalesce_came(&c, 5, 5, now + 3 * UT_MS); /* after a pause the rate of before is the best guess, */
    CHECK_EQ(c.rate, 20000);
    ut_coalesce_came(&c, 25, 25, now + 5 * UT_MS); /* ... until a pulse says another; the pause is in none */
    CHECK_EQ(c.rate, 15000);
}

/* Aggregates of 15 packets are as good as single ones, of 16 they are not. */
static void coalesce_came__large_aggregates_have_gathered(void)
{
    for (uint64_t each = 15; each <= 16; each++) {
        ut_coalesce c = {0};
        ut_ns now = UT_SECOND;
        for (unsigned i = 0; i < 40; i++)
            ut_coalesce_came(&c, 4 * each, 4, now += 500 * UT_US);
        CHECK_EQ(c.rate, each == 15 ? 4 * each * 2000 : 0);
    }
}

static void coalesce_until__only_what_is_far_from_its_end_waits(void)
{
    ut_coalesce c = {0};
    const ut_ns now = run_steadily(&c, 20);
    CHECK_EQ(ut_coalesce_until(&c, 1000, now), 0); /* no slack is known */
    c.slack = UT_MS;
    CHECK_EQ(ut_coalesce_until(&c, 1000, now), now + 750 * UT_US);
    CHECK_EQ(ut_coalesce_until(&c, 1000, now + 749 * UT_US), now + 750 * UT_US);
    CHECK_EQ(ut_coalesce_until(&c, 1000, now + 750 * UT_US), 0); /* a span is over when it is over */
    /* Two spans bring 30 packets. */
    CHECK_EQ(ut_coalesce_until(&c, 31, now), now + 750 * UT_US);
    CHECK_EQ(ut_coalesce_until(&c, 30, now), 0);
    CHECK_EQ(ut_coalesce_until(&c, 0, now), 0);
}

/* What comes after a silence may be the start of anything. */
static void coalesce_until__a_silence_ends_it(void)
{
    ut_coalesce c = {0};
    const ut_ns now = run_steadily(&c, 20);
    c.slack = UT_MS;
    ut_coalesce_came(&c, 0, 0, now + 2 * UT_MS);
    CHECK(ut_coalesce_until(&c, 1000, now + 2 * UT_MS) != 0);
    ut_coalesce_came(&c, 0, 0, now + 2 * UT_MS + 1);
    CHECK_EQ(ut_coalesce_until(&c, 1000, now + 2 * UT_MS + 1), 0);
}

static void coalesce_join__one_wakeup_does_for_both(void)
{
    const ut_coalesce c = {.read = UT_SECOND};
    const ut_ns until = UT_SECOND + 300 * UT_US;
    CHECK_EQ(ut_coalesce_join(&c, until, until + 150 * UT_US), until + 150 * UT_US);
    CHECK_EQ(ut_coalesce_join(&c, until, until + 151 * UT_US), until);
    CHECK_EQ(ut_coalesce_join(&c, until, until - 1), until); /* it wakes before, in any case */
    CHECK_EQ(ut_coalesce_join(&c, until, UT_NEVER), until);
    CHECK_EQ(ut_coalesce_join(&c, 0, UT_SECOND + UT_MS), 0); /* what is to be heard at once is */
}

/* A thread that refills its link every so often, from 64 KiB at 250 Mbit/s to the same at 1.25 Gbit/s, and reads in
 * between, wakes 4,000 times a second. */
static void coalesce_join__bounds_the_wakeups_of_a_link_that_is_refilled(void)
{
    for (ut_ns refill = 420 * UT_US; refill <= 2100 * UT_US; refill += 10 * UT_US) {
        ut_coalesce c = {0};
        ut_ns now = run_steadily(&c, 20);
        const ut_ns start = now;
        ut_ns room = now + refill;
        uint64_t wakes = 0;
        for (c.slack = 2 * UT_MS; now < start + UT_SECOND; wakes++) {
            const ut_ns until = ut_coalesce_join(&c, ut_coalesce_until(&c, 1000000, now), room);
            const bool reads = until <= room || room >= until - (until - c.read) / 2; /* as loop.c has it */
            CHECK(until > now);
            now = UT_MIN2(until, room);
            room = now >= room ? now + refill : room;
            if (reads)
                ut_coalesce_came(&c, (now - c.read) / 12500, (now - c.read) / 12500, now); /* 80,000 a second */
        }
        CHECK_MSG(wakes <= 4050, "a refill every %lu us: %lu wake-ups", (unsigned long)(refill / UT_US),
                  (unsigned long)wakes);
    }
}

/* However fast packets come, a thread that reads whenever it may wakes 4,000 times a second, or for 64 packets. */
static void coalesce__bounds_the_wakeups(void)
{
    static const uint64_t rates[] = {1000, 8000, 20000, 80000, 200000, 800000, 8000000};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        ut_coalesce c = {0};
        ut_ns now = UT_SECOND;
        uint64_t wakes = 0, came = 0;
        const ut_ns end = now + UT_SECOND, warm = now + 100 * UT_MS;
        for (double owed = 0; now < end;) {
            c.slack = UT_MS;
            const ut_ns until = ut_coalesce_until(&c, 1000000, now), each = UT_SECOND / rates[i];
            const ut_ns next = until ? until : now + each; /* unless it waits, each packet wakes it */
            owed += (double)(next - now) * (double)rates[i] / UT_SECOND;
            now = next;
            ut_coalesce_came(&c, (uint64_t)(owed + 0.5), (uint64_t)(owed + 0.5), now);
            came += now > warm ? (uint64_t)(owed + 0.5) : 0;
            owed -= (double)(uint64_t)(owed + 0.5);
            wakes += now > warm;
        }
        const uint64_t most = UT_MAX2((uint64_t)4000, came * 10 / 9 / 64);
        CHECK_MSG(wakes * 10 / 9 <= most * 3 / 2, "%lu packets a second: %lu wake-ups", (unsigned long)rates[i],
                  (unsigned long)(wakes * 10 / 9));
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(coalesce_span__is_the_least_of_three);
    RUN(coalesce_came__tells_the_rate_of_a_flow);
    RUN(coalesce_came__large_aggregates_have_gathered);
    RUN(coalesce_until__only_what_is_far_from_its_end_waits);
    RUN(coalesce_until__a_silence_ends_it);
    RUN(coalesce_join__one_wakeup_does_for_both);
    RUN(coalesce_join__bounds_the_wakeups_of_a_link_that_is_refilled);
    RUN(coalesce__bounds_the_wakeups);
    return check_end();
}
