/* SPDX-License-Identifier: Apache-2.0
 *
 * Congestion control alone, against values worked out by hand. Packets have 1000 bytes, and the path's share
 * is 320 000 of them unless a test says otherwise, so that growth comes in steps of 10 000.
 */
#include "check.h"

#include "core/path/cc.h"
#include "core/path/due.h"

enum { PACKET = 1000, SHARE = 320000 };

static ut_cc cc;
static ut_ns now;

static void fresh(unsigned congestion)
{
    now = 10 * UT_SECOND;
    ut_cc_start(&cc, congestion, UT_MS, PACKET, 1, SHARE);
}

/* A feedback |later| after the one before: |acked| packets, the newest of which took |rtt|, out of a full window. */
static ut_cc_sample sample(ut_ns later, ut_ns rtt, uint32_t acked)
{
    now += later;
    return (ut_cc_sample){.now = now,
                          .rtt = rtt,
                          .sent_at = now - rtt,
                          .srtt = rtt,
                          .flying = cc.window,
                          .acked = (uint64_t)acked * PACKET,
                          .packets = acked};
}

static void feed(ut_ns later, ut_ns rtt, uint32_t acked)
{
    ut_cc_sample s = sample(later, rtt, acked);
    ut_cc_feedback(&cc, &s);
}

static void ut_cc_start__begins_with_the_whole_share(void)
{
    static const struct {
        uint32_t peers;
        uint64_t credit, window, floor;
    } rows[] = {
        {1, 1 << 20, 1 << 20, 4 * PACKET},
        {3, 1 << 20, 1 << 20, 1 << 20},
        {3, 100, 4 * PACKET, 4 * PACKET}, /* what may not send learns nothing */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_cc_start(&cc, 0, 0, PACKET, rows[i].peers, rows[i].credit);
        CHECK_MSG(cc.window == rows[i].window && cc.floor == rows[i].floor, "row %zu: %zu, %zu", i, (size_t)cc.window,
                  (size_t)cc.floor);
    }
    CHECK_STR(cc.ops->name, "swift");
    CHECK_EQ(ut_cc_target(&cc), 4 * UT_MS);
}

static void ut_cc_room__is_what_the_window_leaves(void)
{
    fresh(UT_CC_SWIFT);
    CHECK_EQ(ut_cc_room(&cc, 0), SHARE);
    CHECK_EQ(ut_cc_room(&cc, SHARE - 1), 1);
    CHECK_EQ(ut_cc_room(&cc, SHARE + 1), 0);
    fresh(UT_CC_NONE);
    feed(UT_MS, 50 * UT_MS, 1);
    CHECK(ut_cc_room(&cc, SHARE) > UINT64_MAX / 2);
}

/* The receivers see to queues. */
static void ut_cc_swift__does_not_go_by_delay(void)
{
    for (uint32_t peers = 1; peers <= 3; peers += 2) {
        now = 10 * UT_SECOND;
        ut_cc_start(&cc, UT_CC_SWIFT, UT_MS, PACKET, peers, SHARE);
        feed(UT_MS, 100 * UT_US, 1);
        for (int i = 0; i < 20; i++)
            feed(60 * UT_MS, 50 * UT_MS, 1);
        CHECK_EQ(cc.window, SHARE);
        CHECK_EQ(cc.reductions, 0);
    }
}

/* Marks reduce what really flew, which credit may have kept far below the window, and that much is regained. */
static void ut_cc_swift__marks_reduce_what_flew(void)
{
    fresh(UT_CC_SWIFT);
    feed(UT_MS, 100 * UT_US, 1);
    ut_cc_sample s = sample(UT_MS, 100 * UT_US, 4);
    s.flying = SHARE / 8;
    s.ce_packets = 4;
    cc.flew = 0;
    ut_cc_feedback(&cc, &s);
    CHECK_EQ(cc.window, SHARE / 16);
    CHECK_EQ(cc.share, SHARE / 8);
    for (int i = 0; i < 16; i++)
        feed(UT_MS, 100 * UT_US, (uint32_t)(cc.window / PACKET)); /* a 32nd of it per round trip */
    CHECK(cc.window > SHARE / 8 - SHARE / 64 && cc.window < SHARE / 8);
    for (int i = 0; i < 4; i++)
        feed(UT_MS, 100 * UT_US, (uint32_t)(cc.window / PACKET));
    CHECK_EQ(cc.window, SHARE);    /* credit alone bounds it again */
    for (int i = 0; i < 40; i++) { /* marks reduce as far as it goes */
        s = sample(100 * UT_MS, 90 * UT_MS, 1);
        s.ce_packets = 1;
        ut_cc_feedback(&cc, &s);
    }
    CHECK_EQ(cc.window, 4 * PACKET);
}

static void ut_cc_swift__grows_a_step_per_round_trip(void)
{
    fresh(UT_CC_SWIFT);
    feed(UT_MS, 100 * UT_US, 1);
    cc.window = 100000;
    feed(UT_MS, 200 * UT_US, 50); /* half of the window: half of a step */
    CHECK_EQ(cc.window, 105000);
    ut_cc_sample s = sample(UT_MS, 200 * UT_US, 10);
    s.flying = cc.window / 2 - 1; /* the window was not what held the sender up */
    ut_cc_feedback(&cc, &s);
    CHECK_EQ(cc.window, 105000);
    cc.window = SHARE - 1;
    feed(UT_MS, 200 * UT_US, 300);
    CHECK_EQ(cc.window, SHARE); /* and no further */
}

static void ut_cc_swift__halves_by_the_share_of_marks(void)
{
    fresh(UT_CC_SWIFT);
    feed(UT_MS, 100 * UT_US, 1);
    ut_cc_sample s = sample(UT_MS, 100 * UT_US, 4);
    s.ce_packets = 2;
    ut_cc_feedback(&cc, &s);
    CHECK_EQ(cc.window, SHARE - SHARE / 4);
}

static void ut_cc__isolated_loss_changes_nothing(void)
{
    static const unsigned all[] = {UT_CC_SWIFT, UT_CC_DCTCP, UT_CC_TIMELY};
    for (size_t a = 0; a < 3; a++) {
        fresh(all[a]);
        for (int i = 0; i < 100; i++) {
            ut_cc_sample s = sample(UT_MS, 100 * UT_US, 49);
            s.lost = 1; /* 2 % */
            ut_cc_feedback(&cc, &s);
        }
        CHECK_EQ(cc.window, SHARE);
        CHECK_EQ(cc.quick_adapts, 0);
    }
}

static void ut_cc__much_loss_leaves_what_is_delivered(void)
{
    static const unsigned all[] = {UT_CC_SWIFT, UT_CC_DCTCP, UT_CC_TIMELY};
    for (size_t a = 0; a < 3; a++) {
        fresh(all[a]);
        ut_cc_sample s = sample(0, 5 * UT_MS, 0);
        s.idle = true;
        ut_cc_feedback(&cc, &s); /* the span begins */
        s = sample(12 * UT_MS, 5 * UT_MS, 60);
        s.lost = 200;
        s.sent = SHARE;
        ut_cc_feedback(&cc, &s);
        /* 60 000 bytes came in 12 ms; a window lasts 5 ms and what a receiver may hold its news back */
        CHECK_EQ(cc.window, 60 * PACKET * (5 * UT_MS + UT_HOLD_NS) / (12 * UT_MS));
        CHECK_EQ(cc.quick_adapts, 1);
    }
}

/* The end of a transfer, or a sender whose turn it is not: little arrives because little was sent. */
static void ut_cc__much_loss_of_little_sent_changes_nothing(void)
{
    fresh(UT_CC_SWIFT);
    ut_cc_sample s = sample(0, 5 * UT_MS, 0);
    s.idle = true;
    ut_cc_feedback(&cc, &s);
    s = sample(12 * UT_MS, 5 * UT_MS, 60);
    s.lost = 200;
    s.sent = SHARE - 1;
    ut_cc_feedback(&cc, &s);
    CHECK_EQ(cc.window, SHARE);
    CHECK_EQ(cc.quick_adapts, 0);
}

static void ut_cc_dctcp__follows_the_share_of_marks(void)
{
    fresh(UT_CC_DCTCP);
    cc.window = 100000;
    feed(UT_MS, 100 * UT_US, 50); /* no mark yet: it doubles */
    CHECK_EQ(cc.window, 150000);
    CHECK_EQ(cc.as.dctcp.alpha, 1024 - 64);
    ut_cc_sample s = sample(UT_MS, 100 * UT_US, 64);
    s.ce_packets = 16; /* a quarter: alpha = 15/16 * 960 + 1/16 * 256 */
    ut_cc_feedback(&cc, &s);
    CHECK_EQ(cc.as.dctcp.alpha, 900 + 16);
    CHECK_EQ(cc.window, 150000 - 150000 * 916 / 2048);
    uint64_t before = cc.window;
    feed(UT_MS, 100 * UT_US, (uint32_t)(cc.window / PACKET));
    CHECK_EQ(cc.window, before + 1000 * (before / PACKET * PACKET) / before); /* from now on a packet */
    fresh(UT_CC_DCTCP);
    feed(UT_MS, 100 * UT_US, 1);
    feed(UT_MS, 90 * UT_MS, 1);
    feed(UT_MS, 90 * UT_MS, 1);
    CHECK_EQ(cc.window, SHARE); /* delay is not its business */
}

static void ut_cc_timely__follows_the_gradient(void)
{
    fresh(UT_CC_TIMELY);
    cc.window = 100000;
    feed(UT_MS, 100 * UT_US, 100); /* the base, below T_low: a packet */
    CHECK_EQ(cc.window, 101000);
    feed(UT_MS, 600 * UT_US, 1); /* between: gradient 0.46 * 500 us over a base of 100 us is steep: half at most */
    CHECK_EQ(cc.as.timely.gradient, 500000 * 471 / 1024);
    CHECK_EQ(cc.window, 101000 - 101000 / 2);
    fresh(UT_CC_TIMELY);
    feed(UT_MS, 100 * UT_US, 1);
    feed(10 * UT_MS, 2100 * UT_US, 1); /* queueing 2 ms, T_high 1 ms: 0.26 * 1/2 */
    CHECK_EQ(cc.window, SHARE - SHARE * 133 / 1024);
}

static void ut_cc_tune__keeps_the_window(void)
{
    fresh(UT_CC_SWIFT);
    feed(UT_MS, 100 * UT_US, 1);
    cc.window = 50000;
    ut_cc_tune(&cc, UT_CC_DCTCP, 0);
    CHECK_EQ(cc.window, 50000);
    CHECK_EQ(cc.base_rtt, 100 * UT_US);
    CHECK_STR(cc.ops->name, "dctcp");
    ut_cc_tune(&cc, UT_CC_NONE, 0);
    CHECK(ut_cc_room(&cc, 50000) > 50000);
    ut_cc_tune(&cc, UT_CC_TIMELY, 0);
    CHECK_EQ(ut_cc_room(&cc, 0), 50000);
}

static void ut_cc__base_is_forgotten_after_two_spans(void)
{
    fresh(UT_CC_SWIFT);
    feed(UT_MS, 100 * UT_US, 1);
    feed(UT_CC_BASE_SPAN, 300 * UT_US, 1);
    CHECK_EQ(cc.base_rtt, 100 * UT_US);
    feed(UT_CC_BASE_SPAN, 400 * UT_US, 1);
    CHECK_EQ(cc.base_rtt, 300 * UT_US);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_cc_start__begins_with_the_whole_share);
    RUN(ut_cc_room__is_what_the_window_leaves);
    RUN(ut_cc_swift__does_not_go_by_delay);
    RUN(ut_cc_swift__marks_reduce_what_flew);
    RUN(ut_cc_swift__grows_a_step_per_round_trip);
    RUN(ut_cc_swift__halves_by_the_share_of_marks);
    RUN(ut_cc__isolated_loss_changes_nothing);
    RUN(ut_cc__much_loss_leaves_what_is_delivered);
    RUN(ut_cc__much_loss_of_little_sent_changes_nothing);
    RUN(ut_cc_dctcp__follows_the_share_of_marks);
    RUN(ut_cc_timely__follows_the_gradient);
    RUN(ut_cc_tune__keeps_the_window);
    RUN(ut_cc__base_is_forgotten_after_two_spans);
    return check_end();
}
