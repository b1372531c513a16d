/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of credit alone: how large it is, by what comes, and who gets how much of it. Sizes are worked out by hand
 * for links of 1 to 100 Gbit/s.
 */
#include "check.h"

#include "core/link/pool.h"

enum { PACKET = 1472, SENDERS = 63 };

static ut_pool pool;
static ut_pool_count count;
static ut_inlet inlet[SENDERS];
static ut_ns now;

static void fresh(void)
{
    now = 5 * UT_SECOND;
    count = (ut_pool_count){0};
    ut_pool_init(&pool, PACKET, 64 << 20);
    memset(inlet, 0, sizeof inlet);
    for (unsigned i = 0; i < SENDERS; i++)
        inlet[i].unasked = UINT64_MAX;
}

static ut_ns queue;         /* how long packets wait in it */
static bool in_runs = true; /* what is lost is lost several packets at a time */

/* What comes in |n| samples of a link of |rate| bytes per second that loses one packet in |one_in| (0: none), |round|
 * away: 8 packets at a time, as a turn of the host reads them. */
static void samples(unsigned n, uint64_t rate, uint32_t one_in, ut_ns round, ut_ns late, bool held_back)
{
    enum { TURN = 8 };
    const ut_ns turn = TURN * (ut_ns)PACKET * (UT_SECOND / 1000) / (rate / 1000);
    const ut_ns lasts = UT_MAX2(UT_MAX2(2 * round, 4 * late), 300 * (UT_SECOND * PACKET / rate));
    uint64_t lost = 0;
    ut_pool_measure(&pool, &count, round, late, 3, now);
    for (ut_ns end = now + n * (lasts + turn); now < end;) {
        pool.held_back = held_back;
        if (pool.waits == 0)
            ut_pool_waited(&pool, queue, 1);
        now += turn;
        count.packets += TURN;
        count.bytes += TURN * PACKET;
        lost += TURN;
        const uint64_t gap = one_in && lost >= 2 * one_in ? 2 : 0; /* two in a row */
        lost = gap ? 0 : lost;
        count.numbers += TURN + gap;
        count.runs += in_runs ? gap : 0;
        ut_pool_measure(&pool, &count, round, late, 3, now);
    }
}

/* Within a twenty-fifth: samples end with whole packets. */
static bool near(uint64_t a, uint64_t b)
{
    return a <= b + b / 25 && b <= a + a / 25;
}

static void pool__holds_a_round_trip_of_the_link_and_some_packets(void)
{
    static const struct {
        uint64_t rate; /* bytes per second */
        ut_ns round, late;
        uint64_t bytes; /* rate * (round + 4 late) + 48 packets */
    } rows[] = {
        {125000000, 50 * UT_US, 0, 6250 + 70656},           {125000000, 1000 * UT_US, 0, 125000 + 70656},
        {125000000, 50 * UT_US, 50 * UT_US, 31250 + 70656}, {1250000000, 50 * UT_US, 0, 62500 + 70656},
        {12500000000, 20 * UT_US, 0, 250000 + 70656},       {12500000000, 1000 * UT_US, 0, 12500000 + 70656},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh();
        samples(60, rows[i].rate, 0, rows[i].round, rows[i].late, true);
        CHECK_MSG(near(pool.bytes, rows[i].bytes), "row %zu: %zu, want %zu", i, (size_t)pool.bytes,
                  (size_t)rows[i].bytes);
    }
}

/* Over a long path C is known after a sixteenth of a round trip, in which no more has come than one train: what was
 * unasked. It is what that brings in such a time until more has come; then what it is. */
static void pool__knows_the_link_after_a_part_of_a_round_trip(void)
{
    fresh();
    ut_pool_measure(&pool, &count, 160 * UT_MS, 0, 3, now);
    now += 10 * UT_MS; /* a pause, and 60 packets at 1 Gbit/s, 12 us each */
    for (unsigned i = 0; i < 60; i++, now += 12 * UT_US) {
        count.packets++, count.numbers++;
        count.bytes += PACKET;
        ut_pool_measure(&pool, &count, 160 * UT_MS, 0, 3, now);
    }
    CHECK(near(pool.rate, 60 * PACKET * 100)); /* in 10 ms */
    CHECK(near(pool.bytes, pool.rate / 100 * 16 + UT_POOL_PACKETS * PACKET));
    samples(1, 125000000, 0, 160 * UT_MS, 0, true);
    CHECK(near(pool.rate, 125000000));
    CHECK(near(pool.bytes, 20000000 + UT_POOL_PACKETS * PACKET));
}

/* An op begins at the rate of the last one, and what comes after a pause is no slow link. */
static void pool__keeps_its_rate_over_pauses(void)
{
    fresh();
    samples(4, 125000000, 0, 50 * UT_MS, 0, true);
    const uint64_t before = pool.bytes;
    for (unsigned i = 0; i < 60; i++) {
        now += 10 * UT_SECOND;
        for (unsigned turn = 0; turn < 3; turn++) { /* a sample is full, if it is one */
            now += 800 * UT_US;
            count.packets += 100, count.numbers += 100;
            count.bytes += 100 * PACKET;
            pool.held_back = true;
            ut_pool_measure(&pool, &count, 50 * UT_MS, 0, 3, now);
        }
        CHECK_MSG(near(pool.bytes, before), "after pause %u: %zu, before %zu", i, (size_t)pool.bytes, (size_t)before);
    }
}

/* A queue stands in front of a narrow link, or beside somebody else: the pool gives way within a few round trips, to
 * 0.45 of what path and queue hold, and comes back when the queue is gone. */
static void pool__gives_way_to_a_queue_that_stands(void)
{
    static const struct {
        ut_ns round, waited;
        uint32_t part; /* of 1024 */
    } rows[] = {{50 * UT_MS, 0, 1024},          {50 * UT_MS, 4 * UT_MS, 1024},  {50 * UT_MS, 20 * UT_MS, 587},
                {50 * UT_MS, 40 * UT_MS, 772},  {50 * UT_MS, 90 * UT_MS, 1024}, {200 * UT_MS, 20 * UT_MS, 1024},
                {200 * UT_MS, 50 * UT_MS, 566}, {20 * UT_MS, 3 * UT_MS, 1024},  {50 * UT_US, 300 * UT_US, 1024}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh();
        samples(4, 125000000, 0, rows[i].round, 0, false);
        queue = rows[i].waited;
        samples(12, 125000000, 0, rows[i].round, 0, false); /* each lasts two round trips and more */
        queue = 0;
        CHECK_MSG(pool.way + 16 >= rows[i].part && pool.way <= rows[i].part + 16, "row %zu: %u, want %u", i, pool.way,
                  rows[i].part);
        samples(10, 125000000, 0, rows[i].round, 0, false);
        CHECK_EQ(pool.way, 1024);
    }
}

/* However long the pool was empty, it is not granted at once: a few grants go, and the rest at the pace of the link. */
static void pool__grants_at_the_pace_of_the_link(void)
{
    static const uint64_t rates[] = {250000, 2500000, 12500000, 125000000, 1250000000};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        const uint64_t rate = rates[i], whole = rate / 10;
        fresh();
        samples(8, rate, 0, 100 * UT_MS, 0, true);
        inlet[0] = (ut_inlet){.unasked = UINT64_MAX, .more = UINT32_MAX, .counts = true};
        for (ut_ns start = now, at = now; at < start + 60 * UT_SECOND && inlet[0].outstanding < whole; at = now) {
            uint64_t had = inlet[0].outstanding;
            ut_pool_hand_out(&pool, inlet, 1, 0);
            /* It never stands still: the next grant has a time, and then it goes. */
            CHECK_MSG(at == start || inlet[0].outstanding > had, "%zu bytes per second", (size_t)rate);
            uint64_t most = rate / 1000 * ((at - start) / UT_MS + 1) * 18 / 16 + rate / 250 + 20 * PACKET;
            CHECK_MSG(inlet[0].outstanding <= most + pool.standing, "%zu of %zu", (size_t)inlet[0].outstanding,
                      (size_t)most);
            CHECK(pool.paced_until != UT_NEVER || inlet[0].outstanding + pool.quantum > pool.bytes);
            CHECK(pool.paced_until > now);
            now = pool.paced_until;
            ut_pool_measure(&pool, &count, 100 * UT_MS, 0, 3, now);
        }
    }
}

/* The end of a transfer is granted at once: nothing else comes that would bring it another turn. */
static void pool__the_end_of_a_transfer_waits_for_nothing(void)
{
    fresh();
    samples(8, 125000000, 0, 10 * UT_MS, 0, false);
    inlet[0].more = pool.quantum / 2;
    inlet[0].outstanding = inlet[0].granted = pool.quantum / 2 - PACKET;
    inlet[0].unasked = UINT64_MAX;
    ut_pool_hand_out(&pool, inlet, 1, 0);
    CHECK(inlet[0].outstanding >= inlet[0].more);
}

/* What three peers may have outstanding together. */
static uint64_t all_together(void)
{
    return pool.bytes + 3 * pool.standing;
}

/* Loss that this host makes must never let more go, or it ends in nothing but loss. */
static void pool__never_grows_while_it_loses(void)
{
    fresh();
    samples(40, 125000000, 0, 50 * UT_US, 0, true);
    uint64_t before = all_together();
    for (unsigned i = 0; i < 60; i++) {
        samples(4, 125000000, 50, 50 * UT_US, 0, true);
        CHECK_MSG(all_together() <= before, "turn %u: %zu after %zu", i, (size_t)all_together(), (size_t)before);
        before = all_together();
    }
    CHECK(before < 70 * PACKET); /* squeezed ... */
    CHECK(before > 55 * PACKET); /* ... and yet enough for a link that loses by itself */
    samples(200, 125000000, 0, 50 * UT_US, 0, true);
    CHECK(near(pool.bytes, 6250 + UT_POOL_PACKETS * PACKET)); /* it comes back */
}

/* A network that loses one packet here and one there is not helped by less on the way. */
static void pool__takes_single_losses_for_the_networks_own(void)
{
    fresh();
    samples(40, 125000000, 0, 50 * UT_US, 0, true);
    uint64_t before = all_together();
    in_runs = false;
    samples(200, 125000000, 20, 50 * UT_US, 0, true);
    in_runs = true;
    CHECK(near(all_together(), before));
}

/* Less comes than the link can bring, and grants wait for room: hosts are late, in a way that nobody has measured. */
static void pool__grows_when_the_link_starves(void)
{
    fresh();
    samples(40, 125000000, 0, 50 * UT_US, 0, true);
    uint64_t before = pool.bytes;
    samples(20, 80000000, 0, 50 * UT_US, 0, false);
    CHECK(pool.bytes <= before); /* nobody has anything to send */
    samples(20, 80000000, 0, 50 * UT_US, 0, true);
    CHECK(pool.bytes > before * 3 / 2);
    samples(400, 80000000, 0, 50 * UT_US, 0, true);
    CHECK(pool.bytes <= 4 * before);
    samples(60, 125000000, 0, 50 * UT_US, 0, true);
    CHECK(near(pool.bytes, before));
}

/* Beside others who fill the queue, less comes than the link brings, and packets are lost in runs. */
static void pool__what_was_squeezed_of_late_does_not_grow(void)
{
    fresh();
    samples(40, 125000000, 0, 50 * UT_US, 0, true);
    const uint64_t before = pool.bytes;
    samples(8, 125000000, 50, 50 * UT_US, 0, true);
    CHECK(pool.lossy);
    samples(20, 80000000, 0, 50 * UT_US, 0, true);
    CHECK(!pool.lossy);
    CHECK(pool.bytes <= before);
    samples(100, 80000000, 0, 50 * UT_US, 0, true); /* that was long ago */
    CHECK(pool.bytes > before * 3 / 2);
}

/* Lateness, or growth, may ask for more than a cache holds; what the link itself needs is never cut. */
static void pool__beyond_what_the_link_needs_stays_warm(void)
{
    fresh();
    samples(60, 3000000000, 0, 50 * UT_US, 2 * UT_MS, true);
    CHECK_EQ(pool.bytes, UT_POOL_WARM);
    samples(400, 2000000000, 0, 50 * UT_US, 2 * UT_MS, true);
    CHECK_EQ(pool.bytes, UT_POOL_WARM);
    fresh();
    samples(60, 3000000000, 0, UT_MS, 2 * UT_MS, true);
    CHECK(near(pool.bytes, 6000000 + UT_POOL_PACKETS * PACKET)); /* two round trips of it */
}

/* What the path holds is in nobody's memory; a host that is away has the rest in its socket. */
static void pool__beyond_the_path_is_not_larger_than_the_host_has_room_for(void)
{
    fresh();
    ut_pool_init(&pool, PACKET, 1 << 20);
    samples(60, 1250000000, 0, UT_MS, 10 * UT_MS, true);
    CHECK(near(pool.bytes, 1250000 + (1 << 20)));
    samples(60, 12500000000, 0, 10 * UT_MS, 0, true);
    CHECK_EQ(pool.bytes, UT_POOL_MOST); /* no sender takes that for a lie */
}

static uint64_t hand_out(uint32_t n)
{
    return ut_pool_hand_out(&pool, inlet, n, 0);
}

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
    RUN(pool__holds_a_round_trip_of_the_link_and_some_packets);
    RUN(pool__knows_the_link_after_a_part_of_a_round_trip);
    RUN(pool__keeps_its_rate_over_pauses);
    RUN(pool__gives_way_to_a_queue_that_stands);
    RUN(pool__grants_at_the_pace_of_the_link);
    RUN(pool__the_end_of_a_transfer_waits_for_nothing);
    RUN(pool__never_grows_while_it_loses);
    RUN(pool__takes_single_losses_for_the_networks_own);
    RUN(pool__grows_when_the_link_starves);
    RUN(pool__what_was_squeezed_of_late_does_not_grow);
    RUN(pool__beyond_what_the_link_needs_stays_warm);
    RUN(pool__beyond_the_path_is_not_larger_than_the_host_has_room_for);
    RUN(pool__gives_standing_credit_unasked_and_no_more);
    RUN(pool__tells_at_once_whoever_may_be_waiting);
    RUN(pool__small_transfers_may_come_unasked_as_a_whole);
    RUN(pool__gives_no_more_unasked_than_the_caller_allows);
    RUN(pool__early_data_use_up_the_standing_credit_alone);
    RUN(pool__what_is_told_of_may_come_where_nothing_is_open);
    RUN(pool__shares_equally_whoever_came_first);
    RUN(pool__a_dead_host_holds_no_credit);
    RUN(pool__leaves_room_to_other_lanes);
    RUN(pool__keeps_its_bounds_whatever_comes);
    return check_end();
}
