/* SPDX-License-Identifier: Apache-2.0
 *
 * How much may stand in the host's own queue: a function of looks, so rows of looks and what must come of them, and a
 * link in a few lines on which a sender that keeps to it neither overfills the queue nor lets it run dry.
 */
#include "check.h"

#include "udp/backlog.h"

enum { KIB = 1024, MBIT = 125000 /* bytes a second */ };

/* A look |us| after the one before. */
typedef struct look {
    uint32_t us, queued;
    bool sent;
} look;

static ut_backlog looks_of(const look *looks, size_t n)
{
    ut_backlog b = {0};
    ut_ns now = UT_SECOND;
    for (size_t i = 0; i < n; i++) {
        now += looks[i].us * UT_US;
        ut_backlog_look(&b, looks[i].queued, looks[i].sent, now);
    }
    return b;
}

static void backlog_look__says_rate_and_bound(void)
{
    static const struct {
        const char *what;
        look looks[5];
        uint64_t rate, burst; /* the largest burst after the last look */
        uint64_t wake_us;     /* after the last look; 0: never */
    } rows[] = {
        {"nothing was ever found: no bound", {{0, 0, true}, {50, 0, true}}, 0, UINT64_MAX, 0},
        {"found, rate not known: the least queue, 48 KiB at most", {{0, 20 * KIB, true}}, 0, 16 * KIB, 0},
        {"near its end: as much as fits", {{0, 38 * KIB, true}}, 0, 10 * KIB, 0},
        {"what fits is not worth it: full, and looked at again", {{0, 41 * KIB, true}}, 0, 0, 100},
        {"125 bytes a microsecond: a gigabit", {{0, 200000, true}, {1000, 75000, false}}, 1000 * MBIT, 0, 337},
        {"100 Mbit/s: 2 ms are less than the least queue",
         {{0, 45 * KIB, true}, {3000, 9284, false}},
         12265333,
         16 * KIB,
         0},
        {"200 Mbit/s: 2 ms are the mean", {{0, 100000, true}, {2000, 50000, false}}, 200 * MBIT, 0, 1000},
        {"less than a pulse tells nothing", {{0, 45 * KIB, true}, {900, 10 * KIB, false}}, 0, 16 * KIB, 0},
        {"nor do few bytes in a long time", {{0, 45 * KIB, true}, {5000, 40 * KIB, false}}, 0, 0, 100},
        {"pulses add up",
         {{0, 45 * KIB, true}, {500, 25 * KIB, false}, {0, 45 * KIB, true}, {500, 25 * KIB, false}},
         40 * KIB * 1000,
         32 * KIB,
         0},
        {"a queue that ran dry was at least so fast", {{0, 64000, true}, {1000, 0, false}}, 64000000, 32 * KIB, 0},
        {"little that was gone at once tells nothing", {{0, 39000, true}, {1000, 0, false}}, 0, 16 * KIB, 0},
        {"at least: a slower hint is none",
         {{0, 200000, true}, {1000, 75000, false}, {0, 64000, true}, {1000, 0, false}},
         1000 * MBIT,
         32 * KIB,
         0},
        {"10 Gbit/s: 125 KB is the mean, half as much again the most",
         {{0, 2000000, true}, {1000, 750000, false}, {10, 50000, false}, {0, 150000, true}},
         10000 * MBIT,
         37500,
         0},
        {"a new rate comes in by halves",
         {{0, 2000000, true}, {1000, 1000000, false}, {0, 2000000, true}, {1000, 1500000, false}},
         750000000,
         0,
         1950},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t n = 1;
        while (n < 5 && (rows[i].looks[n].us || rows[i].looks[n].queued || rows[i].looks[n].sent))
            n++;
        const ut_backlog b = looks_of(rows[i].looks, n);
        const ut_ns wake = ut_backlog_wake(&b);
        CHECK_MSG(b.rate == rows[i].rate, "%s: rate %lu", rows[i].what, (unsigned long)b.rate);
        CHECK_MSG(ut_backlog_burst(&b, 0) == rows[i].burst, "%s: burst %lu", rows[i].what,
                  (unsigned long)ut_backlog_burst(&b, 0));
        if (rows[i].wake_us)
            CHECK_MSG((wake - b.at) / UT_US == rows[i].wake_us, "%s: %lu us", rows[i].what,
                      (unsigned long)((wake - b.at) / UT_US));
        else
            CHECK_MSG(wake == UT_NEVER, "%s: wakes", rows[i].what);
    }
}

static void backlog_burst__counts_what_was_sent_since(void)
{
    ut_backlog b = {0};
    ut_backlog_look(&b, 16 * KIB, true, UT_SECOND);
    CHECK_EQ(ut_backlog_burst(&b, 0), 16 * KIB);
    CHECK_EQ(ut_backlog_burst(&b, 20 * KIB), 12 * KIB);
    CHECK_EQ(ut_backlog_burst(&b, 24 * KIB), 8 * KIB);
    CHECK_EQ(ut_backlog_burst(&b, 24 * KIB + 1), 0);
}

/* Full until half of the mean is left, not until the first byte has gone. */
static void backlog_full__has_two_marks(void)
{
    ut_backlog b = {0};
    ut_ns now = UT_SECOND;
    ut_backlog_look(&b, 42 * KIB, true, now);
    CHECK(b.full);
    ut_backlog_look(&b, 17 * KIB, false, now += 200 * UT_US);
    CHECK(b.full && ut_backlog_burst(&b, 0) == 0);
    ut_backlog_look(&b, 16 * KIB, false, now += 10 * UT_US);
    CHECK(!b.full && ut_backlog_burst(&b, 0) == 16 * KIB);
    ut_backlog_look(&b, 39 * KIB, true, now);
    CHECK(!b.full);
}

/* A rate of nearly nothing does not make the thread sleep past the link's return. */
static void backlog_wake__is_bounded(void)
{
    ut_backlog b = {0};
    ut_backlog_look(&b, 100 * KIB, true, UT_SECOND);
    ut_backlog_look(&b, 60 * KIB, false, 11 * UT_SECOND);
    CHECK_EQ(b.rate, 4 * KIB);
    CHECK_EQ(ut_backlog_wake(&b), 11 * UT_SECOND + 10 * UT_MS);
}

/* Looks cost a system call: seldom where nothing ever stands, and not twice within a moment. */
static void backlog_due__is_seldom_where_nothing_stands(void)
{
    ut_backlog b = {0};
    ut_ns now = UT_SECOND;
    unsigned looks = 0;
    for (unsigned i = 0; i < 10256; i++) {
        now += 20 * UT_US;
        CHECK(!ut_backlog_due(&b, false, now));
        if (!ut_backlog_due(&b, true, now))
            continue;
        ut_backlog_look(&b, 0, true, now);
        looks++;
    }
    CHECK_EQ(looks, 256 + 10000 / 16);
    ut_backlog_look(&b, 20 * KIB, true, now);
    CHECK(ut_backlog_due(&b, true, now));
    CHECK(!ut_backlog_due(&b, false, now + 49 * UT_US) && ut_backlog_due(&b, false, now + 50 * UT_US));
    ut_backlog_look(&b, 45 * KIB, true, now);
    CHECK(!ut_backlog_due(&b, false, now + 99 * UT_US) && ut_backlog_due(&b, false, now + 100 * UT_US));
}

/* A shaper lets what it has saved up pass at once, so a few empty looks are no sign that it is gone; thousands are. */
static void backlog_bound__outlasts_a_pause_but_not_the_queue(void)
{
    ut_backlog b = {0};
    ut_ns now = UT_SECOND;
    ut_backlog_look(&b, 20 * KIB, true, now);
    for (unsigned i = 0; i < 4095; i++)
        ut_backlog_look(&b, 0, true, now += 100 * UT_US);
    CHECK(b.bounded && ut_backlog_burst(&b, 0) == 16 * KIB);
    ut_backlog_look(&b, 0, true, now += 100 * UT_US);
    CHECK(!b.bounded && ut_backlog_burst(&b, 0) == UINT64_MAX && b.rate == 0);
}

/* A link that carries |rate| bytes a second, and a thread that always has data and wakes up to |late| too late. */
static void run_link(uint64_t rate, ut_ns late, uint64_t *ret_most, double *ret_idle)
{
    ut_backlog b = {0};
    ut_ns now = UT_SECOND, begin = 0, idle = 0;
    double queued = 0;
    *ret_most = 0;
    for (unsigned wakes = 0; wakes < 20000; wakes++) {
        if (wakes == 5000) { /* it has learnt the rate */
            begin = now;
            idle = 0;
            *ret_most = 0;
        }
        if (ut_backlog_due(&b, false, now))
            ut_backlog_look(&b, (uint64_t)queued, false, now);
        uint64_t sent = 0, burst;
        while ((burst = ut_backlog_burst(&b, sent)) > 0 && sent < 512 * KIB)
            sent += UT_MIN2(burst, 44 * 1472);
        queued += (double)sent;
        *ret_most = UT_MAX2(*ret_most, (uint64_t)queued);
        if (sent && ut_backlog_due(&b, true, now))
            ut_backlog_look(&b, (uint64_t)queued, true, now);
        const ut_ns wake = ut_backlog_wake(&b);
        const ut_ns took = (wake == UT_NEVER || wake < now ? UT_US : wake - now) + check_below(late + 1);
        const ut_ns dry = (ut_ns)(queued * UT_SECOND / (double)rate);
        idle += took > dry ? took - dry : 0;
        queued = took > dry ? 0 : queued - (double)took * (double)rate / UT_SECOND;
        now += took;
    }
    *ret_idle = (double)idle / (double)(now - begin);
}

static void backlog__keeps_a_link_busy_with_little(void)
{
    static const uint64_t mbits[] = {10, 100, 200, 500, 1000, 2500, 10000, 100000};
    for (size_t i = 0; i < sizeof(mbits) / sizeof(mbits[0]); i++) {
        const uint64_t rate = mbits[i] * MBIT, worth = UT_MIN2(rate / 500, (uint64_t)64 * KIB);
        const uint64_t mean = UT_MAX2(UT_MAX2(rate / 10000, (uint64_t)32 * KIB), worth);
        uint64_t most;
        double idle;
        check_reseed((uint64_t)i);
        run_link(rate, 30 * UT_US, &most, &idle);
        CHECK_MSG(most <= mean * 7 / 4, "%lu Mbit/s: %lu bytes stood", (unsigned long)mbits[i], (unsigned long)most);
        CHECK_MSG(idle < 0.01, "%lu Mbit/s: idle for %.3f of the time", (unsigned long)mbits[i], idle);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(backlog_look__says_rate_and_bound);
    RUN(backlog_burst__counts_what_was_sent_since);
    RUN(backlog_full__has_two_marks);
    RUN(backlog_wake__is_bounded);
    RUN(backlog_due__is_seldom_where_nothing_stands);
    RUN(backlog_bound__outlasts_a_pause_but_not_the_queue);
    RUN(backlog__keeps_a_link_busy_with_little);
    return check_end();
}
