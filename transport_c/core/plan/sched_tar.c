/* SPDX-License-Identifier: Apache-2.0
 *
 * Transpose AllReduce. Host i sends shard resp(p) to every peer p, reduces its own shard, sends the result to all.
 *
 * The order of peers matters: with the obvious "round k: i sends to i + k" a link that is slow both ways costs two
 * rounds of a stage, not one. A 1-factorisation of the complete graph (circle method) makes each pair meet once; for
 * odd N no perfect matching exists and offsets are paired with their inverses instead.
 *
 * A host that is no owner (epoch.h) has an empty chunk. It keeps its place among the peers: it contributes, and is
 * sent what the others have made.
 */
#include "core/plan/schedule.h"

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

/* Those of the owners first, in turns, then the empty ones of all others. */
static uint32_t chunk_of(uint32_t host, uint64_t op_seq, uint64_t owners)
{
    uint32_t all = (uint32_t)__builtin_popcountll(owners);
    uint32_t place = (uint32_t)__builtin_popcountll(owners & ((1ULL << host) - 1));
    return owners >> host & 1 ? ut_shard_of(place, op_seq, all) : all + (host - place);
}

static void cut(ut_schedule *s, const ut_layout *l, uint64_t owners)
{
    ut_schedule_cut(s, (uint32_t)__builtin_popcountll(owners), l->count, l->element_bytes);
    for (; s->chunks < l->hosts; s->chunks++)
        s->from[s->chunks + 1] = s->from[s->chunks];
}

void ut_schedule_tar(ut_schedule *ret, const ut_layout *l, uint32_t incast, uint64_t op_seq, uint64_t owners)
{
    const uint32_t hosts = l->hosts, self = l->self;
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    owners &= UINT64_MAX >> (UT_HOSTS_MAX - hosts);
    assert(owners);
    uint32_t peers = hosts - 1;
    uint32_t width = hosts > 1 ? clamp_incast(hosts, incast) : 1;
    uint32_t rounds = ut_tar_rounds(hosts, incast);
    ret->steps = 4 * peers;
    ret->rounds = 2 * rounds;
    ret->direct = true;
    cut(ret, l, owners);
    ut_schedule_own(ret, chunk_of(self, op_seq, owners));
    for (uint32_t k = 0; k < peers; k++) {
        uint32_t to = ut_tar_send_peer(hosts, self, k), from = ut_tar_receive_peer(hosts, self, k);
        uint32_t to_chunk = chunk_of(to, op_seq, owners), from_chunk = chunk_of(from, op_seq, owners);
        uint32_t round = k / width;
        ret->step[k] = ut_schedule_step(ret, UT_STEP_RECEIVE, 1, round, from, ret->own);
        ret->step[peers + k] = ut_schedule_step(ret, UT_STEP_SEND, 1, round, to, to_chunk);
        ret->step[2 * peers + k] = ut_schedule_step(ret, UT_STEP_SEND, 2, rounds + round, to, ret->own);
        ret->step[3 * peers + k] = ut_schedule_step(ret, UT_STEP_RECEIVE, 2, rounds + round, from, from_chunk);
    }
}
