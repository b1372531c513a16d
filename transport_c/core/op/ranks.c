/* SPDX-License-Identifier: Apache-2.0
 *
 * Which ranks of each host are in an op of an ordinary job. A host combines what its ranks bring, so a sum of several
 * hosts does not show who is missing from it; each host says so in its record. Of a host that has not said anything
 * nobody is claimed to be missing, unless the whole host is known to be gone, or is not in the op's epoch.
 */
#include "core/op/ranks.h"

void ut_op_ranks_tell(const ut_job *j, const ut_op *op, ut_record *r)
{
    r->fresh = op->local.places;
    r->attached = j->attached;
}

static void fill_row(const ut_job *j, uint32_t host, uint16_t in, uint16_t attached, ut_receipt_peer *row)
{
    const uint16_t out = ut_job_places_of(j, host) & (uint16_t)~in;
    row->fresh = in;
    row->gone = out & (uint16_t)~attached;
    row->late = out & attached;
}

void ut_op_ranks_account(const ut_job *j, const ut_op *op, ut_receipt *ret)
{
    fill_row(j, j->config.self, op->local.places, j->attached, &ret->peer[j->config.self]);
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        if (h == j->config.self)
            continue;
        const bool member = ut_bits_have(op->epoch.members, h);
        const ut_record *r = member ? ut_op_record_of(j, op, h) : NULL;
        const uint16_t in = r ? r->fresh & ut_job_places_of(j, h) : 0;
        const bool failed = r && r->flags & UT_RECORD_FAILED; /* perhaps before it had any weight */
        const bool fits = in && __builtin_popcount(in) == r->weight;
        if (in && (failed || fits))
            fill_row(j, h, in, r->attached, &ret->peer[h]);
        else if (!member || !ut_job_host_is_up(j, h))
            fill_row(j, h, 0, 0, &ret->peer[h]);
    }
}

void ut_op_ranks_blame(ut_receipt *ret)
{
    uint32_t gone = ret->hosts, late = ret->hosts;
    for (uint32_t h = ret->hosts; h-- > 0;) {
        gone = ret->peer[h].gone ? h : gone;
        late = ret->peer[h].late ? h : late;
    }
    if (gone == ret->hosts && late == ret->hosts)
        return;
    ret->culprit = (uint16_t)(gone < ret->hosts ? gone : late);
    ret->trouble = gone < ret->hosts ? UT_TROUBLE_GONE : UT_TROUBLE_SENDER;
}
