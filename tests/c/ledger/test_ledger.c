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

static void hear__a_record_is_replaced_by_newer_ones_alone(void)
{
    begin();
    CHECK(!ut_ledger_record(&ledger, 1, 5));
    CHECK(ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 5, .count = 1}, 10));
    CHECK(ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 5, .count = 2}, 20));
    CHECK_EQ(ut_ledger_record(&ledger, 1, 5)->count, 2);
    CHECK_EQ(rows[1].first_at[1], 10);
    CHECK_EQ(rows[1].at[1], 20);
    CHECK(!ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 1, .count = 3}, 30));
    CHECK_EQ(ut_ledger_record(&ledger, 1, 5)->count, 2);
    CHECK(ut_ledger_hear_record(&ledger, 1, &(ut_record){.op_seq = 9, .count = 4}, 40));
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

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(believe__two_hosts_or_one_that_is_near);
    RUN(hear__a_record_is_replaced_by_newer_ones_alone);
    RUN(hear__floors_only_rise_and_stay_in_reach);
    return check_end();
}
