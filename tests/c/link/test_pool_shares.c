/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gets how much of the pool of credit, and what may come unasked.
 */
#include "one_pool.h"

static void pool__gives_standing_credit_unasked_and_no_more(void)
{
    fresh();
    CHECK_EQ(hand_out(4), 0);
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(inlet[i].granted, pool.standing);
        CHECK(inlet[i].raised);
        inlet[i].raised = false;
        inlet[i].outstanding -= PACKET; /* one has come: not worth a message */
    }
    hand_out(4);
    CHECK(!inlet[0].raised);
    inlet[0].outstanding = pool.standing / 2;
    hand_out(4);
    CHECK(inlet[0].raised && inlet[0].outstanding == pool.standing);
}

enum { KEPT = 1 << 20 };

/* The pool at rest has 48 packets: transfers that have room in it side by side may come unasked, whole or not at all,
 * and those of two stages as far as there is room. */
static void pool__small_transfers_may_come_unasked_as_a_whole(void)
{
    static const struct {
        uint32_t packets, peers, standing; /* packets of it */
    } rows[] = {{0, 3, 8},   {5, 3, 10}, {8, 3, 16},  {16, 3, 16}, {17, 3, 8}, {6, 7, 8},
                {48, 1, 48}, {49, 1, 8}, {24, 1, 48}, {12, 4, 12}, {13, 4, 8}, {12, 3, 16}};
    fresh();
    samples(1, 125000000, 0, 0, 0, false); /* of three peers: now the least is 8 */
    pool.bytes = UT_POOL_PACKETS * PACKET;
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ut_pool_expect(&pool, rows[i].packets, KEPT, rows[i].peers);
        CHECK_EQ(pool.standing, rows[i].standing * PACKET);
    }
    hand_out(3);
    for (unsigned i = 0; i < 3; i++)
        CHECK_EQ(inlet[i].granted, 16 * PACKET);
    ut_pool_expect(&pool, 12, 11, 3); /* of a peer's early data no more than so many packets are kept */
    CHECK_EQ(pool.standing, 8 * PACKET);
    ut_pool_expect(&pool, 12, 13, 3);
    CHECK_EQ(pool.standing, 13 * PACKET);
    samples(60, 12500000000, 0, UT_MS, 0, true); /* as much standing credit as there may be */
    CHECK_EQ(pool.standing, UT_POOL_STANDING_MAX * PACKET);
    uint32_t room = (uint32_t)(pool.bytes / PACKET / 3); /* many a pool has more */
    CHECK_GE(room, 2 * UT_POOL_STANDING_MAX);
    ut_pool_expect(&pool, room, KEPT, 3);
    CHECK_EQ(pool.standing, room * PACKET);
    ut_pool_expect(&pool, room + 1, KEPT, 3);
    CHECK_EQ(pool.standing, UT_POOL_STANDING_MAX * PACKET);
}

/* A peer that may go on with what it has is told of more in its own time: with transfers of five packets in mind two of
 * them may be under way, and as much as is known to come. */
static void pool__tells_at_once_whoever_may_be_waiting(void)
{
    static const struct {
        const char *what;
        uint32_t outstanding, more; /* packets */
        bool urgent;
    } rows[] = {{"one stage is through, the next has its credit", 5, 0, false},
                {"the next stage has not", 4, 0, true},
                {"all that is known to come may come", 6, 6, false},
                {"more is known to come", 6, 7, true}};
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fresh();
        samples(1, 125000000, 0, 0, 0, false);
        pool.bytes = UT_POOL_PACKETS * PACKET;
        ut_pool_expect(&pool, 5, KEPT, 3);
        CHECK_EQ(pool.standing, 10 * PACKET);
        inlet[0].outstanding = rows[i].outstanding * PACKET;
        inlet[0].more = rows[i].more * PACKET;
        pool.quantum = PACKET;
        hand_out(1);
        CHECK_MSG(inlet[0].raised && inlet[0].urgent == rows[i].urgent, "%s", rows[i].what);
    }
    fresh(); /* nothing is known of what comes: half of the standing credit */
    inlet[0].outstanding = pool.standing / 2;
    hand_out(2);
    CHECK(inlet[0].raised && !inlet[0].urgent);
    CHECK(inlet[1].raised && inlet[1].urgent);
}

/* Whoever waits for its turn may send a trickle. */
static void pool__gives_no_more_unasked_than_the_caller_allows(void)
{
    fresh();
    inlet[0].unasked = 4 * PACKET;
    hand_out(2);
    CHECK_EQ(inlet[0].outstanding, 4 * PACKET);
    CHECK_EQ(inlet[1].outstanding, pool.standing);
}

/* What came early has been received, but nobody here knows yet what it is for: it uses the standing credit up. What is
 * known gets credit in any case, or the repair of an older op would wait behind a newer one that cannot begin. */
static void pool__early_data_use_up_the_standing_credit_alone(void)
{
    fresh();
    inlet[0].early = pool.standing;
    hand_out(1);
    CHECK(!inlet[0].raised);
    inlet[0].more = PACKET;
    hand_out(1);
    CHECK_EQ(inlet[0].outstanding, PACKET);
}

/* What a peer has told of comes if it has nothing for what is open, up to an equal part of the pool, as far as it is
 * kept; but what is no larger than the pool costs no message, nor does what may come in any case. */
static void pool__what_is_told_of_may_come_where_nothing_is_open(void)
{
    for (uint32_t n = 1; n <= 4; n++) {
        fresh();
        inlet[0].told = inlet[0].kept = 1 << 20;
        hand_out(n);
        uint64_t most = pool.standing + UT_MIN2(pool.bytes / n, pool.share);
        CHECK(inlet[0].outstanding <= most && inlet[0].outstanding + pool.quantum > most);
    }
    fresh();
    inlet[0].told = 1 << 20;
    inlet[0].early = 10 * pool.standing;
    inlet[0].kept = inlet[0].early + pool.quantum;
    hand_out(2);
    CHECK_EQ(inlet[0].outstanding, pool.quantum);
    inlet[0].raised = false;
    hand_out(2);
    CHECK(!inlet[0].raised); /* all that would be kept is outstanding */
    fresh();
    inlet[0].told = inlet[0].kept = pool.bytes;
    hand_out(2);
    CHECK_EQ(inlet[0].outstanding, pool.standing);
    fresh();
    inlet[0].told = inlet[0].kept = 1 << 20;
    inlet[0].more = 2 * pool.quantum;
    hand_out(2);
    CHECK_EQ(inlet[0].outstanding, pool.standing + 2 * pool.quantum);
}

static void pool__shares_equally_whoever_came_first(void)
{
    fresh();
    for (unsigned i = 0; i < 4; i++)
        inlet[i] = (ut_inlet){.unasked = UINT64_MAX, .more = 1 << 20, .counts = true};
    inlet[0].outstanding = inlet[0].granted = pool.bytes / 2;
    uint64_t taken = hand_out(4);
    CHECK(taken <= pool.bytes);
    CHECK(pool.held_back && pool.wanting);
    CHECK_EQ(inlet[0].outstanding, pool.bytes / 2); /* it has most */
    for (unsigned i = 2; i < 4; i++) {
        uint64_t more = UT_MAX2(inlet[i].outstanding, inlet[1].outstanding);
        CHECK(more - UT_MIN2(inlet[i].outstanding, inlet[1].outstanding) <= pool.quantum);
    }
}

static void pool__a_dead_host_holds_no_credit(void)
{
    fresh();
    samples(40, 125000000, 0, 50 * UT_US, 0, true);
    inlet[0] = (ut_inlet){
        .unasked = UINT64_MAX, .more = 1 << 20, .counts = true, .outstanding = pool.bytes, .granted = pool.bytes};
    inlet[1] = (ut_inlet){.unasked = UINT64_MAX, .more = 1 << 20, .counts = true};
    hand_out(2);
    uint64_t beside_one_that_lives = inlet[1].outstanding;
    inlet[0].counts = false;
    hand_out(2);
    CHECK(beside_one_that_lives < pool.bytes / 2);
    CHECK(inlet[1].outstanding > pool.bytes / 2);
}

static void pool__leaves_room_to_other_lanes(void)
{
    fresh();
    inlet[0] = (ut_inlet){.unasked = UINT64_MAX, .more = 1 << 20, .counts = true};
    CHECK_EQ(ut_pool_hand_out(&pool, inlet, 1, pool.bytes), 0);
    CHECK_EQ(inlet[0].outstanding, pool.standing); /* which costs no room */
    CHECK(pool.wanting);
    CHECK(hand_out(1) > 0);
    CHECK(!pool.wanting && pool.held_back); /* that is of the whole sample */
}

/* Any peers, any needs: grants never fall, nobody has more than asked for, and all together no more than the pool. */
static void pool__keeps_its_bounds_whatever_comes(void)
{
    for (unsigned round = 0; round < 2000; round++) {
        fresh();
        uint32_t n = 1 + (uint32_t)(check_random() % SENDERS);
        pool.bytes = (1 + check_random() % 1000) * PACKET;
        for (unsigned turn = 0; turn < 8; turn++) {
            static ut_inlet before[SENDERS];
            for (uint32_t i = 0; i < n; i++) {
                ut_inlet *in = &inlet[i];
                in->outstanding -= check_random() % (in->outstanding + 1);
                in->more = check_random() % 3 ? check_random() % (1 << 20) : 0;
                in->early = check_random() % 5 ? 0 : check_random() % (1 << 17);
                in->told = check_random() % 2 ? check_random() % (1 << 20) : 0;
                in->kept = check_random() % (1 << 19);
                in->counts = check_random() % 8 != 0;
                in->raised = false;
                before[i] = *in;
            }
            uint64_t taken = hand_out(n), old = 0;
            for (uint32_t i = 0; i < n; i++) {
                const ut_inlet *a = &before[i], *b = &inlet[i];
                CHECK_MSG(b->granted - a->granted == b->outstanding - a->outstanding && b->granted >= a->granted &&
                              b->raised == (b->granted > a->granted),
                          "round %u: inlet %u", round, i);
                uint64_t more = a->more ? a->more : UT_MIN2(a->told, a->kept);
                CHECK_MSG(b->outstanding <= UT_MAX2(a->outstanding, more + pool.standing), "round %u: inlet %u", round,
                          i);
                old += a->counts && a->outstanding > pool.standing ? a->outstanding - pool.standing : 0;
            }
            CHECK_MSG(taken <= UT_MAX2(pool.bytes, old), "round %u: %zu of %zu", round, (size_t)taken,
                      (size_t)pool.bytes);
        }
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(pool__gives_standing_credit_unasked_and_no_more);
    RUN(pool__small_transfers_may_come_unasked_as_a_whole);
    RUN(pool__tells_at_once_whoever_may_be_waiting);
    RUN(pool__gives_no_more_unasked_than_the_caller_allows);
    RUN(pool__early_data_use_up_the_standing_credit_alone);
    RUN(pool__what_is_told_of_may_come_where_nothing_is_open);
    RUN(pool__shares_equally_whoever_came_first);
    RUN(pool__a_dead_host_holds_no_credit);
    RUN(pool__leaves_room_to_other_lanes);
    RUN(pool__keeps_its_bounds_whatever_comes);
    return check_end();
}
