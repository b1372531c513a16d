/* SPDX-License-Identifier: Apache-2.0
 *
 * How large the pool of credit is, by what comes, and how fast it is granted. Sizes are worked out by hand for links of
 * 2 Mbit/s to 100 Gbit/s.
 */
#include "one_pool.h"

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

/* What the tallest burst takes beyond the path: three times the usual pool, or what comes in 2 ms more, and no more
 * than a cache holds or the path brings in two round trips. Whoever has room for that is not bounded by it. */
static void pool__says_how_much_room_suffices(void)
{
    static const struct {
        uint64_t rate;
        ut_ns round, late;
        uint64_t beyond;
    } rows[] = {{125000000, 50 * UT_US, 0, 3 * 76906 - 6250},
                {125000000, 50 * UT_MS, 0, 70656 + 250000},
                {125000000, 50 * UT_MS, 1000 * UT_US, 70656 + 750000},
                {12500000000, 20 * UT_US, 0, 3 * 320656 - 250000},
                {12500000000, 1000 * UT_US, 0, 12500000 + 70656},
                {12500000000, 50 * UT_US, 50 * UT_US, UT_POOL_WARM - 625000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh();
        CHECK_EQ(pool.beyond, 0); /* not known yet */
        samples(60, rows[i].rate, 0, rows[i].round, rows[i].late, true);
        CHECK_MSG(near(pool.beyond, rows[i].beyond), "row %zu: %zu, want %zu", i, (size_t)pool.beyond,
                  (size_t)rows[i].beyond);
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

/* A host takes 25 us for each packet, and its link brings one in 12 us: it reads ever more at a time, until its socket
 * is full and drops the rest. At first it has seen the link, and then it knows how late it comes: C is what it works
 * off. */
static void pool__of_a_host_slower_than_its_link_holds_what_it_can_work_off(void)
{
    enum { ROOM = 85 }; /* packets that its socket holds */
    const uint64_t works_off = PACKET * (UT_SECOND / (25 * UT_US));
    uint32_t waiting = 1;
    uint64_t seen = 0;
    fresh();
    ut_pool_measure(&pool, &count, 200 * UT_US, 0, 3, now);
    now += 10 * UT_MS;
    for (ut_ns start = now, late = 0; now < start + 200 * UT_MS; late = UT_MIN2(late + waiting * UT_US, 2 * UT_MS)) {
        count.packets += waiting, count.numbers += waiting;
        count.bytes += waiting * PACKET;
        pool.held_back = true;
        ut_pool_measure(&pool, &count, 200 * UT_US, late, 3, now);
        seen = UT_MAX2(seen, pool.rate);
        now += waiting * 25 * UT_US;
        waiting = UT_MIN2(waiting * 25 / 12, ROOM);
    }
    CHECK_GE(seen, works_off * 3 / 2);
    CHECK_MSG(near(pool.rate, works_off), "%zu, want %zu", (size_t)pool.rate, (size_t)works_off);
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

/* The first grants that are paced are late by two at most, and what waits for its time waits for one that is ahead, not
 * for one by the clock's beginning. The clock may be that of a host that has run for a month. */
static void pool__the_first_pace_begins_when_the_rate_is_known(void)
{
    fresh();
    now = (ut_ns)30 * 24 * 3600 * UT_SECOND;
    inlet[0] = (ut_inlet){.unasked = UINT64_MAX, .more = UINT32_MAX, .counts = true};
    for (unsigned turn = 0; turn < 200 && pool.rate == 0; turn++, now += 20 * UT_US) {
        ut_pool_measure(&pool, &count, 100 * UT_MS, 0, 3, now);
        inlet[0].outstanding = 0;
        ut_pool_hand_out(&pool, inlet, 1, 0);
        CHECK_EQ(pool.paced_until, pool.rate ? pool.paced_until : UT_NEVER);
        CHECK_MSG(pool.paced_until > now, "turn %u: the next grant goes at %zu, now is %zu", turn,
                  (size_t)pool.paced_until, (size_t)now);
        count.packets += 8, count.numbers += 8;
        count.bytes += 8 * PACKET;
    }
    CHECK(pool.rate > 0);
    CHECK_LE(pool.tokens, 2 * pool.quantum);
}

/* What has come is granted anew however fast it came, for no more is outstanding then than before. C, which a look of 4
 * times the lateness has shown, is too low for a host that makes up for the time in which it was not served. */
static void pool__what_came_is_granted_anew_however_fast_it_came(void)
{
    enum { TURNS = 12, LATE = 20 * 1000 * 1000 };
    static const uint64_t rates[] = {12500000, 125000000};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        fresh();
        samples(8, rates[i], 0, 100 * UT_US, LATE, true);
        while (pool.look_at != now) /* what comes now is not seen before the next one ends */
            samples(1, rates[i], 0, 100 * UT_US, LATE, true);
        const uint64_t part = UT_MAX2(rates[i] * 3 / 2000 / PACKET, 1) * PACKET, before = pool.bytes;
        inlet[0] = (ut_inlet){.unasked = UINT64_MAX, .more = UINT32_MAX, .outstanding = before, .counts = true};
        for (unsigned turn = 0; turn < TURNS; turn++) { /* at three times C */
            now += 500 * UT_US;
            count.packets += part / PACKET, count.numbers += part / PACKET;
            count.bytes += part;
            inlet[0].outstanding -= part;
            ut_pool_measure(&pool, &count, 100 * UT_US, LATE, 3, now);
            ut_pool_hand_out(&pool, inlet, 1, 0);
            CHECK_MSG(inlet[0].outstanding + pool.quantum + part >= before, "turn %u: %zu of %zu", turn,
                      (size_t)inlet[0].outstanding, (size_t)before);
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

/* A network that loses each packet by chance loses some beside each other, most of them where it loses many. A queue
 * that is full drops nearly all of them in rows. */
static void pool__what_chance_loses_in_a_row_is_not_our_doing(void)
{
    static const uint32_t lost_percent[] = {1, 2, 5, 10, 20, 40};
    enum { TIMES = 200, TURN = 40 };
    for (size_t i = 0; i < 2 * sizeof lost_percent / sizeof *lost_percent; i++) {
        const uint32_t percent = lost_percent[i / 2], row = i % 2 ? 4 : 1;
        uint32_t ours = 0, judged = 0, gap = 0;
        fresh();
        check_reseed(50 + i);
        while (judged < TIMES) {
            for (unsigned n = 0; n < TURN; n += row) { /* so many share a fate */
                const bool lost = check_below(100) < percent;
                count.numbers += row;
                count.packets += lost ? 0 : row, count.bytes += lost ? 0 : row * PACKET;
                count.runs += !lost && gap > 1 ? gap : 0;
                gap = lost ? gap + row : 0;
            }
            const uint64_t before = pool.judged.numbers;
            now += 500 * UT_US;
            ut_pool_measure(&pool, &count, 50 * UT_US, 0, 3, now);
            judged += pool.judged.numbers != before;
            ours += pool.judged.numbers != before && pool.lossy;
        }
        CHECK_MSG(row > 1 ? ours > TIMES * 9 / 10 : ours <= TIMES / 50, "%u %% in rows of %u: %u of %u are ours",
                  percent, row, ours, TIMES);
    }
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

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(pool__holds_a_round_trip_of_the_link_and_some_packets);
    RUN(pool__says_how_much_room_suffices);
    RUN(pool__knows_the_link_after_a_part_of_a_round_trip);
    RUN(pool__keeps_its_rate_over_pauses);
    RUN(pool__of_a_host_slower_than_its_link_holds_what_it_can_work_off);
    RUN(pool__gives_way_to_a_queue_that_stands);
    RUN(pool__grants_at_the_pace_of_the_link);
    RUN(pool__the_first_pace_begins_when_the_rate_is_known);
    RUN(pool__what_came_is_granted_anew_however_fast_it_came);
    RUN(pool__the_end_of_a_transfer_waits_for_nothing);
    RUN(pool__never_grows_while_it_loses);
    RUN(pool__takes_single_losses_for_the_networks_own);
    RUN(pool__what_chance_loses_in_a_row_is_not_our_doing);
    RUN(pool__grows_when_the_link_starves);
    RUN(pool__what_was_squeezed_of_late_does_not_grow);
    RUN(pool__beyond_what_the_link_needs_stays_warm);
    RUN(pool__beyond_the_path_is_not_larger_than_the_host_has_room_for);
    return check_end();
}
