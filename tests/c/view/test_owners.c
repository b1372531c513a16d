/* SPDX-License-Identifier: Apache-2.0
 *
 * Who owns: the decision alone, among hosts that die, come back, and hear each other late or not at all.
 */
#include "check.h"
#include "core/view/owners.h"

enum { N = 4, ALL = 0xf, AHEAD = 8 };
static ut_owners host[N];
static uint64_t at[N];   /* next_open */
static uint64_t up;      /* hosts that live */
static uint64_t lost[N]; /* per host: whom it saw go */
static uint64_t deaf[N]; /* per host: whom it does not hear, nor sees up */
static uint64_t unaware; /* hosts that see those who died as up */
static uint64_t liars;   /* hosts whose own words are not heard; lies are, see lie() */

static void born(uint32_t h, uint64_t first)
{
    ut_owners_init(&host[h], N, first);
    at[h] = first;
    lost[h] = 0;
}

static void start(uint64_t first)
{
    up = ALL;
    unaware = liars = 0;
    for (uint32_t h = 0; h < N; h++) {
        born(h, first);
        deaf[h] = 0;
    }
}

static uint64_t sees(uint32_t h)
{
    return (unaware >> h & 1 ? ALL : up) & ~(1ULL << h) & ~deaf[h] & ~lost[h];
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

/* |h| hears |plan| from |from|. */
static void tell(uint32_t h, uint32_t from, ut_owners_plan plan, uint8_t decider)
{
    ut_owners_word word = {plan, decider};
    ut_owners_hear(&host[h], h, from, &word, sees(h), at[h]);
}

static void speak(uint32_t from)
{
    ut_owners_word word = ut_owners_say(&host[from], from, sees(from), at[from]);
    for (uint32_t h = 0; h < N; h++)
        if ((sees(h) >> from & 1) && !(liars >> from & 1))
            ut_owners_hear(&host[h], h, from, &word, sees(h), at[h]);
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
            if ((up >> h & 1) && (sees(h) >> p & 1))
                ut_owners_opens(&host[h], p);
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

/* Two hosts that do not hear each other, though others hear both, keep their shards, and do not quarrel over it. */
static void owners__a_broken_path_takes_no_shard(void)
{
    for (uint32_t a = 0; a < N; a++)
        for (uint32_t b = a + 1; b < N; b++) {
            start_heard();
            deaf[a] = lost[a] = 1ULL << b;
            deaf[b] = lost[b] = 1ULL << a;
            for (int k = 0; k < 400; k++)
                CHECK_HEX(op(), ALL);
            die(3 - a); /* of one that really is gone all know, sooner or later */
            CHECK_LE(ops_until(ALL & ~(1ULL << (3 - a))), 80);
        }
}

/* Who learns of a death last keeps the change from coming until he knows. */
static void owners__the_last_to_learn(void)
{
    for (uint32_t last = 0; last < 3; last++) {
        start_heard();
        die(3);
        lost[last] = 0;
        for (int k = 0; k < 30; k++) {
            unaware = 1ULL << last;
            CHECK_HEX(op(), ALL);
        }
        unaware = 0;
        lost[last] = 8;
        CHECK_LE(ops_until(7), 40);
    }
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
    at[1] = 40;
    lost[1] = 8;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        tell(1, 0, words[i].plan, words[i].decider);
        CHECK_HEX(ut_owners_of(&host[1], 60), ALL);
    }
    tell(1, 0, (ut_owners_plan){0xff, 0xf7, 50}, 0);
    CHECK_HEX(ut_owners_of(&host[1], 49), ALL);
    CHECK_HEX(ut_owners_of(&host[1], 50), 7);
    tell(1, 2, (ut_owners_plan){0xf, 3, 40}, 0); /* an older plan */
    CHECK_HEX(ut_owners_of(&host[1], 50), 7);
}

/* ---- lies ---- */

static void lie(uint32_t liar, uint64_t before, uint64_t after, uint64_t from)
{
    for (uint32_t h = 0; h < N; h++)
        if (h != liar && (sees(h) >> liar & 1))
            tell(h, liar, (ut_owners_plan){before, after, from}, (uint8_t)liar);
}

/* Whoever it is, whatever op it names: nobody whom the others see loses a shard, and `before` is no way round it. */
static void owners__a_liar_takes_no_shard(void)
{
    static const uint64_t ahead[] = {0, 1, 4, 8, 16, 17, 1000, UINT64_MAX / 2, UINT64_MAX};
    for (uint32_t liar = 0; liar < N; liar++)
        for (size_t i = 0; i < sizeof ahead / sizeof *ahead; i++)
            for (uint64_t after = 1; after <= ALL; after++) {
                start_heard();
                liars = 1ULL << liar;
                for (int k = 0; k < 4; k++) {
                    uint64_t from = ahead[i] > UINT64_MAX / 4 ? ahead[i] : at[1] + ahead[i];
                    lie(liar, k & 1 ? after : ALL, k & 2 ? after : ALL, from);
                    lie(liar, 1ULL << liar, after, from);
                    lie(liar, after, ALL, from);
                    CHECK_HEX(op(), ALL);
                }
                die((liar + 1) % N); /* and what is true is still learned, though it says nothing of it */
                bool found = false;
                for (int k = 0; k < 60; k++)
                    found = op() == (ALL & ~(1ULL << (liar + 1) % N)) || found;
                CHECK_MSG(found, "liar %u says %#" PRIx64, liar, after);
            }
}

/* It may keep the dead among the owners, but not out who came back; nor does it hold a plan for ever ahead. */
static void owners__a_liar_keeps_nobody_out(void)
{
    for (uint32_t liar = 0; liar < N; liar++)
        for (int how = 0; how < 3; how++) {
            uint32_t dead = (liar + 1) % N, here = (liar + 2) % N;
            start_heard();
            die(dead);
            CHECK_LE(ops_until(ALL & ~(1ULL << dead)), 40);
            for (int k = 0; k < 10; k++)
                op();
            liars = 1ULL << liar;
            come_back(dead, at[here]);
            speak(here);
            uint32_t k = 0;
            for (; k < 80 && ut_owners_of(&host[here], at[here]) != ALL; k++) {
                uint64_t flip = ALL & ~(1ULL << dead) & ~(k & 1 ? 1ULL << here : 0);
                lie(liar, flip, how == 1 ? flip : ALL & ~(1ULL << dead), at[here] + (how == 2 ? k % 24 : 16));
                op();
            }
            CHECK_MSG(k < 80, "liar %u, kind %d", liar, how);
            for (k = 0; k < 40; k++) {
                lie(liar, 1ULL << liar, 1ULL << liar, at[here] + 16);
                CHECK_HEX(ut_owners_of(&host[here], at[here]), ALL);
                CHECK(k < 16 || ut_owners_of(&host[dead], at[dead]) == ALL);
                op();
            }
        }
}

/* Says the contrary to each, at every op, of a host that is gone: they differ ever more seldom. */
static void owners__a_liar_that_takes_the_dead_in(void)
{
    for (uint32_t liar = 0; liar < 2; liar++) {
        start_heard();
        die(3);
        CHECK_LE(ops_until(7), 40);
        liars = 1ULL << liar;
        uint32_t differ = 0, one = 1 - liar;
        for (int k = 0; k < 2000; k++) {
            tell(one, liar, (ut_owners_plan){ALL, ALL, at[one]}, (uint8_t)liar);
            tell(2, liar, (ut_owners_plan){7, 7, at[2] + k % 17}, (uint8_t)liar);
            op();
            uint64_t x = ut_owners_of(&host[one], at[one]), y = ut_owners_of(&host[2], at[2]);
            CHECK_HEX(x & y & 7, 7);
            differ += x != y;
        }
        CHECK_LE(differ, 100);
        liars = 0;
        for (int k = 0; k < 600; k++)
            op();
        CHECK_HEX(op(), 7);
    }
}

/* Of two hosts nobody can say who lies, and neither loses its shard to the other. */
static void owners__two_hosts(void)
{
    ut_owners o;
    ut_owners_init(&o, 2, 0);
    for (uint64_t next = 0; next < 300; next++) {
        ut_owners_hear(&o, 1, 0, &(ut_owners_word){{1 + next % 3, 1 + next / 3 % 2, next + next % 20}, 0}, 1, next);
        ut_owners_decide(&o, 1, 1, 0, next);
        CHECK_HEX(ut_owners_of(&o, next), 3);
    }
    for (uint64_t next = 300; next < 330; next++)
        ut_owners_decide(&o, 1, 0, 1, next); /* alone: nobody is there to object */
    CHECK_HEX(ut_owners_of(&o, 330), 2);
    ut_owners_init(&o, 2, 500); /* who comes new believes the only one that it hears, for a while */
    uint64_t alone = 0;
    for (uint64_t next = 500; next < 700; next++) {
        ut_owners_hear(&o, 1, 0, &(ut_owners_word){{1, 1, next + 16}, 0}, 1, next);
        ut_owners_decide(&o, 1, 1, 0, next);
        alone += ut_owners_of(&o, next) != 3;
    }
    CHECK_LE(alone, 60);
    CHECK_HEX(ut_owners_of(&o, 700), 3);
}

/* Any words to anybody, while hosts die and come back: whoever was there all the time owns, and all is well when the
 * lies end. */
static void owners__any_lies(void)
{
    uint32_t differ = 0, ops = 0;
    for (int world = 0; world < 400; world++) {
        uint32_t liar = (uint32_t)check_below(N), victim = (liar + 1 + (uint32_t)check_below(N - 1)) % N;
        uint64_t steady = ALL & ~(1ULL << victim) & ~(1ULL << liar);
        start_heard();
        liars = 1ULL << liar;
        for (int k = 0; k < 200; k++) {
            for (uint32_t h = 0; h < N; h++) {
                if (h == liar || !(sees(h) >> liar & 1) || check_below(3) == 0)
                    continue;
                ut_owners_plan p = {1 + check_below(ALL), 1 + check_below(ALL), at[h] + check_below(20)};
                p.after = check_below(3) ? p.after : host[(h + 1) % N].plan.after ^ (1ULL << victim);
                p.from -= check_below(4) ? 0 : UT_MIN2(at[h], check_below(20));
                tell(h, liar, p, (uint8_t)check_below(N + 1));
            }
            uint32_t other = (uint32_t)__builtin_ctzll(steady);
            if (check_below(30) == 0 && (up >> victim & 1)) {
                die(victim);
            } else if (check_below(30) == 0 && !(up >> victim & 1)) {
                come_back(victim, at[other]);
                speak(other);
            }
            op();
            uint64_t first = 0;
            for (uint32_t h = 0; h < N; h++)
                if (steady >> h & 1) {
                    uint64_t owners = ut_owners_of(&host[h], at[h] - 1);
                    CHECK_MSG((owners & steady) == steady, "world %d op %d: host %u says %#" PRIx64 " of %#" PRIx64,
                              world, k, h, owners, steady);
                    differ += first && first != owners;
                    first = owners;
                }
            ops++;
        }
        liars = 0;
        for (int k = 0; k < 60; k++)
            op();
        CHECK_HEX(op() & up, up); /* all the same */
        uint32_t k = 0;
        while (op() != up && k < 2000)
            k++;
        CHECK_MSG(k < 2000, "world %d: the dead own still", world);
    }
    CHECK_MSG(differ < ops / 10, "in %u of %u ops hosts differed", differ, ops);
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
    RUN(owners__a_broken_path_takes_no_shard);
    RUN(owners__the_last_to_learn);
    RUN(owners__whom_a_newcomer_never_met);
    RUN(owners__nonsense_is_not_heard);
    RUN(owners__a_liar_takes_no_shard);
    RUN(owners__a_liar_keeps_nobody_out);
    RUN(owners__a_liar_that_takes_the_dead_in);
    RUN(owners__two_hosts);
    RUN(owners__any_lies);
    RUN(owners__any_order);
    return check_end();
}
