/* SPDX-License-Identifier: Apache-2.0
 *
 * Who owns: the decision alone, among hosts that die, come back, and hear each other late or not at all.
 */
#include "../../transport_c/core/owners.h"
#include "check.h"

enum { N = 4, ALL = 0xf, AHEAD = 8 };
static ut_owners host[N];
static uint64_t at[N];   /* next_open */
static uint64_t up;      /* hosts that live */
static uint64_t lost[N]; /* per host: whom it saw go */
static uint64_t deaf[N]; /* per host: whom it does not hear, nor sees up */

static void born(uint32_t h, uint64_t first)
{
    ut_owners_init(&host[h], N, first);
    at[h] = first;
    lost[h] = 0;
}

static void start(uint64_t first)
{
    up = ALL;
    for (uint32_t h = 0; h < N; h++) {
        born(h, first);
        deaf[h] = 0;
    }
}

static uint64_t sees(uint32_t h)
{
    return up & ~(1ULL << h) & ~deaf[h] & ~lost[h];
}

static void die(uint32_t dead)
{
    up &= ~(1ULL << dead);
    for (uint32_t h = 0; h < N; h++) {
        lost[h] |= h == dead ? 0 : 1ULL << dead;
        ut_owners_forget(&host[h], dead);
    }
}

static void come_back(uint32_t back, uint64_t first)
{
    born(back, first);
    for (uint32_t h = 0; h < N; h++) {
        lost[h] &= ~(1ULL << back);
        ut_owners_forget(&host[h], back);
    }
    up |= 1ULL << back;
    lost[back] = 0; /* whom it never met it does not miss */
}

static void speak(uint32_t from)
{
    ut_owners_word word = ut_owners_say(&host[from], from, sees(from), at[from]);
    for (uint32_t h = 0; h < N; h++)
        if (sees(h) >> from & 1)
            ut_owners_hear(&host[h], from, &word);
}

/* One op on all hosts that live; then each speaks, in an order of its own. Returns its owners, or 0 where they differ.
 */
static uint64_t op(void)
{
    uint64_t owners[N], first = 0, same = true;
    for (uint32_t h = 0; h < N; h++) {
        if (!(up >> h & 1))
            continue;
        ut_owners_decide(&host[h], h, sees(h), lost[h], at[h]);
        owners[h] = ut_owners_of(&host[h], at[h]++);
        first = first ? first : owners[h];
        same = same && owners[h] == first;
    }
    for (uint32_t h = 0; h < N; h++) /* their records say so */
        for (uint32_t p = 0; p < N; p++)
            if ((up >> h & 1) && (sees(h) >> p & 1) && owners[h] == owners[p])
                ut_owners_same(&host[h], p, owners[h]);
    uint32_t turn = (uint32_t)check_below(N);
    for (uint32_t h = 0; h < N; h++)
        if (up >> (h + turn) % N & 1)
            speak((h + turn) % N);
    return same ? first : 0;
}

/* Ops until |owners| own, at most 40; in each of them all agree. */
static uint32_t ops_until(uint64_t owners)
{
    for (uint32_t k = 0; k < 40; k++) {
        uint64_t now = op();
        CHECK_MSG(now, "op %u from here: hosts differ", k);
        if (now == owners)
            return k;
    }
    return UINT32_MAX;
}

/* A new job in which all have heard whom all hear. */
static void start_heard(void)
{
    start(0);
    op();
    op();
}

static void owners_tag__names_them(void)
{
    ut_owners o;
    for (uint32_t n = 1; n <= 16; n++) {
        ut_owners_init(&o, n, 0);
        uint64_t all = UINT64_MAX >> (64 - n), some = 1 + check_below(all);
        CHECK_HEX(ut_owners_tag(&o, all), 0);
        CHECK_HEX(ut_owners_tag(&o, some), all & ~some);
    }
    ut_owners_init(&o, 64, 0);
    CHECK_HEX(ut_owners_tag(&o, UINT64_MAX), 0);
    for (uint32_t a = 0; a < 64; a++)
        for (uint32_t b = 0; b < a; b++) {
            CHECK_NE(ut_owners_tag(&o, ~(1ULL << a)), 0);
            CHECK_NE(ut_owners_tag(&o, ~(1ULL << a)), ut_owners_tag(&o, ~(1ULL << b)));
        }
    CHECK_HEX(ut_owners_tag(&o, ~0x8001ULL), 0xfb3a); /* the same in every build */
}

/* Who dies owns nothing eight ops later; until then all still cut as before. Of the one that decides the others must
 * first say that they do not hear it either. */
static void owners__a_dead_host_owns_nothing(void)
{
    for (uint32_t dead = 0; dead < N; dead++) {
        start_heard();
        die(dead);
        CHECK_EQ(ops_until(ALL & ~(1ULL << dead)), AHEAD + (dead == 0));
        for (int k = 0; k < 30; k++)
            CHECK_HEX(op(), ALL & ~(1ULL << dead));
    }
}

/* The next change waits until who lags has done with the one before. */
static void owners__one_change_at_a_time(void)
{
    start_heard();
    die(3);
    op();
    die(1);
    CHECK_EQ(ops_until(0x7), AHEAD - 1);
    CHECK_EQ(ops_until(0x5), UT_OPS_MAX + AHEAD - 1);
    die(0);
    CHECK_EQ(ops_until(0x4), UT_OPS_MAX + AHEAD - 1);
}

static void owners__who_never_came_owns(void)
{
    start(0);
    deaf[0] = deaf[1] = deaf[2] = 8; /* in a new job host 3 may be slow to start */
    deaf[3] = 7;
    up = 7;
    for (int k = 0; k < 30; k++)
        CHECK_HEX(op(), ALL);
}

/* Back means: it has opened an op as the others have. A daemon whose trainer has not called yet owns nothing. */
static void owners__back_when_it_follows(void)
{
    for (uint32_t dead = 0; dead < N; dead++) {
        start_heard();
        die(dead);
        CHECK_EQ(ops_until(ALL & ~(1ULL << dead)), AHEAD + (dead == 0));
        for (int k = 0; k < 10; k++)
            op();
        uint64_t next = at[(dead + 1) % N];
        come_back(dead, next);
        CHECK_EQ(ut_owners_say(&host[dead], dead, sees(dead), next).decider, UT_DECIDER_NONE);
        speak((dead + 1) % N);
        CHECK(!ut_owners_unsure(&host[dead], next));
        CHECK_HEX(ut_owners_of(&host[dead], next), ALL & ~(1ULL << dead));
        CHECK_LE(ops_until(ALL), AHEAD + 2);
    }
    start_heard();
    die(2);
    CHECK_EQ(ops_until(0xb), AHEAD);
    come_back(2, at[0]);
    for (int k = 0; k < 30; k++) { /* it is up, and opens nothing */
        up &= ~4ULL;
        op();
        up |= 4;
        CHECK_HEX(ut_owners_of(&host[0], at[0]), 0xb);
    }
}

/* Of a decision that reached one host alone before its maker died, all learn from that one. */
static void owners__a_word_that_few_heard(void)
{
    start(0);
    op();
    lost[0] |= 8; /* host 0 is the first to see it */
    ut_owners_decide(&host[0], 0, sees(0), lost[0], at[0]);
    deaf[1] = deaf[2] = deaf[3] = 0;
    up = 7;
    deaf[1] = 1; /* only host 2 hears 0 */
    speak(0);
    CHECK_HEX(ut_owners_of(&host[2], at[0] + AHEAD), 7);
    CHECK_HEX(ut_owners_of(&host[1], at[0] + AHEAD), ALL);
    die(0);
    die(3);
    speak(2);
    CHECK_HEX(ut_owners_of(&host[1], at[0] + AHEAD), 7);
    CHECK_HEX(ut_owners_of(&host[1], at[0] + AHEAD - 1), ALL);
    deaf[1] = 0;
    CHECK_LE(ops_until(6), 2 * AHEAD + UT_OPS_MAX);
}

/* Two hosts that do not hear each other do not quarrel over who owns: a third hears both. */
static void owners__no_second_decider(void)
{
    start_heard();
    deaf[0] = 2;
    deaf[1] = 1;
    lost[0] = 2;
    lost[1] = 1;
    CHECK_EQ(ops_until(0xd), AHEAD); /* as 0 sees it */
    for (int k = 0; k < 40; k++)
        CHECK_HEX(op(), 0xd);
    die(0);
    CHECK_LE(ops_until(0xe), AHEAD + 1); /* now 1 decides */
}

/* A host that came to a running job takes one that it has not met in four ops for gone, if it has to decide. */
static void owners__whom_a_newcomer_never_met(void)
{
    start(100);
    deaf[0] = deaf[1] = deaf[2] = 8;
    up = 7;
    CHECK_EQ(ops_until(7), UT_OPS_MAX + AHEAD);
}

static void owners__nonsense_is_not_heard(void)
{
    start(0);
    ut_owners_word words[] = {{{0, 1, 50}, 0}, {{1, 0, 50}, 0}, {{0xf0, 0xf, 50}, 0}, {{7, 7, 50}, UT_DECIDER_NONE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ut_owners_hear(&host[1], 0, &words[i]);
        CHECK_HEX(ut_owners_of(&host[1], 60), ALL);
    }
    ut_owners_hear(&host[1], 0, &(ut_owners_word){{0xff, 0xf7, 50}, 0});
    CHECK_HEX(ut_owners_of(&host[1], 49), ALL);
    CHECK_HEX(ut_owners_of(&host[1], 50), 7);
    ut_owners_hear(&host[1], 2, &(ut_owners_word){{0xf, 3, 40}, 0}); /* an older plan */
    CHECK_HEX(ut_owners_of(&host[1], 50), 7);
}

/* Hosts die and come back for ever: where all hear each other within an op they never differ, and when all is quiet
 * those that are there own. */
static void owners__any_order(void)
{
    for (int world = 0; world < 300; world++) {
        start(0);
        for (int k = 0; k < 60; k++) {
            CHECK_MSG(op(), "world %d, op %d: hosts differ", world, k);
            uint32_t h = (uint32_t)check_below(N);
            bool alone = (up & ~(1ULL << h)) == 0;
            if (check_below(4) == 0 && (up >> h & 1) && !alone)
                die(h);
            uint32_t other = (uint32_t)__builtin_ctzll(up);
            if (check_below(4) == 0 && !(up >> h & 1)) {
                come_back(h, at[other]);
                for (uint32_t p = 0; p < N;
                     p++) /* it hears of the others when it comes, and whom it does not is lost */
                    lost[h] |= p != h && !(up >> p & 1) ? 1ULL << p : 0;
                for (uint32_t p = 0; p < N; p++)
                    if (up >> p & 1)
                        speak(p);
            }
        }
        for (int k = 0; k < 3 * (AHEAD + UT_OPS_MAX); k++)
            CHECK(op());
        CHECK_HEX(op(), up);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(owners_tag__names_them);
    RUN(owners__a_dead_host_owns_nothing);
    RUN(owners__one_change_at_a_time);
    RUN(owners__who_never_came_owns);
    RUN(owners__back_when_it_follows);
    RUN(owners__a_word_that_few_heard);
    RUN(owners__no_second_decider);
    RUN(owners__whom_a_newcomer_never_met);
    RUN(owners__nonsense_is_not_heard);
    RUN(owners__any_order);
    return check_end();
}
