/* SPDX-License-Identifier: Apache-2.0
 *
 * Four hosts that decide together, and nothing else of them: they die, come back, and hear each other late or not at
 * all. All that a view asks of its job is in ut_view_here and in what a host would choose.
 */
#ifndef UT_TEST_VIEWS_H
#define UT_TEST_VIEWS_H

#include "check.h"
#include "core/view/view.h"

enum { N = 4, ALL = 0xf, AHEAD = 8 };
static ut_view host[N];
static uint64_t at[N];   /* next_open */
static uint64_t up;      /* hosts that live */
static uint64_t lost[N]; /* per host: whom it saw go */
static uint64_t deaf[N]; /* per host: whom it does not hear, nor sees up */
static uint64_t unaware; /* hosts that see those who died as up */
static uint64_t liars;   /* hosts whose own words are not heard; lies are, see lie() */

/* Options: the codec, and one that only these tests have. */
enum { SPARE = 1 };
static const uint16_t most[UT_VIEW_OPTIONS] = {[UT_VIEW_CODEC] = 1, [SPARE] = 5}, none[UT_VIEW_OPTIONS];
static uint16_t want[N][UT_VIEW_OPTIONS]; /* what each would choose */

static void born(uint32_t h, uint64_t first)
{
    ut_view_init(&host[h], N, first, most, none);
    at[h] = first;
    lost[h] = 0;
}

static void start(uint64_t first)
{
    up = ALL;
    unaware = liars = 0;
    memset(want, 0, sizeof want);
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
        ut_view_forget(&host[h], dead);
    }
}

static void come_back(uint32_t back, uint64_t first)
{
    born(back, first);
    for (uint32_t h = 0; h < N; h++) {
        lost[h] &= ~(1ULL << back);
        ut_view_forget(&host[h], back);
    }
    up |= 1ULL << back;
    lost[back] = 0; /* whom it never met it does not miss */
}

static ut_view_here here(uint32_t h)
{
    return (ut_view_here){.self = h, .up = sees(h), .lost = lost[h], .next_open = at[h]};
}

static uint64_t owners_at(const ut_view *v, uint64_t op_seq)
{
    return ut_view_at(v, op_seq)->owners;
}

static ut_view_plan plan_of(uint64_t before, uint64_t after, uint64_t from)
{
    return (ut_view_plan){.before = {.owners = before}, .after = {.owners = after}, .from = from};
}

/* |h| hears |plan| from |from|. */
static void tell(uint32_t h, uint32_t from, ut_view_plan plan, uint8_t decider)
{
    ut_view_claim word = {plan, decider};
    ut_view_here of = here(h);
    ut_view_hear(&host[h], from, &word, &of);
}

static void decide(uint32_t h)
{
    ut_view_here of = here(h);
    ut_view_decide(&host[h], &of, want[h]);
}

static void speak(uint32_t from)
{
    ut_view_here of = here(from);
    ut_view_claim word = ut_view_say(&host[from], &of);
    for (uint32_t h = 0; h < N; h++)
        if ((sees(h) >> from & 1) && !(liars >> from & 1))
            tell(h, from, word.plan, word.decider);
}

/* One op on all hosts that live; then each speaks, in an order of its own. Returns its owners, or 0 where their views
 * differ. */
static uint64_t op(void)
{
    ut_view_state first = {0};
    bool same = true;
    for (uint32_t h = 0; h < N; h++) {
        if (!(up >> h & 1))
            continue;
        decide(h);
        ut_view_opened(&host[h]);
        const ut_view_state *state = ut_view_at(&host[h], at[h]++);
        first = first.owners ? first : *state;
        same = same && memcmp(state, &first, sizeof first) == 0;
    }
    for (uint32_t h = 0; h < N; h++) /* their records say so */
        for (uint32_t p = 0; p < N; p++)
            if ((up >> h & 1) && (sees(h) >> p & 1))
                ut_view_opens(&host[h], p);
    uint32_t turn = (uint32_t)check_below(N);
    for (uint32_t h = 0; h < N; h++)
        if (up >> (h + turn) % N & 1)
            speak((h + turn) % N);
    return same ? first.owners : 0;
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

#endif
