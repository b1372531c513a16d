/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts agree on where one of them lies about it, to each as it likes.
 */
#include "views.h"

static void lie(uint32_t liar, uint64_t before, uint64_t after, uint64_t from)
{
    for (uint32_t h = 0; h < N; h++)
        if (h != liar && (sees(h) >> liar & 1))
            tell(h, liar, plan_of(before, after, from), (uint8_t)liar);
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
            for (; k < 80 && owners_at(&host[here], at[here]) != ALL; k++) {
                uint64_t flip = ALL & ~(1ULL << dead) & ~(k & 1 ? 1ULL << here : 0);
                lie(liar, flip, how == 1 ? flip : ALL & ~(1ULL << dead), at[here] + (how == 2 ? k % 24 : 16));
                op();
            }
            CHECK_MSG(k < 80, "liar %u, kind %d", liar, how);
            for (k = 0; k < 40; k++) {
                lie(liar, 1ULL << liar, 1ULL << liar, at[here] + 16);
                CHECK_HEX(owners_at(&host[here], at[here]), ALL);
                CHECK(k < 16 || owners_at(&host[dead], at[dead]) == ALL);
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
            tell(one, liar, plan_of(ALL, ALL, at[one]), (uint8_t)liar);
            tell(2, liar, plan_of(7, 7, at[2] + k % 17), (uint8_t)liar);
            op();
            uint64_t x = owners_at(&host[one], at[one]), y = owners_at(&host[2], at[2]);
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
    ut_view v;
    ut_view_init(&v, 2, 0, most, none);
    for (uint64_t next = 0; next < 300; next++) {
        ut_view_here of = {.self = 1, .up = 1, .next_open = next};
        ut_view_hear(&v, 0, &(ut_view_claim){plan_of(1 + next % 3, 1 + next / 3 % 2, next + next % 20), 0}, &of);
        ut_view_decide(&v, &of, none);
        CHECK_HEX(owners_at(&v, next), 3);
    }
    for (uint64_t next = 300; next < 330; next++) /* alone: nobody is there to object */
        ut_view_decide(&v, &(ut_view_here){.self = 1, .lost = 1, .next_open = next}, none);
    CHECK_HEX(owners_at(&v, 330), 2);
    ut_view_init(&v, 2, 500, most, none); /* who comes new believes the only one that it hears, for a while */
    uint64_t alone = 0;
    for (uint64_t next = 500; next < 700; next++) {
        ut_view_here of = {.self = 1, .up = 1, .next_open = next};
        ut_view_hear(&v, 0, &(ut_view_claim){plan_of(1, 1, next + 16), 0}, &of);
        ut_view_decide(&v, &of, none);
        alone += owners_at(&v, next) != 3;
    }
    CHECK_LE(alone, 60);
    CHECK_HEX(owners_at(&v, 700), 3);
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
                ut_view_plan p = plan_of(1 + check_below(ALL), 1 + check_below(ALL), at[h] + check_below(20));
                p.after.option[UT_VIEW_CODEC] = check_below(4) == 0;
                p.before.option[SPARE] = check_below(4) ? 0 : (uint16_t)check_below(6);
                p.after.owners =
                    check_below(3) ? p.after.owners : host[(h + 1) % N].plan.after.owners ^ (1ULL << victim);
                uint64_t back = check_below(20); /* not within the macro, which would draw twice */
                p.from -= check_below(4) ? 0 : UT_MIN2(at[h], back);
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
                    uint64_t owners = owners_at(&host[h], at[h] - 1);
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

/* A liar may flip an option at every op. Hosts that come back own again all the same, and when it falls silent the
 * option is what the deciding host would have. */
static void options__a_liar_delays_nobody_for_ever(void)
{
    for (uint32_t liar = 0; liar < N; liar++) {
        uint32_t dead = (liar + 1) % N, other = (liar + 2) % N;
        start_heard();
        die(dead);
        CHECK_LE(ops_until(ALL & ~(1ULL << dead)), 40);
        liars = 1ULL << liar;
        come_back(dead, at[other]);
        speak(other);
        uint32_t k = 0;
        for (; k < 120 && owners_at(&host[other], at[other]) != ALL; k++) {
            for (uint32_t h = 0; h < N; h++)
                if (h != liar) {
                    ut_view_plan p = host[h].plan;
                    p.after.option[UT_VIEW_CODEC] ^= 1;
                    p.from = at[h] + 1 + check_below(16);
                    tell(h, liar, p, (uint8_t)liar);
                }
            op();
        }
        CHECK_MSG(k < 120, "liar %u keeps host %u out", liar, dead);
        liars = 0;
        for (k = 0; k < 40; k++)
            op();
        CHECK(op());
        CHECK_EQ(ut_view_at(&host[other], at[other])->option[UT_VIEW_CODEC], 0);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(owners__a_liar_takes_no_shard);
    RUN(owners__a_liar_keeps_nobody_out);
    RUN(owners__a_liar_that_takes_the_dead_in);
    RUN(owners__two_hosts);
    RUN(owners__any_lies);
    RUN(options__a_liar_delays_nobody_for_ever);
    return check_end();
}
