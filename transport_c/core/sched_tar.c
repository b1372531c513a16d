/* SPDX-License-Identifier: Apache-2.0
 *
 * Transpose AllReduce. Host i sends shard resp(p) to every peer p, reduces its own shard, sends the result to all.
 *
 * The order of peers matters: with the obvious "round k: i sends to i + k" a link that is slow both ways costs two
 * rounds of a stage, not one. A 1-factorisation of the complete graph (circle method) makes each pair meet once; for
 * odd N no perfect matching exists and offsets are paired with their inverses instead.
 */
#include "schedule.h"

uint64_t ut_shard_bound(uint64_t count, uint32_t hosts, uint32_t j)
{
    assert(hosts > 0 && j <= hosts && count <= UT_BUCKET_MAX);
    return count * j / hosts;
}

uint32_t ut_shard_of(uint32_t host, uint64_t op_seq, uint32_t hosts)
{
    return (uint32_t)((host + op_seq % hosts) % hosts);
}

static uint32_t clamp_incast(uint32_t hosts, uint32_t incast)
{
    return UT_MAX2(1, UT_MIN2(incast, hosts - 1));
}

uint32_t ut_tar_rounds(uint32_t hosts, uint32_t incast)
{
    if (hosts < 2)
        return 0;
    uint32_t i = clamp_incast(hosts, incast);
    return (hosts - 1 + i - 1) / i;
}

/* The |k|-th of 1, N-1, 2, N-2, ... */
static uint32_t odd_offset(uint32_t hosts, uint32_t k)
{
    return k % 2 == 0 ? k / 2 + 1 : hosts - (k / 2 + 1);
}

static uint32_t circle_peer(uint32_t hosts, uint32_t host, uint32_t k)
{
    uint32_t m = hosts - 1;
    if (host == m)
        return k;
    return host == k ? m : (2 * k + m - host) % m;
}

uint32_t ut_tar_send_peer(uint32_t hosts, uint32_t host, uint32_t k)
{
    assert(host < hosts && k + 1 < hosts);
    return hosts % 2 == 0 ? circle_peer(hosts, host, k) : (host + odd_offset(hosts, k)) % hosts;
}

uint32_t ut_tar_receive_peer(uint32_t hosts, uint32_t host, uint32_t k)
{
    assert(host < hosts && k + 1 < hosts);
    return hosts % 2 == 0 ? circle_peer(hosts, host, k) : (host + hosts - odd_offset(hosts, k)) % hosts;
}

void ut_schedule_tar(ut_schedule *ret, uint32_t hosts, uint32_t self, uint32_t incast, uint64_t op_seq, uint64_t count,
                     size_t element_bytes)
{
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    uint32_t peers = hosts - 1;
    uint32_t width = hosts > 1 ? clamp_incast(hosts, incast) : 1;
    uint32_t rounds = ut_tar_rounds(hosts, incast);
    ret->steps = 4 * peers;
    ret->rounds = 2 * rounds;
    uint32_t own = ut_shard_of(self, op_seq, hosts);
    ret->own_offset = ut_shard_bound(count, hosts, own) * element_bytes;
    ret->own_bytes = ut_shard_bound(count, hosts, own + 1) * element_bytes - ret->own_offset;
    for (uint32_t k = 0; k < peers; k++) {
        uint32_t to = ut_tar_send_peer(hosts, self, k), from = ut_tar_receive_peer(hosts, self, k);
        uint32_t to_shard = ut_shard_of(to, op_seq, hosts), from_shard = ut_shard_of(from, op_seq, hosts);
        uint64_t to_first = ut_shard_bound(count, hosts, to_shard), to_end = ut_shard_bound(count, hosts, to_shard + 1);
        uint64_t from_first = ut_shard_bound(count, hosts, from_shard);
        uint64_t from_end = ut_shard_bound(count, hosts, from_shard + 1);
        uint16_t round = (uint16_t)(k / width);
        ret->step[k] = (ut_step){.kind = UT_STEP_RECEIVE,
                                 .stage = 1,
                                 .fold = 1,
                                 .round = round,
                                 .peer = (uint16_t)from,
                                 .offset = ret->own_offset,
                                 .bytes = ret->own_bytes};
        ret->step[peers + k] = (ut_step){.kind = UT_STEP_SEND,
                                         .stage = 1,
                                         .round = round,
                                         .peer = (uint16_t)to,
                                         .offset = to_first * element_bytes,
                                         .bytes = (to_end - to_first) * element_bytes};
        ret->step[2 * peers + k] = (ut_step){.kind = UT_STEP_SEND,
                                             .stage = 2,
                                             .round = (uint16_t)(rounds + round),
                                             .peer = (uint16_t)to,
                                             .wait_first = 0,
                                             .wait_count = (uint16_t)peers,
                                             .offset = ret->own_offset,
                                             .bytes = ret->own_bytes};
        ret->step[3 * peers + k] = (ut_step){.kind = UT_STEP_RECEIVE,
                                             .stage = 2,
                                             .round = (uint16_t)(rounds + round),
                                             .peer = (uint16_t)from,
                                             .offset = from_first * element_bytes,
                                             .bytes = (from_end - from_first) * element_bytes};
    }
}
