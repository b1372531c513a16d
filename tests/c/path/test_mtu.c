/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether full packets get through: what it takes to blame their size, what it takes to trust it again, and that what
 * says nothing of the size changes nothing.
 */
#include "check.h"

#include "core/path/mtu.h"

enum { FULL = 1472, SMALL = UT_PATH_MIN, START = 5000 };

/* |n| full packets in a row are lost, |apart| microseconds between them, and the peer is heard all the time. Returns
 * which of them changed the way, counted from 1; 0 for none. */
static uint32_t lose(ut_mtu *m, uint32_t n, uint32_t from, uint32_t apart)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = from + i * apart;
        if (ut_mtu_fate(m, FULL, m->pieces, false, at, at + 1))
            return i + 1;
    }
    return 0;
}

static void mtu__four_losses_over_the_patience_blame_the_size(void)
{
    ut_mtu m = {0};
    CHECK(ut_mtu_whole(&m, FULL, START));
    CHECK_EQ(lose(&m, 100, START, UT_MTU_PATIENCE_US / 4), 5); /* four are enough, and are too soon */
    CHECK(m.pieces);
    m = (ut_mtu){0};
    CHECK_EQ(lose(&m, 100, START, UT_MTU_PATIENCE_US / 10), 11); /* many at once are a burst, not a size */
    m = (ut_mtu){0};
    CHECK_EQ(lose(&m, UT_MTU_LOST_MIN - 1, START, 10 * UT_MTU_PATIENCE_US), 0);
    m = (ut_mtu){0};
    CHECK_EQ(lose(&m, 100, UINT32_MAX - UT_MTU_PATIENCE_US / 2, UT_MTU_PATIENCE_US / 4), 5); /* the clock wraps */
}

/* A peer that is silent altogether says nothing of sizes: nothing at all gets through. */
static void mtu__a_silent_peer_is_not_blamed_on_the_size(void)
{
    ut_mtu m = {0};
    for (uint32_t i = 0; i < 100; i++)
        CHECK(!ut_mtu_fate(&m, FULL, false, false, START + i * UT_MTU_PATIENCE_US, START));
    CHECK(!m.pieces);
    CHECK(ut_mtu_fate(&m, FULL, false, false, START + 100 * UT_MTU_PATIENCE_US, START + 1)); /* heard again */
}

static void mtu__an_acknowledgement_begins_the_count_anew(void)
{
    ut_mtu m = {0};
    CHECK_EQ(lose(&m, 3, START, UT_MTU_PATIENCE_US), 0);
    CHECK(!ut_mtu_fate(&m, FULL, false, true, START, START));
    CHECK_EQ(lose(&m, 3, START + 10 * UT_MTU_PATIENCE_US, UT_MTU_PATIENCE_US), 0);
    CHECK_EQ(m.lost, 3);
}

/* Every path carries small packets: their fate is no news, and they always go whole. */
static void mtu__small_packets_tell_nothing(void)
{
    ut_mtu m = {0};
    for (uint32_t i = 0; i < 100; i++)
        CHECK(!ut_mtu_fate(&m, SMALL, false, false, START + i * UT_MTU_PATIENCE_US, UINT32_MAX / 2));
    CHECK_EQ(m.lost, 0);
    CHECK_EQ(lose(&m, 4, START, UT_MTU_PATIENCE_US), 4);
    CHECK(!ut_mtu_fate(&m, SMALL, false, true, START, START));
    CHECK(m.pieces);
    CHECK(ut_mtu_whole(&m, SMALL, START + 4 * UT_MTU_PATIENCE_US));
    CHECK(!ut_mtu_whole(&m, SMALL + 1, START + 4 * UT_MTU_PATIENCE_US));
}

/* While they go in pieces, one goes whole every ten seconds; if that one arrives, all do. */
static void mtu__one_goes_whole_now_and_then_and_raises(void)
{
    ut_mtu m = {0};
    CHECK_EQ(lose(&m, 4, START, UT_MTU_PATIENCE_US), 4);
    uint32_t at = START + 3 * UT_MTU_PATIENCE_US, looks = 0;
    for (uint32_t t = at; t < at + 35000000; t += 100000)
        looks += ut_mtu_whole(&m, FULL, t);
    CHECK_EQ(looks, 3);
    CHECK(
        !ut_mtu_fate(&m, FULL, false, false, at + 10000000, at + 10000001)); /* that one was lost, and one is enough */
    CHECK(m.pieces && m.lost == 0);
    CHECK(!ut_mtu_fate(&m, FULL, true, true, at, at)); /* pieces that arrive are what is expected */
    CHECK(ut_mtu_fate(&m, FULL, false, true, at + 20000000, at + 20000001));
    CHECK(!m.pieces && ut_mtu_whole(&m, FULL, at + 20000002));
}

/* Losses of what went whole, heard of after the way has changed, do not count against the pieces. */
static void mtu__fates_of_the_former_way_are_late_news(void)
{
    ut_mtu m = {0};
    CHECK_EQ(lose(&m, 4, START, UT_MTU_PATIENCE_US), 4);
    for (uint32_t i = 0; i < 100; i++)
        CHECK(!ut_mtu_fate(&m, FULL, false, false, START + i, START + 2 * UT_MTU_PATIENCE_US));
    CHECK(m.pieces && m.lost == 0);
}

/* Where pieces die as well it was not the size: they go whole again, and so on in turns. */
static void mtu__pieces_that_die_are_given_up_too(void)
{
    ut_mtu m = {0};
    uint32_t at = START;
    for (unsigned turn = 0; turn < 6; turn++, at += 10 * UT_MTU_PATIENCE_US) {
        CHECK_EQ(lose(&m, 4, at, UT_MTU_PATIENCE_US), 4);
        CHECK_EQ(m.pieces, turn % 2 == 0);
    }
}

/* |n| packets get through in the way that they go now; how many changes of the way are told of. */
static unsigned arrive(ut_mtu *m, uint32_t n, uint32_t at)
{
    unsigned told = 0;
    for (uint32_t i = 0; i < n; i++) {
        ut_mtu_fate(m, FULL, m->pieces, true, at, at + 1);
        told += ut_mtu_proved(m);
    }
    return told;
}

/* Only a way in which packets get through says that the size was wrong, and only one that was not told of is news. */
static void mtu__a_way_is_told_of_once_it_works(void)
{
    ut_mtu m = {0};
    CHECK_EQ(arrive(&m, 100, START), 0); /* as everybody believes */
    CHECK_EQ(lose(&m, 4, START, UT_MTU_PATIENCE_US), 4);
    CHECK(m.pieces && !ut_mtu_proved(&m));
    CHECK_EQ(arrive(&m, UT_MTU_PROOF - 1, START), 0);
    CHECK_EQ(arrive(&m, 100, START), 1);
    CHECK(m.told);
    CHECK(ut_mtu_fate(&m, FULL, false, true, START, START + 1)); /* the one that looks whether the path has grown */
    CHECK_EQ(arrive(&m, UT_MTU_PROOF - 2, START), 0);
    CHECK_EQ(arrive(&m, 100, START), 1);
    CHECK(!m.told);
}

/* While nothing gets through the way changes in turns. With a loss among each dozen packets it is no better. */
static void mtu__loss_is_not_told_as_a_size(void)
{
    ut_mtu m = {0};
    uint32_t at = START;
    for (unsigned turn = 0; turn < 6; turn++, at += 10 * UT_MTU_PATIENCE_US) {
        CHECK_EQ(lose(&m, 4, at, UT_MTU_PATIENCE_US), 4);
        CHECK(!ut_mtu_proved(&m));
    }
    for (unsigned turn = 0; turn < 20; turn++, at += 10 * UT_MTU_PATIENCE_US) {
        CHECK_EQ(lose(&m, 4, at, UT_MTU_PATIENCE_US), 4);
        CHECK_EQ(arrive(&m, 12, at), 0);
        CHECK_EQ(lose(&m, 1, at, UT_MTU_PATIENCE_US), 0);
        CHECK_EQ(arrive(&m, 12, at), 0);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(mtu__four_losses_over_the_patience_blame_the_size);
    RUN(mtu__a_silent_peer_is_not_blamed_on_the_size);
    RUN(mtu__an_acknowledgement_begins_the_count_anew);
    RUN(mtu__small_packets_tell_nothing);
    RUN(mtu__one_goes_whole_now_and_then_and_raises);
    RUN(mtu__fates_of_the_former_way_are_late_news);
    RUN(mtu__pieces_that_die_are_given_up_too);
    RUN(mtu__a_way_is_told_of_once_it_works);
    RUN(mtu__loss_is_not_told_as_a_size);
    return check_end();
}
