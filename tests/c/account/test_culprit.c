/* SPDX-License-Identifier: Apache-2.0
 *
 * The rule of who is to blame and why, on made-up testimony; `sim --blame` does the same with whole clusters. Times in
 * ms of an op that took 400.
 */
#include "check.h"

#include "core/account/culprit.h"

enum { HOSTS = 4, TOOK = 400 };

/* A host that is well: it opened in time, said something every few ms, lost nothing. */
static void all_well(ut_witness *seen)
{
    for (uint32_t h = 0; h < HOSTS; h++)
        seen[h] = (ut_witness){.opened = true, .opened_after = UT_MS, .quiet = 20 * UT_MS, .came = 4000};
}

static void find_culprit__by_who_accuses_whom(void)
{
    static const struct {
        const char *what;
        uint8_t accuses[HOSTS];
        uint64_t missing[HOSTS];
        uint16_t want;
    } rows[] = {
        {"nobody", {0, 0, 0, 0}, {0}, 0xffff},
        {"only we lack it", {0, 0, 0, 0}, {0, 0, 5, 0}, 0xffff}, /* what is missing must be in our own accusation */
        {"all lack host 2", {4, 4, 0, 4}, {0, 0, 5, 0}, 2},
        {"only we lack host 2", {4, 0, 0, 0}, {0, 0, 5, 0}, 2},
        {"others lack host 2, we do not", {0, 4, 0, 4}, {0}, 2},
        {"others lack us", {0, 1, 1, 1}, {0}, 0},
        {"we lack everybody, others us", {14, 1, 1, 1}, {0, 7, 8, 9}, 0},
        {"we lack everybody, of others we know nothing", {14, 0, 0, 0}, {0, 7, 8, 9}, 0},
        {"host 3 lacks everybody", {0, 0, 0, 7}, {0}, 3},
        {"host 3 lacks everybody, one of them lost a little elsewhere", {2, 0, 0, 7}, {0, 9, 0, 0}, 3},
        {"two alike: of whom more is missing", {6, 0, 0, 0}, {0, 5, 6, 0}, 2},
        {"two alike, one of them we: the other", {2, 1, 0, 0}, {0, 5, 0, 0}, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_witness seen[HOSTS];
        all_well(seen);
        for (uint32_t h = 0; h < HOSTS; h++) {
            seen[h].accuses = rows[i].accuses[h];
            seen[h].missing = rows[i].missing[h];
        }
        ut_verdict v = ut_culprit_find(seen, HOSTS, 0, TOOK * UT_MS);
        CHECK_MSG(v.host == rows[i].want, "%s: host %d, want %d", rows[i].what, (int16_t)v.host, (int16_t)rows[i].want);
        CHECK_EQ(v.trouble == UT_TROUBLE_NONE, v.host == 0xffff);
    }
}

static void blocked__is_named_alike_by_all(void)
{
    static const struct {
        const char *what;
        uint32_t hosts, self;
        uint8_t accuses[HOSTS];
        uint64_t blocked;
        uint16_t want;
        bool udp;
    } rows[] = {
        {"deaf host 1 of two, as host 0 sees it", 2, 0, {2, 1}, 2, 1, true},
        {"as host 1 itself does", 2, 1, {2, 1}, 2, 1, true},
        {"both directions: each names the other", 2, 0, {2, 1}, 3, 1, true},
        {"both directions, the other side", 2, 1, {2, 1}, 3, 0, true},
        {"deaf host 2 of four, which lacks everybody", 4, 0, {0, 0, 11, 0}, 4, 2, true},
        {"that host itself", 4, 2, {0, 0, 11, 0}, 4, 2, true},
        {"one pair of four: 0 does not reach 2, as host 1 sees it", 4, 1, {0, 0, 1, 0}, 4, 2, true},
        {"it has nothing to do with what is missing", 4, 0, {2, 0, 0, 0}, 4, 1, false},
        {"nothing is missing", 4, 0, {0, 0, 0, 0}, 4, 0xffff, false},
        {"no word of it", 4, 0, {4, 0, 0, 0}, 0, 2, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_witness seen[HOSTS];
        all_well(seen);
        for (uint32_t h = 0; h < HOSTS; h++)
            seen[h].accuses = rows[i].accuses[h];
        ut_verdict v = ut_culprit_find(seen, rows[i].hosts, rows[i].self, TOOK * UT_MS);
        v = ut_culprit_blocked(v, seen, rows[i].hosts, rows[i].self, rows[i].blocked);
        CHECK_MSG(v.host == rows[i].want, "%s: host %d, want %d", rows[i].what, (int16_t)v.host, (int16_t)rows[i].want);
        CHECK_EQ(v.trouble == UT_TROUBLE_UDP, rows[i].udp);
    }
}

static void find_culprit__two_hosts_name_each_other(void)
{
    ut_witness seen[HOSTS];
    all_well(seen);
    seen[0].accuses = 2;
    seen[1].accuses = 1;
    seen[1].missing = 5;
    CHECK_EQ(ut_culprit_find(seen, 2, 0, TOOK * UT_MS).host, 1);
}

/* A gone host is no evidence against those who lack it and everybody else that is left. */
static void find_culprit__the_gone_do_not_count_as_others(void)
{
    ut_witness seen[HOSTS];
    all_well(seen);
    seen[3].gone = true;
    seen[0].accuses = 8;
    seen[1].accuses = 8;
    seen[2].accuses = 8;
    ut_verdict v = ut_culprit_find(seen, HOSTS, 0, TOOK * UT_MS);
    CHECK_EQ(v.host, 3);
    CHECK_EQ(v.trouble, UT_TROUBLE_GONE);
    seen[0].accuses = 2 | 4; /* both that are left, and only here */
    seen[1].accuses = seen[2].accuses = 0;
    CHECK_EQ(ut_culprit_find(seen, HOSTS, 0, TOOK * UT_MS).host, 0);
}

static void trouble__by_times_and_losses(void)
{
    static const struct {
        const char *what;
        ut_witness seen;
        uint8_t want;
    } rows[] = {
        {"gone", {.gone = true, .opened = true}, UT_TROUBLE_GONE},
        {"never called, though it speaks", {.opened_after = TOOK * UT_MS}, UT_TROUBLE_SENDER},
        {"called late", {.opened = true, .opened_after = 150 * UT_MS, .came = 1000}, UT_TROUBLE_SENDER},
        {"called late over a bad path",
         {.opened = true, .opened_after = 150 * UT_MS, .came = 1000, .again = 200, .lost = 200},
         UT_TROUBLE_SENDER},
        {"called a little late: not that", {.opened = true, .opened_after = 60 * UT_MS, .came = 1000}, UT_TROUBLE_PATH},
        {"paused, and nothing was lost",
         {.opened = true, .quiet = 150 * UT_MS, .came = 1000, .lost = 900},
         UT_TROUBLE_SENDER},
        {"silent, for the path ate it",
         {.opened = true, .quiet = 150 * UT_MS, .came = 1000, .again = 100},
         UT_TROUBLE_PATH},
        {"slow and steady",
         {.opened = true, .quiet = 30 * UT_MS, .came = 300, .again = 30, .lost = 50},
         UT_TROUBLE_PATH},
        {"its kernel dropped what was lost",
         {.opened = true, .quiet = 30 * UT_MS, .came = 4000, .lost = 800, .drops = 2000},
         UT_TROUBLE_RECEIVER},
        {"its kernel dropped a few of many",
         {.opened = true, .quiet = 30 * UT_MS, .came = 4000, .lost = 800, .drops = 9},
         UT_TROUBLE_PATH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t got = ut_culprit_trouble(&rows[i].seen, 0, TOOK * UT_MS);
        CHECK_MSG(got == rows[i].want, "%s: %u, want %u", rows[i].what, got, rows[i].want);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(find_culprit__by_who_accuses_whom);
    RUN(find_culprit__two_hosts_name_each_other);
    RUN(find_culprit__the_gone_do_not_count_as_others);
    RUN(trouble__by_times_and_losses);
    RUN(blocked__is_named_alike_by_all);
    return check_end();
}
