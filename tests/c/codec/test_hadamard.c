/* SPDX-License-Identifier: Apache-2.0
 *
 * Which slots a transform mixes, its keys and scales, and how hosts agree on when to use it. The map is held against
 * PROTOCOL.md's own words; the switch runs among hosts that hear each other late, or are new.
 */
#include "check.h"
#include "core/codec/hadamard.h"

/* ---- groups ---- */

static void hadamard_groups__rows(void)
{
    static const struct {
        uint32_t slots;
        bool short_last;
        uint32_t groups;
        struct {
            uint32_t first, apart, rows;
        } group[7];
    } rows[] = {
        {0, false, 0, {{0}}},
        {1, false, 1, {{0, 1, 1}}},
        {1, true, 1, {{0, 1, 1}}},
        {2, true, 2, {{0, 1, 1}, {1, 1, 1}}},
        {7, false, 3, {{0, 1, 4}, {4, 1, 2}, {6, 1, 1}}},
        {64, false, 1, {{0, 1, 64}}},
        {65, true, 2, {{0, 1, 64}, {64, 1, 1}}},
        {182, true, 7, {{0, 2, 64}, {1, 2, 64}, {128, 1, 32}, {160, 1, 16}, {176, 1, 4}, {180, 1, 1}, {181, 1, 1}}},
        {192, false, 3, {{0, 3, 64}, {1, 3, 64}, {2, 3, 64}}},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t n = ut_hadamard_groups(rows[i].slots, rows[i].short_last);
        CHECK_MSG(n == rows[i].groups, "row %u: %u groups", i, n);
        for (uint32_t g = 0; g < rows[i].groups; g++) {
            ut_hadamard_group at = ut_hadamard_group_of(rows[i].slots, rows[i].short_last, g);
            CHECK_MSG(at.first == rows[i].group[g].first && at.apart == rows[i].group[g].apart &&
                          at.rows == rows[i].group[g].rows,
                      "row %u, group %u: slot %u, apart %u, %u rows", i, g, at.first, at.apart, at.rows);
        }
    }
}

/* Each slot is one row of one group, and the two directions of the map agree. */
static void hadamard_groups__partition_every_shard(void)
{
    static uint8_t seen[5000];
    for (uint32_t slots = 1; slots < 5000; slots += slots < 300 ? 1 : 173)
        for (unsigned short_last = 0; short_last < 2; short_last++) {
            memset(seen, 0, sizeof seen);
            for (uint32_t g = 0; g < ut_hadamard_groups(slots, short_last); g++) {
                ut_hadamard_group at = ut_hadamard_group_of(slots, short_last, g);
                CHECK(at.rows && (at.rows & (at.rows - 1)) == 0 && at.rows <= UT_HADAMARD_GROUP);
                for (uint32_t r = 0; r < at.rows; r++) {
                    uint32_t slot = at.first + r * at.apart, group, row;
                    if (!CHECK_MSG(slot < slots, "%u slots: slot %u", slots, slot))
                        return;
                    seen[slot]++;
                    ut_hadamard_place_of(slots, short_last, slot, &group, &row);
                    CHECK_MSG(group == g && row == r, "%u slots: slot %u is row %u of group %u, not %u of %u", slots,
                              slot, row, group, r, g);
                    if (short_last && slot == slots - 1)
                        CHECK_EQ(at.rows, 1);
                }
            }
            for (uint32_t slot = 0; slot < slots; slot++)
                CHECK_MSG(seen[slot] == 1, "%u slots: slot %u is in %u groups", slots, slot, seen[slot]);
        }
}

/* A lost burst of 44 packets hits 44 groups once, where there are that many: 25 MB on four hosts. */
static void hadamard_groups__a_burst_hits_each_group_once(void)
{
    enum { SLOTS = 4552, BURST = 44 };
    for (uint32_t from = 0; from + BURST <= SLOTS / 64 * 64; from++) {
        uint64_t hit[2] = {0, 0};
        for (uint32_t slot = from; slot < from + BURST; slot++) {
            uint32_t group, row;
            ut_hadamard_place_of(SLOTS, true, slot, &group, &row);
            CHECK_MSG(!(hit[group / 64] >> group % 64 & 1), "burst at %u: group %u is hit twice", from, group);
            hit[group / 64] |= 1ULL << group % 64;
        }
    }
}

static void hadamard_scale__multiplies_to_one_over_rows(void)
{
    for (uint32_t rows = 1; rows <= 64; rows *= 2)
        CHECK_DOUBLE(ut_hadamard_encode_scale(rows) * ut_hadamard_decode_scale(rows), 1.0 / rows);
    CHECK_DOUBLE(ut_hadamard_encode_scale(64), 0.125);
    CHECK_DOUBLE(ut_hadamard_encode_scale(32), 0.25);
}

/* All hosts of whatever build must have the same; and no two groups share one. */
static void hadamard_key__golden_and_distinct(void)
{
    static uint64_t keys[8 * 8 * 8];
    unsigned n = 0;
    CHECK_HEX(ut_hadamard_key(0, 0, 0), 0x96142c36a3b3cbfd);
    CHECK_HEX(ut_hadamard_key(1ULL << 40 | 5, 3, 70), 0x47b5628c33eb1982);
    for (uint64_t op = 0; op < 8; op++)
        for (uint32_t shard = 0; shard < 8; shard++)
            for (uint32_t group = 0; group < 8; group++) {
                keys[n] = ut_hadamard_key(op, shard, group);
                for (unsigned i = 0; i < n; i++)
                    CHECK_NE(keys[i], keys[n]);
                n++;
            }
}

/* ---- the switch ---- */

enum { N = 4, UP_ALL = 0xf };
static ut_hadamard_switch host[N];
static uint64_t at[N]; /* next_open */
static uint64_t up;

static void start(unsigned option)
{
    up = UP_ALL;
    for (uint32_t h = 0; h < N; h++) {
        ut_hadamard_switch_init(&host[h], option, 0);
        at[h] = 0;
    }
}

static uint64_t others(uint32_t h)
{
    return up & ~(1ULL << h);
}

static void speak(uint32_t from)
{
    uint16_t word = ut_hadamard_word(&host[from], from, others(from), at[from], at[from] < 4 ? 0 : at[from] - 4);
    for (uint32_t h = 0; h < N; h++)
        if (h != from && (up >> h & 1))
            ut_hadamard_hear(&host[h], from, word, h, others(h), at[h]);
}

/* Op after op on all hosts, each speaking once an op, in an order of its own; returns how many ops were transformed.
 * Checks that all do the same in each. */
static unsigned run(unsigned ops, unsigned option_of_0, unsigned option_of_others)
{
    unsigned transformed = 0;
    for (unsigned k = 0; k < ops; k++) {
        uint32_t first = (uint32_t)check_below(N), on = 0;
        uint64_t seq = 0;
        for (uint32_t h = 0; h < N; h++)
            if (up >> h & 1) {
                seq = at[h];
                ut_hadamard_decide(&host[h], h ? option_of_others : option_of_0, h, others(h), at[h]);
                on |= (uint32_t)ut_hadamard_is_on(&host[h], at[h]) << h;
                at[h]++;
            }
        CHECK_MSG(on == 0 || on == up, "op %" PRIu64 ": hosts %#x of %#" PRIx64 " transform", seq, on, up);
        transformed += on != 0;
        for (uint32_t h = 0; h < N; h++)
            if (up >> ((h + first) % N) & 1)
                speak((h + first) % N);
    }
    return transformed;
}

static void hadamard_switch__options(void)
{
    start(UT_HADAMARD_OFF);
    CHECK_EQ(run(20, UT_HADAMARD_OFF, UT_HADAMARD_OFF), 0);
    start(0);
    CHECK_EQ(run(20, 0, 0), 0);
    start(UT_HADAMARD_ON);
    CHECK_EQ(run(20, UT_HADAMARD_ON, UT_HADAMARD_ON), 20);
    start(UT_HADAMARD_AUTO);
    CHECK_EQ(run(20, UT_HADAMARD_AUTO, UT_HADAMARD_AUTO), 0); /* nothing is lost */
}

/* The lowest host's option counts, and all follow in the same op, eight ops later. */
static void hadamard_switch__the_lowest_host_decides(void)
{
    start(UT_HADAMARD_OFF);
    run(30000, UT_HADAMARD_OFF, UT_HADAMARD_OFF); /* longer than 14 bits */
    CHECK_EQ(run(20, UT_HADAMARD_ON, UT_HADAMARD_OFF), 12);
    CHECK_EQ(run(20, UT_HADAMARD_OFF, UT_HADAMARD_ON), 8);
    up = 0xe;
    CHECK_EQ(run(20, UT_HADAMARD_OFF, UT_HADAMARD_ON), 12);
}

/* A host that comes back knows nothing, says nothing, and learns before it decides. */
static void hadamard_switch__a_newcomer_listens_first(void)
{
    start(UT_HADAMARD_OFF);
    run(100, UT_HADAMARD_ON, UT_HADAMARD_ON);
    up = 0xe;
    CHECK_EQ(run(10, UT_HADAMARD_ON, UT_HADAMARD_ON), 10);
    up = UP_ALL;
    at[0] = at[1];
    ut_hadamard_switch_init(&host[0], UT_HADAMARD_OFF, at[0]);
    speak(0);
    CHECK(ut_hadamard_is_on(&host[1], at[1]));
    speak(1);
    CHECK(ut_hadamard_is_on(&host[0], at[0]));
    CHECK_EQ(run(20, UT_HADAMARD_ON, UT_HADAMARD_ON), 20);
    CHECK_EQ(run(20, UT_HADAMARD_OFF, UT_HADAMARD_ON), 8); /* and then it decides */
}

/* In auto, a host that loses more than 1 % of what was due turns it on for all; below 0.25 % it goes off. */
static void hadamard_switch__auto_follows_the_worst_loss(void)
{
    static const struct {
        uint32_t host;
        uint64_t missing; /* of 10000 */
        bool on_from_off, on_from_on;
    } rows[] = {{0, 0, 0, 0},   {0, 20, 0, 0},  {0, 60, 0, 1}, {0, 90, 0, 1},
                {0, 120, 1, 1}, {3, 120, 1, 1}, {3, 60, 0, 1}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        for (unsigned was_on = 0; was_on < 2; was_on++) {
            start(UT_HADAMARD_AUTO);
            for (unsigned k = 0; k < 100 && was_on; k++) {
                ut_hadamard_lost(&host[0], 300, 10000);
                run(1, UT_HADAMARD_AUTO, UT_HADAMARD_AUTO);
            }
            for (unsigned k = 0; k < 200; k++) {
                for (uint32_t h = 0; h < N; h++)
                    ut_hadamard_lost(&host[h], h == rows[i].host ? rows[i].missing : 0, 10000);
                run(1, UT_HADAMARD_AUTO, UT_HADAMARD_AUTO);
            }
            bool want = was_on ? rows[i].on_from_on : rows[i].on_from_off;
            CHECK_MSG(ut_hadamard_is_on(&host[2], at[2]) == want, "row %u from %u: want %d", i, was_on, want);
        }
}

/* A decision that comes late is taken from where it says, and is no surprise for ops that are over. */
static void hadamard_switch__a_late_word(void)
{
    start(UT_HADAMARD_OFF);
    run(50, UT_HADAMARD_OFF, UT_HADAMARD_OFF);
    ut_hadamard_decide(&host[0], UT_HADAMARD_ON, 0, others(0), at[0]);
    at[2] += 3; /* ahead of it */
    speak(0);
    for (uint64_t seq = 50; seq < 70; seq++)
        for (uint32_t h = 0; h < N; h++)
            CHECK_EQ(ut_hadamard_is_on(&host[h], seq), seq >= 58);
}

/* What lies can do: far ahead they say nothing, and losses that come and go do not turn it on and off in every op. */
static void hadamard_switch__lies(void)
{
    start(UT_HADAMARD_OFF);
    run(50, UT_HADAMARD_OFF, UT_HADAMARD_OFF);
    for (uint32_t ahead = 17; ahead < 8000; ahead++) {
        ut_hadamard_hear(&host[1], 0, (uint16_t)(0xc000 | ((at[1] + ahead) & 0x3fff)), 1, others(1), at[1]);
        CHECK(!ut_hadamard_is_on(&host[1], at[1] + 10000));
    }
    ut_hadamard_hear(&host[1], 0, (uint16_t)(0xc000 | ((at[1] + 16) & 0x3fff)), 1, others(1), at[1]);
    CHECK(ut_hadamard_is_on(&host[1], at[1] + 16));
    start(UT_HADAMARD_AUTO);
    uint32_t changes = 0;
    for (uint32_t k = 0; k < 1000; k++) {
        bool was = ut_hadamard_is_on(&host[0], at[0]);
        ut_hadamard_decide(&host[0], UT_HADAMARD_AUTO, 0, others(0), at[0]++);
        ut_hadamard_hear(&host[0], 3, was ? 0 : 0x7fff, 0, others(0), at[0]);
        changes += ut_hadamard_is_on(&host[0], at[0]) != was;
    }
    CHECK_LE(changes, 12);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(hadamard_groups__rows);
    RUN(hadamard_groups__partition_every_shard);
    RUN(hadamard_groups__a_burst_hits_each_group_once);
    RUN(hadamard_scale__multiplies_to_one_over_rows);
    RUN(hadamard_key__golden_and_distinct);
    RUN(hadamard_switch__options);
    RUN(hadamard_switch__the_lowest_host_decides);
    RUN(hadamard_switch__a_newcomer_listens_first);
    RUN(hadamard_switch__auto_follows_the_worst_loss);
    RUN(hadamard_switch__a_late_word);
    RUN(hadamard_switch__lies);
    return check_end();
}
