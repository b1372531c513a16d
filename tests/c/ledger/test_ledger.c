/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts claim, and how much of it is believed: tables over a ledger of its own, without engines.
 */
#include "check.h"

#include "core/ledger/ledger.h"

enum { SELF = 2, HOSTS = 5, ALL = (1 << HOSTS) - 1 };

static ut_claims rows[HOSTS];
static ut_ledger ledger;

static void begin(void)
{
    memset(rows, 0, sizeof rows);
    ut_ledger_init(&ledger, rows, HOSTS, SELF);
}

static ut_feedback floors(uint64_t rx, uint64_t tx)
{
    return (ut_feedback){.rx_floor = rx, .tx_floor = tx};
}

/* Claims of hosts 0, 1, 3 and 4, this host's own word, how far one host is believed, and what is. */
static void believe__two_hosts_or_one_that_is_near(void)
{
    static const struct {
        const char *what;
        uint64_t claim[HOSTS], among, own, ahead, want;
    } rows_[] = {
        {"nobody has said anything", {0}, ALL, 7, 16, 7},
        {"this host is ahead of all", {3, 4, 0, 5, 6}, ALL, 7, 16, 7},
        {"one host is near", {9, 0, 0, 0, 0}, ALL, 7, 16, 9},
        {"one host is as far as may be", {23, 0, 0, 0, 0}, ALL, 7, 16, 23},
        {"one host is farther", {24, 0, 0, 0, 0}, ALL, 7, 16, 23},
        {"one host is out of reach", {UINT64_MAX, 0, 0, 0, 0}, ALL, 7, 16, 23},
        {"two hosts are far", {900, 0, 0, 0, 800}, ALL, 7, 16, 800},
        {"two say the same", {900, 900, 0, 0, 0}, ALL, 7, 16, 900},
        {"a lower word of two, and one that is near", {20, 9, 0, 9, 0}, ALL, 7, 16, 20},
        {"own claims in the row count for nothing", {0, 0, 900, 0, 0}, ALL, 7, 16, 7},
        {"who is not among them is not asked", {900, 900, 0, 11, 12}, 1 << 3 | 1 << 4, 7, 0, 11},
        {"the only one asked is believed", {900, 800, 0, 0, 0}, 1 << 1, 7, 16, 800},
        {"the only other one too", {900, 0, 0, 0, 0}, 1 << SELF | 1, 7, 16, 900},
        {"but never below the own word", {3, 0, 0, 0, 0}, 1, 7, 16, 7},
        {"nobody is asked", {900, 900, 0, 900, 900}, 0, 7, 16, 7},
    };
    for (unsigned fact = 0; fact < 2; fact++)
        for (unsigned i = 0; i < sizeof rows_ / sizeof *rows_; i++) {
            begin();
            for (uint32_t h = 0; h < HOSTS; h++) {
                rows[h].spoken = fact == UT_FACT_SPOKEN ? rows_[i].claim[h] : 1000;
                rows[h].rx_floor = fact == UT_FACT_ENDED ? rows_[i].claim[h] : 1000;
            }
            uint64_t got = ut_ledger_believe(&ledger, fact, rows_[i].among, rows_[i].own, rows_[i].ahead);
            CHECK_MSG(got == rows_[i].want, "fact %u, %s: %" PRIu64 ", not %" PRIu64, fact, rows_[i].what, got,
                      rows_[i].want);
        }
}

/* Beyond what one host may say alone its word is not cut short, but void. */
static void confirmed__by_a_second_host_or_near(void)
{
    static const struct {
        const char *what;
        uint64_t claim[HOSTS], among;
        bool only;
        uint64_t alone, want;
    } rows_[] = {
        {"nobody has said anything", {0}, ALL, false, 10, 0},
        {"one host is near", {10, 0, 0, 4, 0}, ALL, false, 10, 10},
        {"one host is farther", {11, 0, 0, 4, 0}, ALL, false, 10, 4},
        {"two hosts are far", {900, 0, 0, 800, 0}, ALL, false, 10, 800},
        {"the only other host", {900, 0, 0, 0, 0}, ALL, true, 10, 900},
        {"one of several, the others are not asked", {900, 0, 0, 0, 0}, 1, false, 10, 0},
        {"own claims in the row count for nothing", {0, 0, 9, 0, 0}, ALL, false, 10, 0},
    };
    for (unsigned i = 0; i < sizeof rows_ / sizeof *rows_; i++) {
        begin();
        for (uint32_t h = 0; h < HOSTS; h++)
            rows[h].rx_floor = rows_[i].claim[h];
        uint64_t got = ut_ledger_confirmed(&ledger, UT_FACT_ENDED, rows_[i].among, rows_[i].only, rows_[i].alone);
        CHECK_MSG(got == rows_[i].want, "%s: %" PRIu64 ", not %" PRIu64, rows_[i].what, got, rows_[i].want);
    }
}

static void hear__a_record_is_replaced_by_newer_ones_alone(void)
{
    begin();
    CHECK(!ut_ledger_record(&ledger, 1, 5));
    CHECK_EQ(ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 5, .count = 1}, 10), UT_HEARD_FIRST);
    CHECK_EQ(ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 5, .count = 2}, 20), UT_HEARD_NEWS);
    CHECK_EQ(ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 5, .count = 2, .time_left_us = 7}, 20),
             UT_HEARD_NOTHING);
    CHECK_EQ(ut_ledger_record(&ledger, 1, 5)->count, 2);
    CHECK_EQ(rows[1].first_at[1], 10);
    CHECK_EQ(rows[1].at[1], 20);
    CHECK_EQ(ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 1, .count = 3}, 30), UT_HEARD_OLDER);
    CHECK_EQ(ut_ledger_record(&ledger, 1, 5)->count, 2);
    CHECK_EQ(ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 9, .count = 4}, 40), UT_HEARD_FIRST);
    CHECK(!ut_ledger_record(&ledger, 1, 5));
    CHECK_EQ(rows[1].first_at[1], 40);
    CHECK(!ut_ledger_record(&ledger, 0, 9)); /* each host has a row of its own */
    ut_ledger_spoke(&ledger, 1, 9);
    ut_ledger_spoke(&ledger, 1, 3);
    CHECK_EQ(rows[1].spoken, 10);
    ut_ledger_forget(&ledger, 1);
    CHECK(!ut_ledger_record(&ledger, 1, 9));
    CHECK_EQ(rows[1].spoken, 10); /* how far it has come is true in its next life as well */
}

static void hear__floors_only_rise_and_stay_in_reach(void)
{
    static const struct {
        uint64_t next, rx, tx, op;
        bool begun, wild;
    } table[] = {
        {100, 90, 80, 95, true, false},
        {100, 89, 80, 95, true, true}, /* it takes back that it ended op 89 */
        {100, 90, 79, 95, true, true},
        {100, 90, 80, 100 + UT_LAG_MAX, true, false},
        {100, 90, 80, 101 + UT_LAG_MAX, true, true},
        {100, 101 + UT_LAG_MAX, 80, 95, true, true},
        {100, 90, 101 + UT_LAG_MAX, 95, true, true},
        {0, 101 + UT_LAG_MAX, 101 + UT_LAG_MAX, 101 + UT_LAG_MAX, false, false}, /* we do not know where the job is */
        {0, 89, 80, 0, false, true},
    };
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        begin();
        ut_feedback before = floors(90, 80), f = floors(table[i].rx, table[i].tx);
        ut_ledger_hear_floors(&ledger, 1, &before, 100);
        f.records = 1;
        f.record[0].op_seq = table[i].op;
        CHECK_MSG(ut_ledger_is_wild(&ledger, 1, &f, table[i].next, table[i].begun) == table[i].wild, "row %u", i);
        if (table[i].wild)
            continue;
        ut_ledger_hear_floors(&ledger, 1, &f, table[i].next);
        CHECK_EQ(rows[1].rx_floor, 90); /* what is too far is not taken */
        CHECK_EQ(rows[1].tx_floor, 80);
    }
    begin();
    ut_feedback f = floors(4, 3);
    ut_ledger_hear_floors(&ledger, 1, &f, 2);
    CHECK_EQ(rows[1].rx_floor, 4);
    CHECK_EQ(rows[1].tx_floor, 3);
    ut_ledger_forget(&ledger, 1);
    CHECK_EQ(rows[1].rx_floor, 0);
}

enum { ANSWER = 2 * 1000 * 1000 };

/* Says |n| records to host 1. Returns the feedback, in which those are left that travel. */
static ut_feedback say(uint64_t floor, const ut_record *records, unsigned n, bool asks, ut_ns now)
{
    ut_feedback f = floors(floor, 0);
    for (unsigned i = 0; i < n; i++)
        f.record[f.records++] = records[i];
    ut_ledger_say(&ledger, 1, &f, asks, ANSWER, now);
    return f;
}

/* Host 1 says that it has seen |version|. True if that is possible. */
static bool sees(uint64_t version)
{
    ut_feedback f = floors(rows[1].rx_floor, rows[1].tx_floor);
    f.state_seen = (uint32_t)version;
    if (ut_ledger_is_wild(&ledger, 1, &f, 10, true))
        return false;
    ut_ledger_hear_floors(&ledger, 1, &f, 10);
    return true;
}

/* Each row says records to host 1, in order: which of their fields change the version, and what is said again. */
static void say__a_change_is_a_version_and_is_said_until_it_is_seen(void)
{
    static const ut_record first = {.op_seq = 5, .count = 9, .time_left_us = 1000};
    static const struct {
        const char *what;
        ut_record record;
        uint64_t floor;
        bool asks;
        uint64_t seen; /* what host 1 sees afterwards */
        uint64_t version;
        unsigned travel;
    } table[] = {
        {"the first word", {.op_seq = 5, .count = 9, .time_left_us = 1000}, 5, false, 0, 1, 1},
        {"the same, unseen", {.op_seq = 5, .count = 9, .time_left_us = 900}, 5, false, 1, 1, 1},
        {"the same, seen", {.op_seq = 5, .count = 9, .time_left_us = 800}, 5, false, 1, 1, 0},
        {"masks", {.op_seq = 5, .count = 9, .flags = UT_RECORD_RESULT, .full_mask = 3}, 5, false, 1, 2, 1},
        {"seen no further", {.op_seq = 5, .count = 9, .flags = UT_RECORD_RESULT, .full_mask = 3}, 5, false, 2, 2, 1},
        {"a digest", {.op_seq = 5, .count = 9, .flags = UT_RECORD_DIGEST, .digest = 77}, 5, false, 3, 3, 1},
        {"a floor", {.op_seq = 5, .count = 9, .flags = UT_RECORD_DIGEST, .digest = 77}, 6, false, 3, 4, 0},
        {"a question", {.op_seq = 5, .count = 9, .flags = UT_RECORD_DIGEST, .digest = 77}, 6, true, 5, 5, 0},
        {"an op in its place", {.op_seq = 9, .count = 9}, 6, false, 5, 6, 1},
        {"one question more", {.op_seq = 9, .count = 9}, 6, true, 7, 7, 1},
        {"what was there before", {.op_seq = 5, .count = 9}, 6, false, 7, 7, 0},
    };
    begin();
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        ut_feedback f = say(table[i].floor, &table[i].record, 1, table[i].asks, i);
        CHECK_MSG(f.state == table[i].version && f.records == table[i].travel, "%s: version %u, %u records",
                  table[i].what, f.state, f.records);
        CHECK(sees(table[i].seen));
        CHECK_EQ(rows[0].said.version, 0); /* each peer is told for itself */
    }
    CHECK(ut_ledger_is_seen(&ledger, 1));
    CHECK(ut_ledger_knows(&ledger, 1, 9) && ut_ledger_knows(&ledger, 1, 5) && !ut_ledger_knows(&ledger, 1, 6));
    ut_ledger_begin(&ledger, 1);
    CHECK(!ut_ledger_knows(&ledger, 1, 9));
    CHECK_EQ(say(6, &first, 1, false, 99).state, 1); /* another life of the path */
}

/* What is about to change is known by nobody until it was said, and then seen. */
static void say__what_changes_is_unknown_until_it_is_seen(void)
{
    begin();
    const ut_record r = {.op_seq = 6};
    (void)say(5, &r, 1, false, 1);
    CHECK(!ut_ledger_knows(&ledger, 1, 6));
    CHECK(!ut_ledger_has_met(&ledger, 1, 2));
    CHECK(sees(1));
    CHECK(ut_ledger_knows(&ledger, 1, 6));
    ut_ledger_changes(&ledger, 7); /* of this nothing was said */
    CHECK(ut_ledger_knows(&ledger, 1, 6));
    ut_ledger_changes(&ledger, 6);
    CHECK(!ut_ledger_knows(&ledger, 1, 6));
    CHECK(ut_ledger_has_met(&ledger, 1, 2));
    CHECK_EQ(say(5, &r, 1, false, 2).state, 2); /* although it says the same */
    CHECK(sees(1));
    CHECK(!ut_ledger_knows(&ledger, 1, 6));
    CHECK(sees(2));
    CHECK(ut_ledger_knows(&ledger, 1, 6));
}

/* The gap between repeats begins with the time of an answer, doubles, and begins anew with news. */
static void say__repeats_are_ever_more_seldom(void)
{
    begin();
    const ut_record r = {.op_seq = 6}, other = {.op_seq = 6, .weight = 1};
    (void)say(5, &r, 1, false, 1);
    CHECK_EQ(rows[1].said.gap, 0);
    ut_ns last = ANSWER;
    for (unsigned i = 0; i < 8; i++) {
        (void)say(5, &r, 1, true, 10 + i);
        CHECK_EQ(rows[1].said.at, 10 + i);
        CHECK_EQ(rows[1].said.gap, UT_MIN2(2 * last, (ut_ns)UT_STATE_GAP_MAX_NS));
        last = rows[1].said.gap;
    }
    (void)say(5, &r, 1, false, 30);
    CHECK_EQ(rows[1].said.at, 17); /* said along with something else: its time runs on */
    (void)say(5, &other, 1, true, 40);
    CHECK_EQ(rows[1].said.gap, 0);
    ut_ledger_asked(&ledger, 1, ANSWER);
    CHECK_EQ(rows[1].said.gap, 2 * ANSWER);
}

/* Nobody can have seen what was never said. A word that is taken back is ignored, and low halves go round. */
static void seen__is_held_against_what_was_said(void)
{
    begin();
    const ut_record r = {.op_seq = 6};
    CHECK(sees(0));
    CHECK(!sees(1));
    for (unsigned i = 0; i < 5; i++)
        (void)say(5, &r, 1, true, i);
    CHECK(sees(4));
    CHECK(!sees(6));
    CHECK(sees(2));
    CHECK_EQ(rows[1].said.seen, 4);
    rows[1].said.version = rows[1].said.seen = UINT32_MAX;
    CHECK_EQ(say(5, &r, 1, true, 9).state, 0);
    CHECK(sees((uint64_t)UINT32_MAX + 1));
    CHECK_EQ(rows[1].said.seen, (uint64_t)UINT32_MAX + 1);
    CHECK(!sees((uint64_t)UINT32_MAX + 2));
}

/* Versions of a peer: newer ones are taken, older ones ignored, and what was taken is what this host says it has seen.
 */
static void took__the_newest_version(void)
{
    static const struct {
        uint64_t state;
        bool newer;
        uint64_t now;
    } table[] = {{1, true, 1},       {1, false, 1}, {3, true, 3}, {2, false, 3}, {1 << 30, true, 1 << 30},
                 {4, false, 1 << 30}};
    begin();
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        ut_feedback f = {.state = (uint32_t)table[i].state};
        CHECK_EQ(ut_ledger_is_newer(&ledger, 1, &f), table[i].newer);
        ut_ledger_took(&ledger, 1, &f);
        CHECK_EQ(rows[1].state, table[i].now);
        CHECK_EQ(say(5, NULL, 0, false, i).state_seen, table[i].now);
    }
    ut_ledger_forget(&ledger, 1);
    CHECK_EQ(rows[1].state, 0);
}

/* Who is attached is the word of the newest op's record, in whatever order records come and are said; all are where
 * there is no word. A record of an older op may be said again long after it was made. */
static void attached__is_what_the_newest_op_says(void)
{
    static const struct {
        uint64_t op;
        uint16_t attached, want;
    } table[] = {{7, 1, 1}, {8, 2, 2}, {7, 3, 2}, {5, 3, 2}, {8, 3, 3}, {12, 0, 0}, {9, 1, 0}};
    begin();
    CHECK_EQ(ut_ledger_attached(&ledger, 1), UINT16_MAX);
    CHECK_EQ(ut_ledger_told_attached(&ledger, 1), UINT16_MAX);
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        const ut_record r = {.op_seq = table[i].op, .attached = table[i].attached};
        (void)ut_ledger_hear_record(&ledger, 1, &r, i);
        (void)say(0, &r, 1, false, i);
        CHECK_EQ(ut_ledger_attached(&ledger, 1), table[i].want);
        CHECK_EQ(ut_ledger_told_attached(&ledger, 1), table[i].want);
        CHECK_EQ(ut_ledger_attached(&ledger, 0), UINT16_MAX);
        CHECK_EQ(ut_ledger_told_attached(&ledger, 0), UINT16_MAX);
    }
    CHECK(ut_ledger_told(&ledger, 1, 12) && !ut_ledger_told(&ledger, 1, 8) && !ut_ledger_told(&ledger, 0, 12));
    ut_ledger_changes(&ledger, 12); /* said it was all the same */
    CHECK_EQ(ut_ledger_told_attached(&ledger, 1), 0);
    ut_ledger_forget(&ledger, 1);
    CHECK_EQ(ut_ledger_attached(&ledger, 1), UINT16_MAX);
    CHECK_EQ(ut_ledger_told_attached(&ledger, 1), 0);
    ut_ledger_begin(&ledger, 1);
    CHECK_EQ(ut_ledger_told_attached(&ledger, 1), UINT16_MAX);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(believe__two_hosts_or_one_that_is_near);
    RUN(confirmed__by_a_second_host_or_near);
    RUN(hear__a_record_is_replaced_by_newer_ones_alone);
    RUN(hear__floors_only_rise_and_stay_in_reach);
    RUN(say__a_change_is_a_version_and_is_said_until_it_is_seen);
    RUN(say__what_changes_is_unknown_until_it_is_seen);
    RUN(say__repeats_are_ever_more_seldom);
    RUN(seen__is_held_against_what_was_said);
    RUN(took__the_newest_version);
    RUN(attached__is_what_the_newest_op_says);
    return check_end();
}
