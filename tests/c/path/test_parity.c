/* SPDX-License-Identifier: Apache-2.0
 *
 * Parity packets: how many are worth their bytes, and that any of them bring back any members of their group that are
 * missing, to the byte. Then what a peer may send that lies.
 */
#include "check.h"

#include "core/path/parity.h"
#include "kernels/parity.h"

enum { PAYLOAD = 40, ROOM = 256, SLOTS = 1000, FIRST = 900, MOST = 120 };

static ut_parity sender, receiver;
static ut_parity_kept what[2][ROOM];
static uint8_t bytes[2][ROOM * PAYLOAD], sums[2][UT_PARITY_GROUPS * UT_PARITY_MOST * PAYLOAD];
static uint8_t slot[SLOTS][PAYLOAD];
static const ut_parity_group group = {.of = {7, 3}, .first = FIRST, .coverage = 2};

static void keep(ut_parity_name of, uint32_t at, const uint8_t *payload, uint32_t len)
{
    ut_parity_keep(&receiver, &(ut_parity_group){.of = of, .first = at, .coverage = group.coverage}, payload, len);
}

static uint32_t bytes_of(uint32_t at)
{
    return at + 1 == SLOTS ? 11 : PAYLOAD; /* the last one is shorter */
}

static void begin(void)
{
    ut_parity_init(&sender, PAYLOAD, ROOM, what[0], bytes[0], sums[0]);
    ut_parity_init(&receiver, PAYLOAD, ROOM, what[1], bytes[1], sums[1]);
    receiver.keeps = true;
    for (uint32_t at = 0; at < SLOTS; at++)
        for (uint32_t k = 0; k < PAYLOAD; k++)
            slot[at][k] = (uint8_t)check_below(256);
}

/* By the definition: a polynomial times another, less multiples of 0x11d. */
static void gf__multiplies_as_defined(void)
{
    CHECK_EQ(ut_gf_mul(0x80, 2), 0x1d);
    CHECK_EQ(ut_gf_mul(0x53, 0xca), 0x8f);
    for (uint32_t a = 0; a < 256; a++)
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t plain = 0;
            for (uint32_t k = 0; k < 8; k++)
                plain ^= b >> k & 1 ? a << k : 0;
            for (uint32_t k = 15; k >= 8; k--)
                plain ^= plain >> k & 1 ? 0x11du << (k - 8) : 0;
            CHECK_MSG(ut_gf_mul((uint8_t)a, (uint8_t)b) == plain, "%u times %u", a, b);
        }
    for (uint32_t a = 1; a < 256; a++)
        CHECK_EQ(ut_gf_mul((uint8_t)a, ut_gf_inverse((uint8_t)a)), 1);
    uint8_t to[21] = {0}, from[21];
    for (uint32_t k = 0; k < sizeof from; k++)
        from[k] = (uint8_t)(k * 37 + 1);
    ut_gf_add(to, from, 19, 0x53);
    ut_gf_add(to, from, 19, 1);
    for (uint32_t k = 0; k < 19; k++)
        CHECK_EQ(to[k], ut_gf_mul(from[k], 0x53 ^ 1));
    CHECK_EQ(to[19], 0);
}

/* The least of k/window and the binomial chance of more than k losses, as a computer algebra gives it. */
static void worth__is_what_saves_more_than_it_takes(void)
{
    static const struct {
        uint32_t members, window, ppm, most, want;
    } row[] = {
        {182, 182, 0, 16, 0},   /* nothing is lost */
        {182, 0, 10000, 16, 0}, /* nothing is known of the path */
        {182, 182, 10000, 16, 6},   {182, 182, 20000, 16, 9}, {182, 1000, 10000, 16, 7},
        {182, 1000, 20000, 16, 11}, {182, 182, 20000, 4, 4},                             /* memory is for so many */
        {12, 1000, 20000, 16, 3},   {12, 12, 10000, 16, 1},   {12, 1000, 100000, 16, 3}, /* a quarter at most */
        {1, 1000, 10000, 16, 1},    {1, 50, 10000, 16, 0}, /* a packet takes a fiftieth, and saves a hundredth */
        {182, 100000, 10, 16, 1},   {182, 100, 10, 16, 0}, /* losses are rare */
        {182, 1000, 600000, 16, 0},                        /* no code helps a path that loses most */
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        CHECK_MSG(ut_parity_worth(row[i].members, row[i].window, row[i].ppm, row[i].most) == row[i].want, "row %zu: %u",
                  i, ut_parity_worth(row[i].members, row[i].window, row[i].ppm, row[i].most));
}

static void losses__are_counted_over_two_spans(void)
{
    begin();
    CHECK_EQ(ut_parity_losses(&sender, 5, UT_PARITY_LEAST - 1), 0);
    CHECK_EQ(ut_parity_losses(&sender, 10, 1000), 10000);
    CHECK_EQ(ut_parity_losses(&sender, 90, 9000), 10000);
    CHECK_EQ(ut_parity_losses(&sender, 120, 18000), 3333);
    CHECK_EQ(ut_parity_losses(&sender, 120, 27000), 0); /* what was lost before is forgotten */
    CHECK_EQ(ut_parity_losses(&sender, 80, 27100), 0);  /* some of it had only been late */
}

/* Sends a group of |members| with |parities|; all of it comes but those members in |lost|, and the parities in |gone|.
 */
static void exchange(uint32_t members, uint32_t parities, const bool *lost, const bool *gone)
{
    ut_parity_sums *s = ut_parity_begin(&sender, &group, members, parities);
    for (uint32_t m = 0; m < members; m++) {
        const uint32_t at = (FIRST + m) % SLOTS;
        CHECK(ut_parity_of(&sender, group.of) == s && !ut_parity_due(&sender));
        ut_parity_add(&sender, s, slot[at], bytes_of(at));
        if (!lost[m])
            keep(group.of, at, slot[at], bytes_of(at));
    }
    CHECK(ut_parity_due(&sender) == s && !ut_parity_of(&sender, group.of));
    ut_parity_group g = group;
    g.members = (uint16_t)members;
    for (uint32_t k = 0; k < parities; k++)
        if (!gone[k])
            CHECK(ut_parity_came(&receiver, &g, k, s->sum + k * PAYLOAD, s->bytes));
    s->parities = 0;
}

static void solve__brings_back_any_that_are_missing(void)
{
    for (unsigned round = 0; round < 300; round++) {
        bool lost[MOST] = {0}, gone[UT_PARITY_MOST] = {0};
        begin();
        const uint32_t members = 1 + check_below(MOST), parities = 1 + check_below(UT_PARITY_MOST);
        uint32_t missing = 0, here = parities;
        for (uint32_t k = 0; k < check_below(UT_PARITY_MOST); k++)
            lost[check_below(members)] = true;
        for (uint32_t k = 0; k < check_below(parities); k++)
            gone[check_below(parities)] = true;
        for (uint32_t m = 0; m < members; m++)
            missing += lost[m];
        for (uint32_t k = 0; k < parities; k++)
            here -= gone[k];
        exchange(members, parities, lost, gone);
        ut_parity_group g = group;
        g.members = (uint16_t)members;
        ut_parity_found found;
        ut_parity_solve(&receiver, &g, SLOTS, &found);
        CHECK_EQ(found.packets, missing <= here ? missing : 0);
        for (uint32_t k = 0; k < found.packets; k++) {
            const uint32_t at = found.slot[k], m = (at + SLOTS - FIRST) % SLOTS;
            CHECK(m < members && lost[m]);
            CHECK_EQ(memcmp(found.payload[k], slot[at], UT_MIN2(bytes_of(at), found.len)), 0);
            lost[m] = false; /* each once */
        }
    }
}

/* Another op, another step, a group of other bounds or another coverage is another group. */
static void solve__takes_nothing_of_another_group(void)
{
    bool lost[MOST] = {[5] = true}, gone[UT_PARITY_MOST] = {0};
    ut_parity_group other[5];
    ut_parity_found found;
    begin();
    exchange(100, 1, lost, gone);
    for (unsigned k = 0; k < 5; k++) {
        other[k] = group;
        other[k].members = 100;
    }
    other[0].of.op_seq++, other[1].of.step++, other[2].first--, other[3].members--, other[4].coverage++;
    for (unsigned k = 0; k < 5; k++) {
        ut_parity_solve(&receiver, &other[k], SLOTS, &found);
        CHECK_MSG(found.packets == 0, "%u", k);
    }
    other[0].of.op_seq--;
    ut_parity_solve(&receiver, &other[0], SLOTS, &found);
    CHECK_EQ(found.packets, 1);
    ut_parity_solve(&receiver, &other[0], SLOTS, &found);
    CHECK_EQ(found.packets, 0); /* the sum that is kept is one no more */
}

/* A repair of a partial sum may hold one more host than the first packet did, of which the parity is a sum. */
static void solve__takes_no_member_of_another_coverage(void)
{
    bool lost[MOST] = {[5] = true, [6] = true}, gone[UT_PARITY_MOST] = {0};
    ut_parity_group g = group;
    ut_parity_found found;
    g.members = 100;
    begin();
    exchange(100, 1, lost, gone);
    ut_parity_keep(&receiver, &(ut_parity_group){.of = g.of, .first = FIRST + 6, .coverage = group.coverage + 1},
                   slot[0], PAYLOAD);
    ut_parity_solve(&receiver, &g, SLOTS, &found);
    CHECK_EQ(found.packets, 0);
    keep(g.of, FIRST + 6, slot[FIRST + 6], PAYLOAD);
    ut_parity_solve(&receiver, &g, SLOTS, &found);
    CHECK_EQ(found.packets, 1);
    CHECK_BYTES(found.payload[0], slot[FIRST + 5], PAYLOAD);
}

static void came__refuses_what_cannot_be(void)
{
    const uint8_t any[PAYLOAD + 1] = {1};
    ut_parity_group g = group;
    ut_parity_found found;
    begin();
    CHECK(!ut_parity_came(&receiver, &g, 0, any, PAYLOAD)); /* no members */
    g.members = UT_PARITY_GROUP + 1;
    CHECK(!ut_parity_came(&receiver, &g, 0, any, PAYLOAD));
    g.members = 1;
    CHECK(!ut_parity_came(&receiver, &g, UT_PARITY_MOST, any, PAYLOAD));
    CHECK(!ut_parity_came(&receiver, &g, 0, any, PAYLOAD + 1));
    /* Shorter than a member that came: it is not the sum of these. */
    g.members = 2;
    keep(g.of, FIRST, slot[FIRST], PAYLOAD);
    CHECK(ut_parity_came(&receiver, &g, 0, any, PAYLOAD - 1));
    ut_parity_solve(&receiver, &g, SLOTS, &found);
    CHECK_EQ(found.packets, 0);
}

/* A ring goes round: what was kept first is gone, and counts as missing. */
static void keep__forgets_the_oldest(void)
{
    bool lost[MOST] = {[99] = true}, gone[UT_PARITY_MOST] = {0};
    ut_parity_found found;
    begin();
    exchange(100, 2, lost, gone);
    for (uint32_t k = 0; k < ROOM - 101; k++)
        keep((ut_parity_name){8, 0}, k, slot[k], PAYLOAD);
    ut_parity_group g = group;
    g.members = 100;
    keep((ut_parity_name){8, 0}, 0, slot[0], PAYLOAD); /* in the place of member 0 */
    ut_parity_solve(&receiver, &g, SLOTS, &found);
    CHECK_EQ(found.packets, 2);
    CHECK_EQ(memcmp(found.payload[0], slot[FIRST], PAYLOAD), 0);
}

int main(void)
{
    RUN(gf__multiplies_as_defined);
    RUN(worth__is_what_saves_more_than_it_takes);
    RUN(losses__are_counted_over_two_spans);
    RUN(solve__brings_back_any_that_are_missing);
    RUN(solve__takes_nothing_of_another_group);
    RUN(solve__takes_no_member_of_another_coverage);
    RUN(came__refuses_what_cannot_be);
    RUN(keep__forgets_the_oldest);
    return check_end();
}
