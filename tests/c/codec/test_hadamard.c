/* SPDX-License-Identifier: Apache-2.0
 *
 * Which slots a transform mixes, its keys and scales, and how hosts agree on when to use it. The map is held against
 * KINDS.md's own words; losses are what they are said to be.
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

/* ---- off, on, auto ---- */

static void hadamard_wanted__options(void)
{
    ut_hadamard_losses l = {0};
    for (unsigned on = 0; on < 2; on++) {
        CHECK(!ut_hadamard_wanted(&l, 0, on, 0xe));
        CHECK(!ut_hadamard_wanted(&l, UT_HADAMARD_OFF, on, 0xe));
        CHECK(ut_hadamard_wanted(&l, UT_HADAMARD_ON, on, 0xe));
        CHECK(!ut_hadamard_wanted(&l, UT_HADAMARD_AUTO, on, 0xe)); /* nothing is lost */
    }
    l.own = l.of[1] = UT_HADAMARD_LOSS_UNIT;
    CHECK(!ut_hadamard_wanted(&l, UT_HADAMARD_OFF, true, 0xe));
}

/* In auto, a host that loses more than 1 % of what was due turns it on for all; below 0.25 % it goes off. What a host
 * said before it went counts no more. */
static void hadamard_wanted__auto_follows_the_worst_loss(void)
{
    static const struct {
        uint64_t here, there; /* missing, of 10000 */
        bool on_from_off, on_from_on;
    } rows[] = {{0, 0, 0, 0},   {20, 0, 0, 0},  {60, 0, 0, 1}, {90, 0, 0, 1},
                {120, 0, 1, 1}, {0, 120, 1, 1}, {0, 60, 0, 1}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        for (unsigned was_on = 0; was_on < 2; was_on++) {
            ut_hadamard_losses here = {.own = was_on ? 1000 : 0}, there = here;
            bool on = was_on;
            for (unsigned k = 0; k < 200; k++) {
                ut_hadamard_lost(&here, rows[i].here, 10000);
                ut_hadamard_lost(&there, rows[i].there, 10000);
                ut_hadamard_lost(&there, 0, 0); /* an op in which nothing was due tells nothing */
                here.of[3] = (uint16_t)there.own;
                on = ut_hadamard_wanted(&here, UT_HADAMARD_AUTO, on, 0xe);
            }
            bool want = was_on ? rows[i].on_from_on : rows[i].on_from_off;
            CHECK_MSG(on == want, "row %u from %u: want %d", i, was_on, want);
            if (rows[i].there)
                CHECK(!ut_hadamard_wanted(&here, UT_HADAMARD_AUTO, on, 0x6));
        }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(hadamard_groups__rows);
    RUN(hadamard_groups__partition_every_shard);
    RUN(hadamard_groups__a_burst_hits_each_group_once);
    RUN(hadamard_scale__multiplies_to_one_over_rows);
    RUN(hadamard_key__golden_and_distinct);
    RUN(hadamard_wanted__options);
    RUN(hadamard_wanted__auto_follows_the_worst_loss);
    return check_end();
}
