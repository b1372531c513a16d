/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy by which an op starts, of the options of its epoch, and the tree along which hosts tell that one has
 * started.
 */
#include "core/partial/part.h"

ut_policy_set ut_policy_of(const ut_job *j, uint64_t seq)
{
    const ut_job_options *o = &ut_epoch_at(&j->epochs, seq)->options;
    ut_policy_set set = {o->policy, o->tau, o->quorum, o->probes};
    set.tau = set.tau ? set.tau : UT_TAU;
    if (set.policy == UT_POLICY_MAJORITY)
        set.probes = 1;
    set.probes = UT_MIN2(set.probes ? set.probes : UT_PROBES, j->world);
    set.quorum = set.quorum ? set.quorum : (j->world + 1) / 2;
    return set;
}

uint64_t ut_activation_children(uint32_t hosts, uint32_t self, uint32_t from)
{
    bool power = (hosts & (hosts - 1)) == 0;
    uint32_t way = power ? self ^ from : (self + hosts - from) % hosts, step = 0;
    uint64_t children = 0;
    if (way & (way - 1))
        return 0; /* it did not come along the tree: whoever is below us is told by others, or a hold time later */
    if (way)
        step = (uint32_t)__builtin_ctz(way) + 1;
    for (; 1u << step < hosts; step++)
        children |= ut_bit(power ? self ^ 1u << step : (self + (1u << step)) % hosts);
    return children & ~ut_bit(self) & ~ut_bit(from);
}
