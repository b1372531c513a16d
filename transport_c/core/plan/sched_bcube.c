/* SPDX-License-Identifier: Apache-2.0
 *
 * BCube, in the role that it has in Gloo: a baseline. N is a product of small factors (2 before 3 before 5 ...), a host
 * a number in that mixed radix, most significant digit first. At each level the hosts that differ in one digit alone
 * exchange directly: each gives away the chunks of the others' digit values and keeps those of its own, so ranges
 * shrink by the factor; then results go back in reverse. With N a power of two that is recursive halving and doubling;
 * a prime N has one level, all against all.
 *
 * Chunks stay apart from each other: of a range that has several chunks, each is a step of its own. So a slot is the
 * same bytes at every level, and goes on as soon as it is whole.
 */
#include "core/plan/schedule.h"

/* The least prime factor of |n| >= 2. */
static uint32_t factor_of(uint32_t n)
{
    for (uint32_t p = 2; p * p <= n; p++)
        if (n % p == 0)
            return p;
    return n;
}

uint32_t ut_bcube_radix(uint32_t hosts, uint8_t radix[UT_BCUBE_LEVELS])
{
    uint32_t levels = 0;
    for (uint32_t rest = hosts; rest > 1; rest /= radix[levels++])
        radix[levels] = (uint8_t)factor_of(rest);
    return levels;
}

/* One host's part of one level: |group| hosts wide, |spread| apart, within the block of |group| * |spread| hosts. */
typedef struct level {
    uint32_t group, spread, block, digit;
} level;

static level level_of(uint32_t self, uint32_t group, uint32_t width)
{
    uint32_t spread = width / group;
    return (level){group, spread, self / width * width, self % width / spread};
}

/* The host at place |digit| of the group. */
static uint32_t member(const level *l, uint32_t self, uint32_t digit)
{
    return l->block + digit * l->spread + self % l->spread;
}

typedef struct builder {
    ut_schedule *schedule;
    uint32_t hosts, self;
    uint64_t op_seq;
    uint32_t round; /* that steps are added to, and its stage */
    unsigned stage;
} builder;

/* Adds a step for each chunk whose owner has |digit| at this level. Those that |last|'s next level keeps go last. */
static void add(const builder *b, const level *l, enum ut_step_kind kind, uint32_t peer, uint32_t digit, uint32_t last)
{
    for (uint32_t k = 1; k <= l->spread; k++) {
        uint32_t owner = l->block + digit * l->spread + (last + k) % l->spread;
        uint32_t chunk = ut_shard_of(owner, b->op_seq, b->hosts);
        b->schedule->step[b->schedule->steps++] = ut_schedule_step(b->schedule, kind, b->stage, b->round, peer, chunk);
    }
}

void ut_schedule_bcube(ut_schedule *ret, const ut_layout *l, uint64_t op_seq)
{
    const uint32_t hosts = l->hosts, self = l->self;
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    uint8_t radix[UT_BCUBE_LEVELS];
    uint32_t levels = ut_bcube_radix(hosts, radix), width = hosts;
    builder b = {ret, hosts, self, op_seq, 0, 1};
    ret->steps = 0;
    ret->rounds = 2 * levels;
    ret->direct = levels <= 1;
    ut_schedule_cut(ret, hosts, l->count, l->element_bytes);
    ut_schedule_own(ret, ut_shard_of(self, op_seq, hosts));
    for (uint32_t i = 0; i < levels; i++) { /* stage 1, the widest blocks first */
        level v = level_of(self, radix[i], width);
        b.round = i;
        for (uint32_t k = 1; k < v.group; k++) {
            uint32_t to = (v.digit + k) % v.group, from = (v.digit + v.group - k) % v.group;
            add(&b, &v, UT_STEP_SEND, member(&v, self, to), to, self);
            add(&b, &v, UT_STEP_RECEIVE, member(&v, self, from), v.digit, self);
        }
        width = v.spread;
    }
    for (uint32_t i = levels; i-- > 0;) { /* stage 2, the narrowest first */
        width *= radix[i];
        b.stage = 2;
        b.round = 2 * levels - 1 - i;
        level v = level_of(self, radix[i], width);
        for (uint32_t k = 1; k < v.group; k++) {
            uint32_t to = (v.digit + k) % v.group, from = (v.digit + v.group - k) % v.group;
            add(&b, &v, UT_STEP_SEND, member(&v, self, to), v.digit, self + v.spread - 1);
            add(&b, &v, UT_STEP_RECEIVE, member(&v, self, from), from, self);
        }
    }
}
