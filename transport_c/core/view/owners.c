/* SPDX-License-Identifier: Apache-2.0 */
#include "core/view/owners.h"

#include "core/base/mix.h"
#include "core/base/plant.h"

enum {
    AHEAD = 2 * UT_OPS_MAX, /* no host can be that far ahead of another that still takes part */
    FARTHEST = 2 * AHEAD,   /* a plan for a later op is not believed yet, nor is a change put off to one */
    DUE = 2,                /* ops before a change in which it can still be taken back in time */
    COMING = 2 * AHEAD,     /* ops of a new job in which a host that was never up may still be on its way */
    PATIENCE = 2 * AHEAD,   /* ops in which somebody else may decide what we would */
    WAIT_MOST = 7,          /* a host is kept for at most 4 << 7 ops */
};

void ut_owners_init(ut_owners *o, uint32_t hosts, uint64_t first_op_seq)
{
    uint64_t all = UINT64_MAX >> (UT_HOSTS_MAX - hosts);
    *o = (ut_owners){.plan = {.before = all, .after = all},
                     .all = all,
                     .sure_from = first_op_seq ? first_op_seq + UT_OPS_MAX : 0,
                     .missed_from = first_op_seq ? first_op_seq + UT_OPS_MAX : UT_NEVER,
                     .wants_since = UT_NEVER};
    memset(o->said, UT_DECIDER_NONE, sizeof o->said);
}

uint16_t ut_owners_tag(const ut_owners *o, uint64_t owners)
{
    uint64_t others = o->all & ~owners;
    if (o->all >> 16 == 0 || others == 0)
        return (uint16_t)others;
    return (uint16_t)UT_MAX2(ut_mix(others) >> 48, 1);
}

/* The lowest host that decides, by its own word: the own one, once it is sure. */
static uint8_t heard_decider(const ut_owners *o, uint32_t self, uint64_t up, uint64_t next_open)
{
    for (uint64_t rest = up; rest; rest &= rest - 1) {
        uint32_t h = (uint32_t)__builtin_ctzll(rest);
        if (h < self && o->said[h] == h)
            return (uint8_t)h;
    }
    return ut_owners_unsure(o, next_open) ? UT_DECIDER_NONE : (uint8_t)self;
}

/* Nobody else decides, nor is there one that we alone do not hear: two would quarrel. */
static bool decides(const ut_owners *o, uint32_t self, uint64_t up, uint64_t next_open)
{
    for (uint64_t rest = up; rest; rest &= rest - 1)
        if (o->said[__builtin_ctzll(rest)] < self)
            return false;
    return !ut_owners_unsure(o, next_open);
}

/* A wait for each of |hosts|, twice as long as the one before. */
static void wait(ut_owners_wait *of, uint64_t hosts, uint64_t next_open)
{
    for (; hosts; hosts &= hosts - 1) {
        ut_owners_wait *w = &of[__builtin_ctzll(hosts)];
        w->times = (uint8_t)UT_MIN2(w->times + 1, WAIT_MOST);
        w->until = next_open + ((uint64_t)UT_OPS_MAX << w->times);
    }
}

static uint64_t waiting(const ut_owners_wait *of, uint64_t hosts, uint64_t next_open)
{
    uint64_t mask = 0;
    for (; hosts; hosts &= hosts - 1)
        mask |= next_open < of[__builtin_ctzll(hosts)].until ? hosts & -hosts : 0;
    return mask;
}

/* Whom any host that is up has for an owner, by a word that came when it must have known of our plan. */
static uint64_t held(const ut_owners *o, uint64_t up)
{
    uint64_t mask = 0;
    for (; up; up &= up - 1) {
        uint32_t h = (uint32_t)__builtin_ctzll(up);
        mask |= o->holds_at[h] + UT_OPS_MAX >= o->plan.from ? o->holds[h] : 0;
    }
    return mask;
}

/* Somebody who is up does not let go of hosts that were to leave: they are not gone, only our path to them is. If one
 * of them has come back meanwhile it is that one, and the others leave a little later. */
static void take_back(ut_owners *o, uint64_t up, uint64_t next_open)
{
    ut_owners_plan *p = &o->plan;
    uint64_t leave = p->before & ~p->after, back = held(o, up) & leave;
    if (!back)
        return;
    if (leave & up) {
        p->after |= leave & up;
        p->from = next_open + AHEAD;
        o->latest = next_open + FARTHEST;
        return;
    }
    p->after |= back;
    p->from++;
    wait(o->retry, back, next_open);
}

/* Of hosts that seem gone those that nobody ever held; else the one that was held least often: one that is held must
 * not keep the others in. */
static uint64_t least_held(const ut_owners *o, uint64_t gone)
{
    uint64_t never = 0, least = 0;
    unsigned times = UINT8_MAX;
    for (uint64_t rest = gone; rest; rest &= rest - 1) {
        const ut_owners_wait *w = &o->retry[__builtin_ctzll(rest)];
        never |= w->times == 0 ? rest & -rest : 0;
        least = w->times < times ? rest & -rest : least;
        times = UT_MIN2(times, (unsigned)w->times);
    }
    return never ? never : least;
}

static uint64_t wanted(const ut_owners *o, uint32_t self, uint64_t up, uint64_t lost, uint64_t next_open)
{
    uint64_t here = up | 1ULL << self, back = (up & o->follow) | 1ULL << self, after = o->plan.after;
    uint64_t gone = ~here & (next_open >= o->missed_from ? o->all : lost);
    gone = least_held(o, gone & after & ~waiting(o->retry, gone, next_open) & ~waiting(o->keep, gone, next_open));
    gone = ut_planted(UT_PLANT_OWNERS_STAY) ? 0 : gone;
    back = ut_planted(UT_PLANT_OWNERS_COME_NOT_BACK) ? 0 : back;
    return (after & ~gone) | back | (next_open >= o->plan.from + UT_OPS_MAX ? held(o, up) & ~after : 0);
}

void ut_owners_decide(ut_owners *o, uint32_t self, uint64_t up, uint64_t lost, uint64_t next_open)
{
    ut_owners_plan *p = &o->plan;
    for (uint64_t here = up; here; here &= here - 1) /* what was said of it is over */
        o->keep[__builtin_ctzll(here)] = o->retry[__builtin_ctzll(here)] = (ut_owners_wait){0};
    bool known =
        next_open + FARTHEST >= o->latest + UT_OPS_MAX; /* long enough for others to have said what they think */
    if (known && next_open <= p->from && next_open + DUE >= p->from)
        take_back(o, up, next_open);
    uint64_t want = wanted(o, self, up, lost, next_open);
    if (want == p->after) {
        o->wants_since = UT_NEVER;
        return;
    }
    o->wants_since = UT_MIN2(o->wants_since, next_open);
    bool under_way = next_open < p->from;
    bool settled =
        p->from == 0 || next_open >= p->from + UT_OPS_MAX; /* who lags must not hear of the next change too */
    bool turn = settled && decides(o, self, up, next_open);
    if (under_way || (!turn && next_open - o->wants_since < PATIENCE))
        return;
    wait(o->keep, want & ~p->after & ~up & ~(1ULL << self), next_open);
    *p = (ut_owners_plan){.before = p->after, .after = want, .from = next_open + AHEAD};
    o->latest = next_open + FARTHEST;
    o->wants_since = UT_NEVER;
}

ut_owners_word ut_owners_say(const ut_owners *o, uint32_t self, uint64_t up, uint64_t next_open)
{
    return (ut_owners_word){.plan = o->plan, .decider = heard_decider(o, self, up, next_open)};
}

static bool later(const ut_owners_plan *a, const ut_owners_plan *b)
{
    if (a->from != b->from)
        return a->from > b->from;
    return a->after != b->after ? a->after > b->after : a->before > b->before;
}

/* Nobody of |hosts| is |here|, nor to be kept. */
static bool may_leave(const ut_owners *o, uint64_t hosts, uint64_t here, uint64_t next_open)
{
    hosts = ut_planted(UT_PLANT_HOSTILE_OWNERS) ? 0 : hosts;
    return !(hosts & here) && !waiting(o->keep, hosts, next_open);
}

void ut_owners_hear(ut_owners *o, uint32_t self, uint32_t host, const ut_owners_word *word, uint64_t up,
                    uint64_t next_open)
{
    ut_owners_plan p = {word->plan.before & o->all, word->plan.after & o->all, word->plan.from}, *ours = &o->plan;
    bool knows = word->decider != UT_DECIDER_NONE && p.before && p.after, under_way = next_open < ours->from;
    o->said[host] = word->decider;
    o->holds[host] = knows ? p.after : 0;
    o->holds_at[host] = next_open;
    if (!knows || (p.from > next_open && p.from - next_open > FARTHEST))
        return;
    bool unsure = ut_owners_unsure(o, next_open);
    o->met |= up;
    uint64_t present = ut_owners_of(o, next_open), here = up | 1ULL << self;
    here |= o->missed_from == UT_NEVER && next_open < COMING ? ~o->met : 0;
    o->sure_from = 0;
    if (ut_planted(UT_PLANT_HOSTILE_DECIDER) && host < self)
        here = 0;
    if (!unsure) {
        p.after |= ours->after & ~present & here; /* two may take somebody in at once */
        if (!later(&p, ours) || (under_way && p.from > o->latest) || (!under_way && p.after == ours->after) ||
            !may_leave(o, (present | ours->after) & ~p.after, here, next_open))
            return;
        if (p.after == ours->after || !may_leave(o, present & ~p.before, here, next_open))
            p.before = present;
    } else if (!later(&p, ours)) {
        return;
    }
    wait(o->keep, p.after & ~(ours->after | present) & ~here, next_open);
    *ours = p;
    if (!under_way)
        o->latest = next_open + FARTHEST;
}

void ut_owners_opens(ut_owners *o, uint32_t host)
{
    o->follow |= 1ULL << host;
}

void ut_owners_forget(ut_owners *o, uint32_t host)
{
    o->follow &= ~(1ULL << host);
    o->said[host] = UT_DECIDER_NONE;
    o->holds[host] = 0;
}
