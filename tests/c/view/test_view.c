/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts agree on: the decision alone, among hosts that speak the truth.
 */
#include "views.h"

/* All differences of up to |left| more bits, from bit |from| on: none gives the tag 0. */
static void differ(const ut_view *v, ut_view_state *s, unsigned from, unsigned left, uint64_t *count)
{
    for (unsigned k = from; k < 64 + 16 * UT_VIEW_OPTIONS; k++) {
        uint16_t *option = &s->option[k < 64 ? 0 : (k - 64) / 16];
        s->owners ^= k < 64 ? 1ULL << k : 0;
        *option ^= (uint16_t)(k < 64 ? 0 : 1u << (k - 64) % 16);
        CHECK_MSG(ut_view_tag(v, s) != 0, "owners %#" PRIx64, s->owners);
        ++*count;
        if (left > 1)
            differ(v, s, k + 1, left - 1, count);
        s->owners ^= k < 64 ? 1ULL << k : 0;
        *option ^= (uint16_t)(k < 64 ? 0 : 1u << (k - 64) % 16);
    }
}

static void view_tag__tells_states_apart(void)
{
    ut_view v;
    for (uint32_t n = 1; n <= 16; n++) { /* of up to 16 hosts any two sets */
        ut_view_init(&v, n, 0, most, none);
        static bool used[1 << 16];
        memset(used, 0, sizeof used);
        for (uint64_t owners = 1; owners <= UINT64_MAX >> (64 - n); owners++) {
            uint16_t tag = ut_view_tag(&v, &(ut_view_state){.owners = owners});
            CHECK_EQ(used[tag], false);
            used[tag] = true;
        }
        CHECK_EQ(ut_view_tag(&v, &(ut_view_state){.owners = UINT64_MAX >> (64 - n)}), 0);
    }
    ut_view_init(&v, 64, 0, most, none);
    ut_view_state all = {.owners = UINT64_MAX};
    CHECK_EQ(ut_view_tag(&v, &all), 0);
    uint64_t count = 0;
    differ(&v, &all, 0, 3, &count); /* it is linear: what holds for differences from one state holds for all */
    CHECK_EQ(count, 128 + 128 * 127 / 2 + 128 * 127 * 126 / 6);
    CHECK_HEX(ut_view_tag(&v, &(ut_view_state){.owners = ~1ULL}), 0x90d0); /* the same in every build */
    all.option[UT_VIEW_CODEC] = 1;
    CHECK_HEX(ut_view_tag(&v, &all), 0xf23f);
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
        ut_view_here of = here(dead);
        CHECK_EQ(ut_view_say(&host[dead], &of).decider, UT_DECIDER_NONE);
        speak((dead + 1) % N);
        CHECK(!ut_view_unsure(&host[dead]));
        CHECK_HEX(owners_at(&host[dead], next), ALL & ~(1ULL << dead));
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
        CHECK_HEX(owners_at(&host[0], at[0]), 0xb);
    }
}

/* The job runs on between a host's coming and its first op. Who was told nothing meanwhile still takes the first word
 * that it hears, however far the job has come; and in its first four ops it takes nobody for gone. */
static void owners__a_newcomer_that_begins_far_on(void)
{
    for (uint64_t on = 0; on < 40; on++) {
        start_heard();
        die(2);
        CHECK_EQ(ops_until(0xb), AHEAD);
        for (int k = 0; k < 10; k++)
            op();
        come_back(2, at[0]);
        up &= ~4ULL;
        deaf[2] = 0xb;
        for (uint64_t k = 0; k < on; k++)
            op();
        up |= 4;
        deaf[2] = 0;
        at[2] = at[0];
        CHECK(ut_view_unsure(&host[2]));
        speak(0);
        CHECK(!ut_view_unsure(&host[2]));
        CHECK_HEX(owners_at(&host[2], at[2]), 0xb);
        CHECK_LE(ops_until(ALL), AHEAD + 2);
    }
    start(100);
    at[0] = at[1] = at[2] = 140;
    deaf[0] = deaf[1] = deaf[2] = 8;
    up = 7;
    CHECK_EQ(ops_until(7), UT_OPS_MAX + AHEAD);
}

/* Of a decision that reached one host alone before its maker died, all learn from that one. */
static void owners__a_word_that_few_heard(void)
{
    start(0);
    op();
    lost[0] |= 8; /* host 0 is the first to see it */
    decide(0);
    deaf[1] = deaf[2] = deaf[3] = 0;
    up = 7;
    deaf[1] = 1; /* only host 2 hears 0 */
    speak(0);
    CHECK_HEX(owners_at(&host[2], at[0] + AHEAD), 7);
    CHECK_HEX(owners_at(&host[1], at[0] + AHEAD), ALL);
    die(0);
    die(3);
    speak(2);
    CHECK_HEX(owners_at(&host[1], at[0] + AHEAD), 7);
    CHECK_HEX(owners_at(&host[1], at[0] + AHEAD - 1), ALL);
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
    ut_view_claim words[] = {{plan_of(0, 1, 50), 0},      {plan_of(1, 0, 50), 0},
                             {plan_of(0xf0, 0xf, 50), 0}, {plan_of(7, 7, 50), UT_DECIDER_NONE},
                             {plan_of(7, 7, 50), 0},      {plan_of(7, 7, 50), 0}};
    words[4].plan.after.option[UT_VIEW_CODEC] = 2; /* there is no such codec */
    words[5].plan.before.option[3] = 1;            /* nor such an option */
    at[1] = 40;
    lost[1] = 8;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        tell(1, 0, words[i].plan, words[i].decider);
        CHECK_HEX(owners_at(&host[1], 60), ALL);
    }
    tell(1, 0, plan_of(0xff, 0xf7, 50), 0);
    CHECK_HEX(owners_at(&host[1], 49), ALL);
    CHECK_HEX(owners_at(&host[1], 50), 7);
    tell(1, 2, plan_of(0xf, 3, 40), 0); /* an older plan */
    CHECK_HEX(owners_at(&host[1], 50), 7);
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

/* ---- options ---- */

static void all_want(unsigned option, uint16_t value)
{
    for (uint32_t h = 0; h < N; h++)
        want[h][option] = value;
}

/* Ops until |option| is |value| on all that live, at most 600; in each of them all agree. */
static uint32_t ops_until_option(unsigned option, uint16_t value)
{
    uint32_t h = (uint32_t)__builtin_ctzll(up);
    for (uint32_t k = 0; k < 600; k++) {
        CHECK_MSG(op(), "op %u from here: hosts differ", k);
        if (ut_view_at(&host[h], at[h] - 1)->option[option] == value)
            return k;
    }
    return UINT32_MAX;
}

/* A new option is a place and its largest value: this one is agreed on like the codec, and at the same time. */
static void options__change_eight_ops_later_on_all(void)
{
    start_heard();
    all_want(UT_VIEW_CODEC, 1);
    all_want(SPARE, 4);
    CHECK_EQ(ops_until_option(SPARE, 4), AHEAD);
    CHECK_EQ(ut_view_at(&host[2], at[2])->option[UT_VIEW_CODEC], 1);
    for (int k = 0; k < 20; k++)
        op();
    all_want(SPARE, 0);
    CHECK_EQ(ops_until_option(SPARE, 0), AHEAD);
    CHECK_EQ(ut_view_at(&host[2], at[2])->option[UT_VIEW_CODEC], 1);
}

/* A job begins with the option that its hosts were given, and one that joins it takes what holds there. */
static void options__of_a_new_job_and_of_a_newcomer(void)
{
    start_heard();
    static const uint16_t first[UT_VIEW_OPTIONS] = {[UT_VIEW_CODEC] = 1};
    for (uint32_t h = 0; h < N; h++) {
        ut_view_init(&host[h], N, 0, most, first);
        at[h] = 0;
    }
    all_want(UT_VIEW_CODEC, 1);
    for (int k = 0; k < 20; k++)
        CHECK(op());
    CHECK_EQ(ut_view_at(&host[3], at[3])->option[UT_VIEW_CODEC], 1);
    die(2);
    CHECK_LE(ops_until(ALL & ~4ULL), 20);
    come_back(2, at[0]);
    CHECK_EQ(ut_view_at(&host[2], at[2])->option[UT_VIEW_CODEC],
             0); /* it knows nothing, whatever it was told to want */
    speak(0);
    CHECK_EQ(ut_view_at(&host[2], at[2])->option[UT_VIEW_CODEC], 1);
    CHECK_LE(ops_until(ALL), 2 * AHEAD + UT_OPS_MAX);
}

/* Only the host that decides is asked, and a death of its does not lose what was agreed. */
static void options__the_lowest_host_decides(void)
{
    start_heard();
    want[3][SPARE] = 5;
    for (int k = 0; k < 100; k++)
        CHECK(op());
    CHECK_EQ(ut_view_at(&host[0], at[0])->option[SPARE], 0);
    want[0][SPARE] = want[1][SPARE] = 2;
    CHECK_LE(ops_until_option(SPARE, 2), AHEAD);
    die(0);
    CHECK_LE(ops_until(ALL & ~1ULL), 40);
    CHECK_EQ(ut_view_at(&host[1], at[1])->option[SPARE], 2);
}

/* A decision that comes late is taken from where it says, and is no surprise for ops that are over. */
static void options__a_late_word(void)
{
    start_heard();
    for (int k = 0; k < 48; k++)
        op();
    want[0][UT_VIEW_CODEC] = 1;
    decide(0);
    at[2] += 3; /* ahead of it */
    speak(0);
    for (uint64_t seq = 50; seq < 70; seq++)
        for (uint32_t h = 0; h < N; h++)
            CHECK_EQ(ut_view_at(&host[h], seq)->option[UT_VIEW_CODEC], seq >= 58);
}

/* Wishes that flap move an option ever more seldom; owners do not wait for that. */
static void options__flap_ever_more_seldom(void)
{
    start_heard();
    uint32_t changes = 0;
    uint16_t was = 0;
    for (int k = 0; k < 1000; k++) {
        all_want(UT_VIEW_CODEC, ut_view_at(&host[0], at[0])->option[UT_VIEW_CODEC] ^ 1);
        CHECK(op());
        uint16_t is = ut_view_at(&host[0], at[0])->option[UT_VIEW_CODEC];
        changes += is != was;
        was = is;
    }
    CHECK_LE(changes, 9);
    CHECK_GE(changes, 4);
    die(3);
    CHECK_LE(ops_until(7), 2 * AHEAD + UT_OPS_MAX);
    for (int k = 0; k < 2000; k++)
        op();
    all_want(UT_VIEW_CODEC, was ^ 1);
    CHECK_LE(ops_until_option(UT_VIEW_CODEC, was ^ 1), AHEAD); /* all was calm for long */
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(view_tag__tells_states_apart);
    RUN(owners__a_dead_host_owns_nothing);
    RUN(owners__one_change_at_a_time);
    RUN(owners__who_never_came_owns);
    RUN(owners__back_when_it_follows);
    RUN(owners__a_newcomer_that_begins_far_on);
    RUN(owners__a_word_that_few_heard);
    RUN(owners__a_broken_path_takes_no_shard);
    RUN(owners__the_last_to_learn);
    RUN(owners__whom_a_newcomer_never_met);
    RUN(owners__nonsense_is_not_heard);
    RUN(owners__any_order);
    RUN(options__change_eight_ops_later_on_all);
    RUN(options__of_a_new_job_and_of_a_newcomer);
    RUN(options__the_lowest_host_decides);
    RUN(options__a_late_word);
    RUN(options__flap_ever_more_seldom);
    return check_end();
}
