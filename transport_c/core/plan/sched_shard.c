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

void ut_schedule_shard(ut_schedule *ret, unsigned collective, uint32_t root, uint32_t hosts, uint32_t self,
                       uint32_t incast, uint64_t count, size_t element_bytes)
{
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts && root < hosts && collective != UT_ALLREDUCE);
    bool exchange = collective == UT_ALL_TO_ALL, dealt = collective == UT_BROADCAST;
    bool scatter = exchange || collective == UT_REDUCE_SCATTER, gather = !scatter;
    uint32_t peers = hosts - 1, width = UT_MAX2(1, UT_MIN2(incast, peers));
    uint32_t second = dealt ? ut_tar_rounds(hosts, incast) : 0, n = 0;
    ret->rounds = second + ut_tar_rounds(hosts, incast);
    ret->direct = ret->lasting = true;
    ret->placed = gather || exchange;
    ret->apart = scatter;
    ut_schedule_cut(ret, hosts, count, element_bytes);
    ut_schedule_own(ret, self);
    for (uint32_t k = 0; k < peers; k++) {
        uint32_t from = ut_tar_receive_peer(hosts, self, k);
        if (scatter || (dealt && from == root))
            ret->step[n++] = ut_schedule_step(ret, UT_STEP_RECEIVE, 1, k / width, from, exchange ? from : self);
    }
    for (uint32_t k = 0; k < peers && (scatter || (dealt && self == root)); k++) {
        uint32_t to = ut_tar_send_peer(hosts, self, k);
        ret->step[n] = ut_schedule_step(ret, UT_STEP_SEND, 1, k / width, to, to);
        if (exchange)
            ret->step[n].offset = ret->own_offset;
        n++;
    }
    for (uint32_t k = 0; k < peers && gather; k++) {
        uint32_t to = ut_tar_send_peer(hosts, self, k);
        if (!dealt || to != root)
            ret->step[n++] = ut_schedule_step(ret, UT_STEP_SEND, 2, second + k / width, to, self);
    }
    for (uint32_t k = 0; k < peers && gather && (!dealt || self != root); k++) {
        uint32_t from = ut_tar_receive_peer(hosts, self, k);
        ret->step[n++] = ut_schedule_step(ret, UT_STEP_RECEIVE, 2, second + k / width, from, from);
    }
    ret->steps = n;
}
