/* SPDX-License-Identifier: Apache-2.0
 *
 * When an end of a path speaks: as its sender asks, at losses, and else when it has heard nothing for a while.
 */
#include "one_path.h"

/* The earliest row decides; a grant settles the credit alone, and a feedback all of them. */
static void ut_due__the_earliest_row_decides(void)
{
    ut_due d;
    ut_due_settle(&d);
    CHECK_EQ(ut_due_next(&d, UT_DUE_CREDIT), UT_NEVER);
    for (unsigned row = 0; row < UT_DUE_ROWS; row++) {
        ut_due_at(&d, row, 100 - row);
        ut_due_at(&d, row, 200);
        CHECK_EQ(ut_due_next(&d, UT_DUE_CREDIT), 100 - row);
        CHECK_EQ(ut_due_next(&d, UT_DUE_FEEDBACK), row < UT_DUE_FEEDBACK ? UT_NEVER : 100 - row);
    }
    ut_due_settle(&d);
    CHECK_EQ(ut_due_next(&d, UT_DUE_CREDIT), UT_NEVER);
}

/* Sends |n| packets, those in between asking as the path would have it, and answers none. Returns how many asked. */
static unsigned asking(uint32_t n)
{
    unsigned asked = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool ask = ut_conn_asks_in(&tx, PACKET) == 0;
        ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = i, .bytes = PACKET}, 1, ask, now);
        asked += ask;
    }
    return asked;
}

/* At rates from slow to fast, windows from the least one on: of a full window two or three packets ask, those that fill
 * its second half. The answer to the first comes while a half of the window is left. */
static void ut_conn__asks_in_each_quarter_of_its_window(void)
{
    for (uint32_t window = UT_CC_PACKETS_MIN; window <= UT_ACK_BITS; window = window * 3 / 2) {
        fresh();
        ut_cc_start(&tx.cc, UT_CC_SWIFT, 0, PACKET, 3, (uint64_t)window * PACKET);
        tx.tx.grant = UINT64_MAX / 2;
        CHECK_EQ(asking(window / 2 - 1), 0);
        CHECK_EQ(ut_conn_asks_in(&tx, PACKET), 0);
        const unsigned asked = asking(window - (window / 2 - 1));
        CHECK_MSG(asked >= 2 && asked <= 4, "%u of %u", asked, (unsigned)window);
    }
}

/* Where nothing bounds the window, what one feedback reports on does. */
static void ut_conn__asks_though_nothing_binds(void)
{
    fresh();
    tx.cc.ops = NULL;
    tx.tx.grant = UINT64_MAX / 2;
    CHECK_EQ(asking(UT_ACK_BITS / 2 - 1), 0);
    CHECK_EQ(asking(3 * UT_ACK_BITS / 2 + 1), 7);
}

/* An answer comes within a quarter of the round trip. When no more data comes it is after a quarter of the round trip,
 * or a millisecond; and so after there is enough to tell of, though more comes. */
static void ut_conn__speaks_as_it_is_asked(void)
{
    static const ut_ns trips[] = {20 * UT_US, 200 * UT_US, 4 * UT_MS, 30 * UT_MS, 300 * UT_MS};
    for (unsigned i = 0; i < sizeof trips / sizeof *trips; i++) {
        fresh();
        feedback();
        rx.tx.srtt = trips[i];
        const ut_ns hold = UT_MAX2(trips[i] / 4, UT_MS), gap = hold * 9 / 10;
        CHECK_EQ(ut_conn_hold(&rx), hold);
        ut_ns enough = 0;
        for (uint32_t k = 0; k < 100; k++, now += gap) {
            ut_conn_received(&rx, k, &(ut_came){1, PACKET, 0, false, false}, now);
            enough = k < UT_SAMPLE_PACKETS ? now + hold : enough;
            CHECK_EQ(speaks_at(&rx), enough);
        }
        static ut_feedback f;
        ut_conn_fill_feedback(&rx, &f, now);
        ut_conn_received(&rx, 100, &(ut_came){1, PACKET, 0, false, true}, now);
        CHECK_EQ(speaks_at(&rx), now + UT_MIN2(trips[i] / 4, (ut_ns)UT_TIMER_MIN_NS));
        const ut_ns due = speaks_at(&rx);
        now += gap / 100;
        ut_conn_received(&rx, 101, &(ut_came){1, PACKET, 0, false, false}, now);
        CHECK_EQ(speaks_at(&rx), due); /* more data does not put the answer off */
    }
}

/* Who never asks is told when half of what a feedback reports on has come, and who always asks as often as he asks,
 * once for all that comes until the answer is due. */
static void ut_conn__speaks_to_those_who_never_and_always_ask(void)
{
    for (unsigned always = 0; always < 2; always++) {
        fresh();
        feedback();
        rx.tx.srtt = 100 * UT_US;
        unsigned said = 0;
        static ut_feedback f;
        for (uint32_t k = 0; k < 2 * UT_FEEDBACK_PACKETS; k++, now += UT_US) {
            if (speaks_at(&rx) <= now) {
                ut_conn_fill_feedback(&rx, &f, now);
                CHECK_EQ(speaks_at(&rx), UT_NEVER);
                said++;
            }
            ut_conn_received(&rx, k, &(ut_came){1, PACKET, 0, false, always}, now);
        }
        CHECK_EQ(speaks_at(&rx) <= now, !always);
        CHECK_EQ(said, always ? (2 * UT_FEEDBACK_PACKETS - 1) / 25 : 1);
    }
}

/* A grant says nothing of data until there is enough of it to tell, or a feedback is due soon in any case. */
static void ut_conn__a_grant_takes_along_what_is_worth_it(void)
{
    fresh();
    feedback();
    rx.tx.srtt = 8 * UT_MS;
    send_slots(0, UT_REPORT_PACKETS - 1, true);
    CHECK(!ut_conn_grant_takes_along(&rx, now));
    send_slots(200, 1, true);
    CHECK(ut_conn_grant_takes_along(&rx, now));
    feedback();
    CHECK(!ut_conn_grant_takes_along(&rx, now));
    ut_conn_received(&rx, tx.tx.next, &(ut_came){1, PACKET, 0, false, true}, now);
    CHECK(ut_conn_grant_takes_along(&rx, now));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_due__the_earliest_row_decides);
    RUN(ut_conn__asks_in_each_quarter_of_its_window);
    RUN(ut_conn__asks_though_nothing_binds);
    RUN(ut_conn__speaks_as_it_is_asked);
    RUN(ut_conn__speaks_to_those_who_never_and_always_ask);
    RUN(ut_conn__a_grant_takes_along_what_is_worth_it);
    return check_end();
}
