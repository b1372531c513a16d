/* SPDX-License-Identifier: Apache-2.0 */
#include "core/view/view.h"

#include "core/base/bits.h"

enum {
    AHEAD = 2 * UT_OPS_MAX, /* no host can be that far ahead of another that still takes part */
    FARTHEST = 2 * AHEAD,   /* a plan for a later op is not believed yet, nor is a change put off to one */
    DUE = 2,                /* ops before a change in which it can still be taken back in time */
    COMING = 2 * AHEAD,     /* ops of a new job in which a host that was never up may still be on its way */
    PATIENCE = 2 * AHEAD,   /* ops in which somebody else may decide what we would */
    WAIT_MOST = 7,          /* a wait is for at most 4 << 7 ops */
};

void ut_view_init(ut_view *v, uint32_t hosts, uint64_t first_op_seq, const uint16_t most[UT_VIEW_OPTIONS],
                  const uint16_t first[UT_VIEW_OPTIONS])
{
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX);
    ut_view_state all = {.owners = UINT64_MAX >> (UT_HOSTS_MAX - hosts)};
    if (first_op_seq == 0)
        memcpy(all.option, first, sizeof all.option);
    *v = (ut_view){
        .plan = {.before = all, .after = all}, .all = all.owners, .joined = first_op_seq != 0, .wants_since = UT_NEVER};
    memcpy(v->most, most, sizeof v->most);
    memset(v->said, UT_DECIDER_NONE, sizeof v->said);
}

/* ---- states ---- */

/* A checksum of 16 bits (that of DNP3): linear, so what is alike in two states cancels out, and of a minimum distance
 * that holds for all bits of a state together. */
static uint16_t divide(uint16_t rest, uint64_t bits, unsigned count)
{
    while (count--) {
        bool carry = (rest >> 15 ^ bits >> count) & 1;
        rest = (uint16_t)(rest << 1 ^ (carry ? 0x3d65 : 0));
    }
    return rest;
}

uint16_t ut_view_tag(const ut_view *v, const ut_view_state *state)
{
    uint16_t tag = divide(0, v->all & ~state->owners, 64);
    for (unsigned i = 0; i < UT_VIEW_OPTIONS; i++)
        tag = divide(tag, state->option[i], 16);
    return tag;
}

static bool same(const ut_view_state *a, const ut_view_state *b)
{
    return a->owners == b->owners && memcmp(a->option, b->option, sizeof a->option) == 0;
}

static bool possible(const ut_view *v, const ut_view_state *s)
{
    for (unsigned i = 0; i < UT_VIEW_OPTIONS; i++)
        if (s->option[i] > v->most[i])
            return false;
    return s->owners != 0;
}

/* Which of two states is the larger: by their owners, then by each option. 0 if they are the same. */
static int larger(const ut_view_state *a, const ut_view_state *b)
{
    if (a->owners != b->owners)
        return a->owners > b->owners ? 1 : -1;
    for (unsigned i = 0; i < UT_VIEW_OPTIONS; i++)
        if (a->option[i] != b->option[i])
            return a->option[i] > b->option[i] ? 1 : -1;
    return 0;
}

static bool later(const ut_view_plan *a, const ut_view_plan *b)
{
    if (a->from != b->from)
        return a->from > b->from;
    int after = larger(&a->after, &b->after);
    return after ? after > 0 : larger(&a->before, &b->before) > 0;
}

/* ---- who decides ---- */

/* The lowest host that decides, by its own word: the own one, once it is sure. */
static uint8_t heard_decider(const ut_view *v, const ut_view_here *here)
{
    for (uint64_t rest = here->up; rest; rest &= rest - 1) {
        uint32_t h = (uint32_t)__builtin_ctzll(rest);
        if (h < here->self && v->said[h] == h)
            return (uint8_t)h;
    }
    return ut_view_unsure(v) ? UT_DECIDER_NONE : (uint8_t)here->self;
}

/* Nobody else decides, nor is there one that we alone do not hear: two would quarrel. */
static bool decides(const ut_view *v, const ut_view_here *here)
{
    for (uint64_t rest = here->up; rest; rest &= rest - 1)
        if (v->said[__builtin_ctzll(rest)] < here->self)
            return false;
    return !ut_view_unsure(v);
}

/* ---- waits ---- */

/* Twice as long as the one before. */
static void wait(ut_view_wait *w, uint64_t next_open)
{
    assert(w->times <= WAIT_MOST);
    w->times = (uint8_t)UT_MIN2(w->times + 1, WAIT_MOST);
    w->until = next_open + ((uint64_t)UT_OPS_MAX << w->times);
}

static void wait_each(ut_view_wait *of, uint64_t hosts, uint64_t next_open)
{
    for (; hosts; hosts &= hosts - 1)
        wait(&of[__builtin_ctzll(hosts)], next_open);
}

static uint64_t waiting(const ut_view_wait *of, uint64_t hosts, uint64_t next_open)
{
    uint64_t mask = 0;
    for (; hosts; hosts &= hosts - 1)
        mask |= next_open < of[__builtin_ctzll(hosts)].until ? hosts & -hosts : 0;
    return mask;
}

/* ---- owners ---- */

/* Whom any host that is up has for an owner, by a word that came when it must have known of our plan. */
static uint64_t held(const ut_view *v, uint64_t up)
{
    uint64_t mask = 0;
    for (; up; up &= up - 1) {
        uint32_t h = (uint32_t)__builtin_ctzll(up);
        mask |= v->holds_at[h] + UT_OPS_MAX >= v->plan.from ? v->holds[h] : 0;
    }
    return mask;
}

/* Somebody who is up does not let go of hosts that were to leave: they are not gone, only our path to them is. If one
 * of them has come back meanwhile it is that one, and the others leave a little later. */
static void take_back(ut_view *v, const ut_view_here *here)
{
    ut_view_plan *p = &v->plan;
    uint64_t leave = p->before.owners & ~p->after.owners, back = held(v, here->up) & leave;
    if (!back)
        return;
    if (leave & here->up) {
        p->after.owners |= leave & here->up;
        p->from = here->next_open + AHEAD;
        v->latest = here->next_open + FARTHEST;
        return;
    }
    p->after.owners |= back;
    p->from++;
    wait_each(v->retry, back, here->next_open);
}

/* Of hosts that seem gone those that nobody ever held; else the one that was held least often: one that is held must
 * not keep the others in. */
static uint64_t least_held(const ut_view *v, uint64_t gone)
{
    uint64_t never = 0, least = 0;
    unsigned times = UINT8_MAX;
    for (uint64_t rest = gone; rest; rest &= rest - 1) {
        const ut_view_wait *w = &v->retry[__builtin_ctzll(rest)];
        never |= w->times == 0 ? rest & -rest : 0;
        least = w->times < times ? rest & -rest : least;
        times = UT_MIN2(times, (unsigned)w->times);
    }
    return never ? never : least;
}

static uint64_t wanted_owners(const ut_view *v, const ut_view_here *here)
{
    assert(ut_bits_have(v->all, here->self) && !ut_bits_have(here->up, here->self) && !(here->up & ~v->all));
    uint64_t next_open = here->next_open, after = v->plan.after.owners;
    uint64_t present = here->up | ut_bit(here->self), back = (here->up & v->follow) | ut_bit(here->self);
    uint64_t gone = ~present & (v->joined && v->opened == UT_OPS_MAX ? v->all : here->lost);
    gone = least_held(v, gone & after & ~waiting(v->retry, gone, next_open) & ~waiting(v->keep, gone, next_open));
    return (after & ~gone) | back | (next_open >= v->plan.from + UT_OPS_MAX ? held(v, here->up) & ~after : 0);
}

/* Nobody of |hosts| is |present|, nor to be kept. */
static bool may_leave(const ut_view *v, uint64_t hosts, uint64_t present, uint64_t next_open)
{
    return !(hosts & present) && !waiting(v->keep, hosts, next_open);
}

/* ---- options ---- */

/* Takes what this host would choose, where it has not just chosen otherwise. */
static void choose(ut_view *v, const uint16_t *want, uint64_t next_open, ut_view_state *next)
{
    for (unsigned i = 0; i < UT_VIEW_OPTIONS; i++) {
        ut_view_wait *w = &v->calm[i];
        if (next->option[i] == want[i] || next_open < w->until)
            continue;
        if (next_open > w->until + ((uint64_t)UT_OPS_MAX << w->times))
            w->times = 0;
        wait(w, next_open);
        next->option[i] = want[i];
    }
}

/* ---- the plan ---- */

void ut_view_decide(ut_view *v, const ut_view_here *here, const uint16_t want[UT_VIEW_OPTIONS])
{
    ut_view_plan *p = &v->plan;
    uint64_t next_open = here->next_open;
    for (uint64_t up = here->up; up; up &= up - 1) /* what was said of it is over */
        v->keep[__builtin_ctzll(up)] = v->retry[__builtin_ctzll(up)] = (ut_view_wait){0};
    bool known =
        next_open + FARTHEST >= v->latest + UT_OPS_MAX; /* long enough for others to have said what they think */
    if (known && next_open <= p->from && next_open + DUE >= p->from)
        take_back(v, here);
    ut_view_state next = p->after;
    next.owners = wanted_owners(v, here);
    bool others = next.owners != p->after.owners;
    v->wants_since = others ? UT_MIN2(v->wants_since, next_open) : UT_NEVER;
    bool settled =
        p->from == 0 || next_open >= p->from + UT_OPS_MAX; /* who lags must not hear of the next change too */
    bool moving = next_open < p->from && p->before.owners != p->after.owners;
    bool impatient = others && !moving && next_open - v->wants_since >= PATIENCE;
    if (settled && decides(v, here))
        choose(v, want, next_open, &next);
    else if (!impatient)
        return;
    if (same(&next, &p->after))
        return;
    wait_each(v->keep, next.owners & ~p->after.owners & ~here->up & ~ut_bit(here->self), next_open);
    if (next_open >= p->from)
        v->latest = next_open + FARTHEST;
    *p =
        (ut_view_plan){.before = *ut_view_at(v, next_open), .after = next, .from = UT_MAX2(p->from, next_open + AHEAD)};
    v->wants_since = UT_NEVER;
    assert(p->before.owners && p->after.owners);
}

void ut_view_opened(ut_view *v)
{
    v->opened = (uint8_t)UT_MIN2(v->opened + 1, UT_OPS_MAX);
    assert(v->opened <= UT_OPS_MAX);
}

ut_view_claim ut_view_say(const ut_view *v, const ut_view_here *here)
{
    return (ut_view_claim){.plan = v->plan, .decider = heard_decider(v, here)};
}

void ut_view_hear(ut_view *v, uint32_t host, const ut_view_claim *word, const ut_view_here *here)
{
    assert(ut_bits_have(v->all, host) && host != here->self);
    ut_view_plan p = word->plan, *ours = &v->plan;
    uint64_t next_open = here->next_open;
    p.before.owners &= v->all;
    p.after.owners &= v->all;
    bool knows = word->decider != UT_DECIDER_NONE && possible(v, &p.before) && possible(v, &p.after);
    bool under_way = next_open < ours->from;
    v->said[host] = word->decider;
    v->holds[host] = knows ? p.after.owners : 0;
    v->holds_at[host] = next_open;
    if (!knows || (p.from > next_open && p.from - next_open > FARTHEST))
        return;
    bool unsure = ut_view_unsure(v);
    v->met |= here->up;
    ut_view_state at = *ut_view_at(v, next_open);
    uint64_t present = here->up | ut_bit(here->self);
    present |= !v->joined && next_open < COMING ? ~v->met : 0;
    v->told = true;
    if (!unsure) {
        p.after.owners |= ours->after.owners & ~at.owners & present; /* two may take somebody in at once */
        if (!later(&p, ours) || (under_way && p.from > v->latest) || (!under_way && same(&p.after, &ours->after)) ||
            !may_leave(v, (at.owners | ours->after.owners) & ~p.after.owners, present, next_open))
            return;
        if (same(&p.after, &ours->after) || !may_leave(v, at.owners & ~p.before.owners, present, next_open))
            p.before = at;
    } else if (!later(&p, ours)) {
        return;
    }
    wait_each(v->keep, p.after.owners & ~(ours->after.owners | at.owners) & ~present, next_open);
    assert(possible(v, &p.before) && possible(v, &p.after));
    *ours = p;
    if (!under_way)
        v->latest = next_open + FARTHEST;
}

void ut_view_opens(ut_view *v, uint32_t host)
{
    assert(ut_bits_have(v->all, host));
    v->follow |= ut_bit(host);
}

void ut_view_forget(ut_view *v, uint32_t host)
{
    assert(ut_bits_have(v->all, host));
    v->follow &= ~ut_bit(host);
    v->said[host] = UT_DECIDER_NONE;
    v->holds[host] = 0;
}
