/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast data goes to the host's own link: steps up and down by what stands there when a refill is due, and a link
 * in a few lines, which a sender that is paced keeps busy with hardly a queue, also after the link has changed.
 */
#include "check.h"

#include "udp/pace.h"

enum { KIB = 1024, MBIT = 125000 /* bytes a second */, SAVED = 256000 /* bytes that a link lets pass after a rest */ };

/* A backlog that drains at |rate|, after a look that found |queued|. */
static ut_backlog drains_at(uint64_t rate, uint64_t queued)
{
    return (ut_backlog){.rate = rate, .queued = queued, .bounded = true};
}

/* Paced at the rate at which |b| drains, a refill due at |*now|. */
static ut_pace paced(const ut_backlog *b, ut_ns *now)
{
    ut_pace p = {0};
    CHECK(!ut_pace_count(&p, b, *now));
    CHECK(p.rate == b->rate && ut_pace_room(&p) == 0);
    *now = ut_pace_wake(&p, b);
    CHECK(ut_pace_count(&p, b, *now));
    return p;
}

static void pace__is_for_links_that_queue_and_are_not_slow(void)
{
    const struct {
        const char *what;
        uint64_t rate;
        bool paced;
    } rows[] = {
        {"nothing ever stood", 0, false},
        {"64 KiB leave in 2.6 ms", 200 * MBIT, false},
        {"64 KiB leave in 2 ms", 263 * MBIT, true},
        {"100 Gbit/s", 100000ULL * MBIT, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const ut_backlog b = drains_at(rows[i].rate, 0);
        ut_pace p = {0};
        ut_pace_sent(&p, 100 * KIB);
        ut_pace_count(&p, &b, UT_SECOND);
        CHECK_MSG((ut_pace_room(&p) != UINT64_MAX) == rows[i].paced, "%s", rows[i].what);
        CHECK_MSG((ut_pace_wake(&p, &b) != UT_NEVER) == rows[i].paced, "%s", rows[i].what);
    }
}

/* What stands there already is taken from the room, and a refill goes as a whole. */
static void pace_room__comes_by_refills(void)
{
    const ut_backlog b = drains_at(1000 * MBIT, 20 * KIB);
    ut_pace p = {0};
    ut_ns now = UT_SECOND;
    ut_pace_count(&p, &b, now);
    const ut_ns wake = ut_pace_wake(&p, &b);
    CHECK_EQ(wake - now, (64 + 20) * KIB * 8 + 1); /* 8 ns a byte */
    CHECK(!ut_pace_count(&p, &b, wake - 10 * UT_US) && ut_pace_room(&p) == 0);
    CHECK(ut_pace_count(&p, &b, wake) && ut_pace_room(&p) >= 64 * KIB && ut_pace_room(&p) < 65 * KIB);
    CHECK(ut_pace_wake(&p, &b) == UT_NEVER);
    ut_pace_sent(&p, 40 * KIB);
    CHECK(!ut_pace_count(&p, &b, wake) && ut_pace_room(&p) == 0);
    /* Who wakes late makes up for a millisecond, but not for more. */
    CHECK(ut_pace_count(&p, &b, wake + UT_SECOND));
    CHECK_EQ(ut_pace_room(&p), 2 * 64 * KIB);
}

static void pace_step__follows_what_stands(void)
{
    ut_backlog b = drains_at(1000 * MBIT, 0);
    ut_ns now = UT_SECOND;
    ut_pace p = paced(&b, &now);
    uint64_t rate = p.rate;
    b.queued = 4 * KIB - 1;
    ut_pace_step(&p, &b);
    CHECK_EQ(p.rate, rate + rate / 2048);
    b.queued = 4 * KIB;
    rate = p.rate;
    const int64_t room = p.room;
    ut_pace_step(&p, &b);
    CHECK_EQ(p.rate, rate - rate / 32);
    CHECK(p.room == room - 4 * KIB && !p.waits);
    /* No lower than by an eighth of what the queue drains at, however long something stands. */
    for (unsigned i = 0; i < 100; i++)
        ut_pace_step(&p, &b);
    CHECK_EQ(p.rate, b.rate - b.rate / 8);
    CHECK(p.waits);
    /* Steps up double, but not without end. */
    b.queued = 0;
    for (unsigned i = 0; i < UT_PACE_UP_DOUBLES; i++)
        ut_pace_step(&p, &b);
    rate = p.rate;
    ut_pace_step(&p, &b);
    CHECK_EQ(p.rate, rate + rate / 2048 * 2);
    for (unsigned i = 0; i < 1000; i++)
        ut_pace_step(&p, &b);
    rate = p.rate;
    ut_pace_step(&p, &b);
    CHECK_EQ(p.rate, rate + rate / 2048 * 32);
}

enum { BURSTS = 4096 }; /* that may stand in a link's queue */

/* A link that saves up what it does not carry, and a thread that always has data and wakes late. */
typedef struct link_of {
    uint64_t rate;
    double saved, queued;
    uint64_t carried;
    bool whole; /* the kernel counts a burst until all of it has left */
    uint64_t handed, end[BURSTS];
    unsigned first, bursts; /* those that stand: where in all that was handed over each ends, oldest first */
    ut_backlog b;
    ut_pace p;
} link_of;

static void pass_time(link_of *l, ut_ns time)
{
    const double can = (double)l->rate * (double)time / UT_SECOND, does = UT_MIN2(can, l->queued);
    l->queued -= does;
    l->saved = UT_MIN2(l->saved + can - does, (double)SAVED);
    l->carried += (uint64_t)does;
}

/* What the kernel says that stands. */
static uint64_t seen(link_of *l)
{
    const double left = (double)l->handed - l->queued;
    while (l->bursts > 0 && (double)l->end[l->first] <= left + 0.5) {
        l->first = (l->first + 1) % BURSTS;
        l->bursts--;
    }
    if (!l->whole)
        return (uint64_t)l->queued;
    return l->bursts ? l->handed - l->end[(l->first + BURSTS - 1) % BURSTS] : 0; /* the one before ended there */
}

static void hand_over(link_of *l, uint64_t bytes)
{
    const double at_once = UT_MIN2(l->saved, (double)bytes);
    (void)seen(l);
    l->saved -= at_once;
    l->carried += (uint64_t)at_once;
    l->queued += (double)bytes - at_once;
    l->handed += bytes;
    assert(l->bursts < BURSTS);
    l->end[(l->first + l->bursts++) % BURSTS] = l->handed;
}

/* As ut_sender_look does it. */
static void look(link_of *l, bool sent, ut_ns now)
{
    const bool full = l->b.full, refill = ut_pace_count(&l->p, &l->b, now);
    if (refill || ut_backlog_due(&l->b, sent, now)) {
        ut_backlog_look(&l->b, seen(l), sent, now);
        if (refill || (l->b.full && !full))
            ut_pace_step(&l->p, &l->b);
    }
}

/* Runs for |time|. Returns the part of it in which something stood. */
static double run_for(link_of *l, ut_ns *now, ut_ns time, ut_ns late)
{
    ut_ns stood = 0;
    const ut_ns begin = *now;
    while (*now < begin + time) {
        look(l, false, *now);
        uint64_t sent = 0, burst;
        while ((burst = UT_MIN2(ut_backlog_burst(&l->b, sent), ut_pace_room(&l->p))) > 0 && sent < 4096 * KIB) {
            const uint64_t some = UT_MIN2(UT_MAX2(burst, (uint64_t)1472), (uint64_t)44 * 1472);
            ut_pace_sent(&l->p, some);
            hand_over(l, some);
            sent += some;
        }
        look(l, sent > 0, *now);
        const ut_ns drained = ut_backlog_wake(&l->b), due = ut_pace_wake(&l->p, &l->b);
        const ut_ns wake = UT_MAX2(drained == UT_NEVER ? *now : drained, due == UT_NEVER ? *now : due);
        const ut_ns took = UT_MAX2(wake - UT_MIN2(wake, *now), UT_US) + check_below(late + 1);
        stood += UT_MIN2(took, (ut_ns)(l->queued * UT_SECOND / (double)l->rate));
        pass_time(l, took);
        *now += took;
    }
    return (double)stood / (double)(*now - begin);
}

static void pace__keeps_a_link_busy_without_a_queue(void)
{
    static const struct {
        uint64_t mbit;
        bool whole;
        double busy, stood; /* at least, at most; without pace a queue stands all the time */
    } rows[] = {
        {300, false, 0.98, 0.85},   {1000, false, 0.98, 0.85},   {2500, false, 0.98, 0.85}, {10000, false, 0.98, 0.85},
        {25000, false, 0.98, 0.85}, {100000, false, 0.98, 0.95}, /* 30 us are much of a refill */
        {300, true, 0.97, 0.95},    {400, true, 0.97, 0.95},     {500, true, 0.97, 0.95},   {1000, true, 0.97, 0.95},
        {10000, true, 0.97, 0.95},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_reseed((uint64_t)i);
        link_of l = {.rate = rows[i].mbit * MBIT, .whole = rows[i].whole};
        ut_ns now = UT_SECOND;
        run_for(&l, &now, UT_SECOND, 30 * UT_US);
        l.carried = 0;
        const ut_ns begin = now;
        const double stood = run_for(&l, &now, UT_SECOND, 30 * UT_US);
        const double busy = (double)l.carried / ((double)l.rate * (double)(now - begin) / UT_SECOND);
        const char *how = rows[i].whole ? ", bursts whole" : "";
        CHECK_MSG(busy > rows[i].busy, "%lu Mbit/s%s: busy for %.4f of the time", (unsigned long)rows[i].mbit, how,
                  busy);
        CHECK_MSG(stood < rows[i].stood, "%lu Mbit/s%s: a queue for %.3f of the time", (unsigned long)rows[i].mbit, how,
                  stood);
        CHECK_MSG(l.p.rate > 0, "%lu Mbit/s%s: paced", (unsigned long)rows[i].mbit, how);
    }
}

static void pace__follows_a_link_that_changes(void)
{
    static const struct {
        uint64_t before, after;
        ut_ns within;
    } rows[] = {
        {1000, 4000, 400 * UT_MS},
        {1000, 10000, 600 * UT_MS},
        {4000, 1000, 100 * UT_MS},
        {10000, 500, 200 * UT_MS},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        check_reseed((uint64_t)i);
        link_of l = {.rate = rows[i].before * MBIT};
        ut_ns now = UT_SECOND;
        run_for(&l, &now, UT_SECOND, 30 * UT_US);
        l.rate = rows[i].after * MBIT;
        run_for(&l, &now, rows[i].within, 30 * UT_US);
        const double found = (double)l.p.rate / (double)l.rate;
        CHECK_MSG(found > 0.9 && found < 1.1, "%lu to %lu Mbit/s: %.3f of it is found", (unsigned long)rows[i].before,
                  (unsigned long)rows[i].after, found);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(pace__is_for_links_that_queue_and_are_not_slow);
    RUN(pace_room__comes_by_refills);
    RUN(pace_step__follows_what_stands);
    RUN(pace__keeps_a_link_busy_without_a_queue);
    RUN(pace__follows_a_link_that_changes);
    return check_end();
}
