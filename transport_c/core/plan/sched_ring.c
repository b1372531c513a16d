/* SPDX-License-Identifier: Apache-2.0
 *
 * Ring AllReduce: a baseline. In each of N-1 rounds a host sends one chunk to its right and folds one from its left; in
 * N-1 more the results go round. The chunk of owner r sets out at r + 1, gathers everybody's on its way, and is whole
 * when it reaches r.
 *
 * Every byte takes N-1 hops each way. One slow link holds up every chunk, and a hole near the start of the path takes
 * the contributions of all hosts before it.
 */
#include "core/plan/schedule.h"

void ut_schedule_ring(ut_schedule *ret, const ut_layout *l, uint64_t op_seq)
{
    const uint32_t hosts = l->hosts, self = l->self;
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    uint32_t peers = hosts - 1, right = (self + 1) % hosts, left = (self + peers) % hosts;
    ret->steps = 4 * peers;
    ret->rounds = 2 * peers;
    ret->direct = hosts <= 2;
    ut_schedule_cut(ret, hosts, l->count, l->element_bytes);
    ut_schedule_own(ret, ut_shard_of(self, op_seq, hosts));
    for (uint32_t k = 0; k < peers; k++) {
        /* Stage 1 begins with the left one's chunk, stage 2 with the own; what comes is what the left one sends. */
        uint32_t sum = (left + hosts - k) % hosts, result = (self + hosts - k) % hosts;
        uint32_t sum_next = (sum + peers) % hosts, result_next = (result + peers) % hosts;
        ret->step[k] = ut_schedule_step(ret, UT_STEP_RECEIVE, 1, k, left, ut_shard_of(sum_next, op_seq, hosts));
        ret->step[peers + k] = ut_schedule_step(ret, UT_STEP_SEND, 1, k, right, ut_shard_of(sum, op_seq, hosts));
        ret->step[2 * peers + k] =
            ut_schedule_step(ret, UT_STEP_SEND, 2, peers + k, right, ut_shard_of(result, op_seq, hosts));
        ret->step[3 * peers + k] =
            ut_schedule_step(ret, UT_STEP_RECEIVE, 2, peers + k, left, ut_shard_of(result_next, op_seq, hosts));
    }
}
