/* SPDX-License-Identifier: Apache-2.0
 *
 * Who starts an op: the examples of docs/papers.md, sections 2.6 and 3.5.
 */
#include "check.h"

#include "core/partial/part.h"
#include "core/partial/picks.h"

static uint32_t pick(uint64_t seed, uint64_t t, uint32_t world)
{
    uint32_t rank = UINT32_MAX;
    ut_picks(seed, t, world, 1, &rank);
    return rank;
}

static void ut_picks__of_seed_42(void)
{
    static const uint32_t want[16] = {5, 0, 2, 4, 5, 6, 3, 3, 4, 0, 3, 3, 1, 4, 3, 4};
    for (uint64_t t = 0; t < 16; t++)
        CHECK_EQ(pick(42, t, 8), want[t]);
}

static void ut_picks__are_fair(void)
{
    uint32_t counts[8] = {0}, least = UINT32_MAX, most = 0;
    for (uint64_t t = 0; t < 80000; t++)
        counts[pick(42, t, 8)]++;
    for (unsigned r = 0; r < 8; r++) {
        least = UT_MIN2(least, counts[r]);
        most = UT_MAX2(most, counts[r]);
    }
    CHECK_EQ(least, 9835);
    CHECK_EQ(most, 10073);
}

static void ut_picks__two_of_eight(void)
{
    static const uint32_t want[8][2] = {{5, 7}, {0, 2}, {2, 7}, {4, 1}, {5, 3}, {6, 5}, {3, 6}, {3, 4}};
    for (uint64_t t = 0; t < 8; t++) {
        uint32_t got[2];
        ut_picks(42, t, 8, 2, got);
        CHECK_EQ(got[0], want[t][0]);
        CHECK_EQ(got[1], want[t][1]);
    }
}

/* All of them come, each once, even where the draws alone would not find them. */
static void ut_picks__all(void)
{
    static const uint32_t worlds[] = {1, 2, 7, 64, 1024};
    for (unsigned k = 0; k < 5; k++) {
        static uint32_t got[1024];
        bool seen[1024] = {false};
        ut_picks(check_random(), check_below(1000), worlds[k], worlds[k], got);
        for (uint32_t i = 0; i < worlds[k]; i++) {
            CHECK(got[i] < worlds[k] && !seen[got[i]]);
            seen[got[i] % 1024] = true;
        }
    }
}

/* How an activation spreads from |root| if every step is as quick as any other: whom it reaches, and in how many
 * messages. */
static uint64_t spread(uint32_t hosts, uint32_t root, uint32_t *ret_messages)
{
    uint32_t told_by[UT_HOSTS_MAX];
    uint64_t reached = 1ULL << root;
    told_by[root] = root;
    *ret_messages = 0;
    for (uint32_t step = 0; 1u << step < hosts; step++) {
        uint64_t before = reached;
        for (uint32_t self = 0; self < hosts; self++) {
            uint32_t child = (hosts & (hosts - 1)) == 0 ? self ^ 1u << step : (self + (1u << step)) % hosts;
            if (!(before >> self & 1) || !(ut_activation_children(hosts, self, told_by[self]) >> child & 1))
                continue;
            ++*ret_messages;
            if (!(reached >> child & 1))
                told_by[child] = self;
            reached |= 1ULL << child;
        }
    }
    return reached;
}

static void ut_activation_children__vectors(void)
{
    /* docs/papers.md, section 2.6: (step 0) 3 -> 2; (1) 3 -> 1, 2 -> 0. */
    CHECK_HEX(ut_activation_children(4, 3, 3), 1 << 2 | 1 << 1);
    CHECK_HEX(ut_activation_children(4, 2, 3), 1 << 0);
    CHECK_HEX(ut_activation_children(4, 1, 3), 0);
    CHECK_HEX(ut_activation_children(4, 0, 2), 0);
    /* 3 -> 2; 3 -> 1, 2 -> 0; 3 -> 7, 2 -> 6, 1 -> 5, 0 -> 4. */
    CHECK_HEX(ut_activation_children(8, 3, 3), 1 << 2 | 1 << 1 | 1 << 7);
    CHECK_HEX(ut_activation_children(8, 2, 3), 1 << 0 | 1 << 6);
    CHECK_HEX(ut_activation_children(8, 1, 3), 1 << 5);
    CHECK_HEX(ut_activation_children(8, 0, 2), 1 << 4);
    CHECK_HEX(ut_activation_children(8, 7, 3), 0);
    /* No power of two: 2 -> 3; 2 -> 4, 3 -> 5; 2 -> 0, 3 -> 1, 4 -> 2 (which started it), 5 -> 3 (told already). */
    CHECK_HEX(ut_activation_children(6, 2, 2), 1 << 3 | 1 << 4 | 1 << 0);
    CHECK_HEX(ut_activation_children(6, 3, 2), 1 << 5 | 1 << 1);
    CHECK_HEX(ut_activation_children(6, 4, 2), 0);
    CHECK_HEX(ut_activation_children(6, 5, 3), 0);
    CHECK_HEX(ut_activation_children(6, 0, 3), 0); /* not along the tree */
}

static void ut_activation_children__reach_all(void)
{
    for (uint32_t hosts = 1; hosts <= UT_HOSTS_MAX; hosts++)
        for (uint32_t root = 0; root < hosts; root++) {
            uint32_t messages;
            CHECK_HEX(spread(hosts, root, &messages), UINT64_MAX >> (64 - hosts));
            if ((hosts & (hosts - 1)) == 0)
                CHECK_EQ(messages, hosts - 1);
            else
                CHECK_LE(messages, 2 * hosts);
        }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_picks__of_seed_42);
    RUN(ut_picks__are_fair);
    RUN(ut_picks__two_of_eight);
    RUN(ut_picks__all);
    RUN(ut_activation_children__vectors);
    RUN(ut_activation_children__reach_all);
    return check_end();
}
