/* SPDX-License-Identifier: Apache-2.0
 *
 * The pace of a host: what it finds of a link, and that it lets through what it says.
 */
#include "check.h"

#include "core/link/pace.h"

enum { PACKET = 1472 };

static const uint64_t LINK = 120 * 1000 * 1000;

static ut_pace p;

static void fresh(uint64_t limit)
{
    ut_pace_init(&p, limit);
}

/* What a link of |link| carries when the host keeps to its pace. */
static uint64_t over(uint64_t link)
{
    return p.rate ? UT_MIN2(p.rate, link) : link;
}

/* |n| pulses in which the link carries |carried|, and the pace held data up. */
static void pulses(unsigned n, uint64_t carried, bool held)
{
    for (unsigned i = 0; i < n; i++) {
        p.was_held = held;
        ut_pace_pulse(&p, carried, false);
    }
}

static void ut_pace_pulse__waits_until_it_has_seen_enough(void)
{
    fresh(0);
    ut_pace_pulse(&p, LINK, true);
    pulses(UT_PACE_MEAN - 1, LINK, false);
    CHECK_EQ(p.means, 0);
    pulses(UT_PACE_MEANS_MIN - 1, LINK, false);
    CHECK_EQ(p.rate, 0);
    pulses(1, LINK, false);
    CHECK_EQ(p.rate, LINK / 1024 * 992);
}

static void found(void)
{
    fresh(0);
    ut_pace_pulse(&p, LINK, true);
    pulses(UT_PACE_MEAN + UT_PACE_MEANS_MIN, LINK, false);
    CHECK_EQ(p.rate, LINK / 1024 * 992);
}

/* A shaper that was idle lets a burst through at once: an op's first pulses are no rate. */
static void ut_pace_pulse__believes_no_burst_after_a_pause(void)
{
    found();
    for (unsigned op = 0; op < 10; op++) {
        ut_pace_pulse(&p, 2 * LINK, true);
        pulses(UT_PACE_MEAN - 1, LINK, false);
    }
    CHECK_EQ(p.most, LINK);
}

/* Ops that are over within three pulses tell of the link together. */
static void ut_pace_pulse__short_ops_count(void)
{
    fresh(0);
    for (unsigned op = 0; op < UT_PACE_MEAN + UT_PACE_MEANS_MIN; op++) {
        ut_pace_pulse(&p, 2 * LINK, true);
        pulses(1, LINK, false);
    }
    CHECK_EQ(p.rate, LINK / 1024 * 992);
}

static void ut_pace_pulse__one_good_pulse_is_no_rate(void)
{
    found();
    pulses(1, LINK + LINK / 10, false);
    CHECK(p.most <= LINK + LINK / 30 + 1);
    CHECK(p.most >= LINK + LINK / 30 - 1);
}

/* It climbs past what it knows; where nothing more comes through, it begins again, a little lower. */
static void ut_pace_pulse__cycles_about_the_link(void)
{
    found();
    uint64_t least = UINT64_MAX, most = 0;
    unsigned frees = 0;
    for (unsigned i = 0; i < 50 * UT_PACE_CYCLE; i++) {
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

static void ut_pace_pulse__follows_a_link_that_changes(void)
{
    found();
    unsigned n = 0;
    while (p.rate < LINK / 4 * 5 && n++ < 10000)
        pulses(1, over(2 * LINK), true);
    CHECK_MSG(n < 200, "%u pulses", n);
    for (n = 0; p.rate > LINK / 4 && n < 100000; n++)
        pulses(1, over(LINK / 4), true);
    CHECK_MSG(n < 30000, "%u pulses", n); /* minutes: meanwhile it is as if there were no pace */
}

static void ut_pace_pulse__leaves_fast_links_alone(void)
{
    fresh(0);
    pulses(100, UT_PACE_MBYTES_MAX * UINT64_C(1000000) + 1000, true);
    CHECK_EQ(p.rate, 0);
    CHECK_EQ(ut_pace_take(&p, 40, PACKET, UT_SECOND), 40);
}

static void ut_pace_take__lets_through_what_it_says(void)
{
    static const struct {
        uint64_t limit, rate, force;
    } rows[] = {{10000000, 0, 10000000}, {0, 119000000, 119000000}, {50000000, 119000000, 50000000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh(rows[i].limit);
        p.rate = rows[i].rate;
        ut_ns now = UT_SECOND;
        uint64_t sent = 0, wakes = 0;
        while (now < 3 * UT_SECOND) {
            ut_pace_look(&p);
            uint32_t n = ut_pace_take(&p, 44, PACKET, now);
            if (n) {
                CHECK(!p.held);
                CHECK_EQ(ut_pace_wake(&p, PACKET), UT_NEVER);
                ut_pace_sent(&p, n * PACKET);
                sent += n * PACKET;
                continue;
            }
            CHECK(p.held);
            ut_ns wake = ut_pace_wake(&p, PACKET);
            CHECK(wake > now && wake < now + 5 * UT_MS);
            now = wake;
            wakes++;
        }
        uint64_t due = 2 * rows[i].force + UT_PACE_BURST_BYTES;
        CHECK_MSG(sent <= due + 44 * PACKET && sent >= due - due / 200, "row %zu: %zu of %zu", i, (size_t)sent,
                  (size_t)due);
        CHECK_MSG(wakes <= 8100, "row %zu: %zu wakes in two seconds", i, (size_t)wakes); /* each 250 us at most */
    }
}

/* Data that went away must not leave a timer behind, or the thread would never sleep again. */
static void ut_pace_wake__forgets_with_the_next_look(void)
{
    fresh(1000000);
    while (ut_pace_take(&p, 44, PACKET, UT_SECOND))
        ut_pace_sent(&p, 44 * PACKET);
    CHECK(ut_pace_wake(&p, PACKET) != UT_NEVER);
    ut_pace_look(&p);
    CHECK_EQ(ut_pace_wake(&p, PACKET), UT_NEVER);
}

int main(void)
{
    RUN(ut_pace_pulse__waits_until_it_has_seen_enough);
    RUN(ut_pace_pulse__believes_no_burst_after_a_pause);
    RUN(ut_pace_pulse__short_ops_count);
    RUN(ut_pace_pulse__one_good_pulse_is_no_rate);
    RUN(ut_pace_pulse__cycles_about_the_link);
    RUN(ut_pace_pulse__follows_a_link_that_changes);
    RUN(ut_pace_pulse__leaves_fast_links_alone);
    RUN(ut_pace_take__lets_through_what_it_says);
    RUN(ut_pace_wake__forgets_with_the_next_look);
    return check_end();
}
