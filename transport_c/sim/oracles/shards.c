/* SPDX-License-Identifier: Apache-2.0
 *
 * Who makes which part of a result, found again without the core's schedules.
 */
#include "sim/oracles/oracles.h"
#include "sim/world/seal.h"

#include "core/wire/packets.h"

#include "kernels/block.h"

uint64_t sim_slot_elements(const sim_world *w, size_t element)
{
    return ut_wire_payload(w->plan.packet_bytes, sim_seal_overhead(w)) / element;
}

uint32_t sim_least_factor(uint32_t n)
{
    uint32_t p = 2;
    while (p < n && n % p)
        p++;
    return p;
}

bool sim_direct(const sim_job_plan *j)
{
    return sim_algorithm(j) == UT_TAR || sim_algorithm(j) == UT_PS || j->hosts <= 2 ||
           (sim_algorithm(j) == UT_BCUBE && sim_least_factor(j->hosts) == j->hosts);
}

void sim_owned(const sim_job_plan *j, uint64_t op_seq, uint64_t owners, uint64_t count, uint32_t host, uint64_t *from,
               uint64_t *to)
{
    uint32_t all = 0, place = 0;
    for (uint32_t h = 0; h < j->hosts; h++) {
        place += h < host && (owners >> h & 1);
        all += owners >> h & 1;
    }
    uint32_t shard = (uint32_t)((place + op_seq) % UT_MAX2(all, 1));
    bool single = sim_algorithm(j) == UT_PS || sim_algorithm(j) == UT_TREE, one = owners >> host & 1;
    *from = single || !one ? 0 : sim_shard_begin(count, all, shard);
    *to = single ? (host == 0 ? count : 0) : one ? sim_shard_begin(count, all, shard + 1) : 0;
}

void sim_op_owned(const sim_job_plan *j, uint64_t op_seq, uint64_t owners, const sim_op *op, uint32_t host,
                  uint64_t *from, uint64_t *to)
{
    uint64_t each = op->group ? (uint64_t)ut_granule_units(op->group) * op->group : 1;
    sim_owned(j, op_seq, owners, (op->count + each - 1) / each, host, from, to);
    *from = UT_MIN2(*from * each, op->count);
    *to = UT_MIN2(*to * each, op->count);
}
