/* SPDX-License-Identifier: Apache-2.0
 *
 * The other collectives, as parts of Transpose AllReduce over shards that stay with their hosts:
 *
 *   reduce-scatter   stage 1 alone: the own shard's sum is the result
 *   all-gather       stage 2 alone: the own shard is the own contribution; a barrier is one of a byte each
 *   broadcast        stage 1 from the root alone, which deals out its bucket, then stage 2: the root sends its bucket
 *                    less than twice, whatever N is, and the others share the rest of the work
 *   all-to-all       stage 1, but what host i sends to host p, its chunk p, is placed as chunk i there
 *
 * They are as wide, and in the same order of peers, as TAR; nothing of them is forwarded a second time.
 */
#include "core/plan/schedule.h"

typedef struct shards {
    ut_schedule *to;
    uint32_t hosts, self, root, width;
    bool exchange, dealt, scatter; /* an all-to-all; a broadcast; all have something of stage 1 for each */
} shards;

static void add_stage1(const shards *a)
{
    ut_schedule *s = a->to;
    const uint32_t peers = a->hosts - 1;
    for (uint32_t k = 0; k < peers; k++) {
        uint32_t from = ut_tar_receive_peer(a->hosts, a->self, k), chunk = a->exchange ? from : a->self;
        if (a->scatter || (a->dealt && from == a->root))
            s->step[s->steps++] = ut_schedule_step(s, UT_STEP_RECEIVE, 1, k / a->width, from, chunk);
    }
    for (uint32_t k = 0; k < peers && (a->scatter || (a->dealt && a->self == a->root)); k++) {
        uint32_t to = ut_tar_send_peer(a->hosts, a->self, k);
        ut_step *step = &s->step[s->steps++];
        *step = ut_schedule_step(s, UT_STEP_SEND, 1, k / a->width, to, to);
        if (a->exchange)
            step->offset = s->own_offset;
    }
}

/* |second|: its first round. */
static void add_stage2(const shards *a, uint32_t second)
{
    ut_schedule *s = a->to;
    const uint32_t peers = a->hosts - 1;
    for (uint32_t k = 0; k < peers; k++) {
        uint32_t to = ut_tar_send_peer(a->hosts, a->self, k);
        if (!a->dealt || to != a->root)
            s->step[s->steps++] = ut_schedule_step(s, UT_STEP_SEND, 2, second + k / a->width, to, a->self);
    }
    for (uint32_t k = 0; k < peers && (!a->dealt || a->self != a->root); k++) {
        uint32_t from = ut_tar_receive_peer(a->hosts, a->self, k);
        s->step[s->steps++] = ut_schedule_step(s, UT_STEP_RECEIVE, 2, second + k / a->width, from, from);
    }
}

void ut_schedule_shard(ut_schedule *ret, const ut_layout *l, unsigned collective, uint32_t root, uint32_t incast)
{
    const uint32_t hosts = l->hosts, self = l->self;
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts && root < hosts && collective != UT_ALLREDUCE);
    const bool exchange = collective == UT_ALL_TO_ALL, dealt = collective == UT_BROADCAST;
    const bool scatter = exchange || collective == UT_REDUCE_SCATTER;
    const uint32_t second = dealt ? ut_tar_rounds(hosts, incast) : 0;
    const shards a = {ret, hosts, self, root, UT_MAX2(1, UT_MIN2(incast, hosts - 1)), exchange, dealt, scatter};
    ret->rounds = second + ut_tar_rounds(hosts, incast);
    ret->direct = ret->lasting = true;
    ret->placed = !scatter || exchange;
    ret->apart = scatter;
    ut_schedule_cut(ret, hosts, l->count, l->element_bytes);
    ut_schedule_own(ret, self);
    ret->steps = 0;
    add_stage1(&a);
    if (!scatter)
        add_stage2(&a, second);
}
