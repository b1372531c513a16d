/* SPDX-License-Identifier: Apache-2.0 */
#include "owners.h"

enum { AHEAD = 2 * UT_OPS_MAX /* no host can be that far ahead of another that still takes part */ };

void ut_owners_init(ut_owners *o, uint32_t hosts, uint64_t first_op_seq)
{
    uint64_t all = UINT64_MAX >> (UT_HOSTS_MAX - hosts);
    *o = (ut_owners){.plan = {.before = all, .after = all},
                     .all = all,
                     .sure_from = first_op_seq ? first_op_seq + UT_OPS_MAX : 0,
                     .missed_from = first_op_seq ? first_op_seq + UT_OPS_MAX : UT_NEVER};
    memset(o->said, UT_DECIDER_NONE, sizeof o->said);
}

uint16_t ut_owners_tag(const ut_owners *o, uint64_t owners)
{
    uint64_t others = o->all & ~owners;
    if (o->all >> 16 == 0 || others == 0)
        return (uint16_t)others;
    uint64_t z = others; /* splitmix64's finish */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    return (uint16_t)UT_MAX2(z >> 48, 1);
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

void ut_owners_decide(ut_owners *o, uint32_t self, uint64_t up, uint64_t lost, uint64_t next_open)
{
    ut_owners_plan *p = &o->plan;
    bool settled =
        p->from == 0 || next_open >= p->from + UT_OPS_MAX; /* who lags must not hear of the change after it */
    if (!settled || !decides(o, self, up, next_open))
        return;
    uint64_t here = up | 1ULL << self, back = up & o->follow;
    uint64_t gone = ~here & (next_open >= o->missed_from ? o->all : lost);
#ifdef UT_PLANT_OWNERS_STAY
    gone = 0;
#endif
#ifdef UT_PLANT_OWNERS_COME_NOT_BACK
    back = 0;
#endif
    uint64_t want = (p->after & ~gone) | back | 1ULL << self;
    if (want == p->after)
        return;
    *p = (ut_owners_plan){.before = p->after, .after = want, .from = next_open + AHEAD};
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

void ut_owners_hear(ut_owners *o, uint32_t host, const ut_owners_word *word)
{
    const ut_owners_plan *p = &word->plan;
    o->said[host] = word->decider;
    if (word->decider == UT_DECIDER_NONE || !(p->before & o->all) || !(p->after & o->all))
        return;
    o->sure_from = 0;
    if (later(p, &o->plan))
        o->plan = (ut_owners_plan){.before = p->before & o->all, .after = p->after & o->all, .from = p->from};
}

void ut_owners_same(ut_owners *o, uint32_t host, uint64_t owners)
{
    if (owners != o->all)
        o->follow |= 1ULL << host;
}

void ut_owners_forget(ut_owners *o, uint32_t host)
{
    o->follow &= ~(1ULL << host);
    o->said[host] = UT_DECIDER_NONE;
}
