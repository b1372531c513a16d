/* SPDX-License-Identifier: Apache-2.0
 *
 * What the engine asks of any job for the sake of partial ones.
 */
#include "core/partial/part.h"

void ut_partial_init(ut_job *j, ut_partial *p, ut_op_partial *of_op)
{
    const ut_job_options *o = &j->config.options;
    j->partial = p;
    j->gathering = &ut_gathering_partial;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        j->op[k].partial = &of_op[k];
    p->before = (ut_policy_set){o->policy, o->tau, o->quorum, o->probes};
    p->look_at = UT_NEVER;
    p->told_seq = p->due_seq = UINT64_MAX;
    memset(p->present_of, 0xff, sizeof p->present_of);
    for (unsigned i = 0; i < UT_LOCAL_MAX; i++)
        p->rank[i].session = UINT32_MAX;
}

void ut_partial_tick(ut_job *j, ut_ns now)
{
    if (j->partial && (j->partial->stale || now >= j->partial->look_at))
        ut_partial_look(j, now);
}

ut_ns ut_partial_next_wake(const ut_job *j)
{
    if (!j->partial)
        return UT_NEVER;
    return j->partial->stale ? 0 : j->partial->look_at;
}

void ut_partial_work_on(ut_job *j, ut_ns now)
{
    if (!j->partial)
        return;
    ut_gifts_save(j);
    if (j->partial->answering)
        ut_gifts_answer(j, now);
}

bool ut_partial_has_let_go(const ut_job *j)
{
    return !j->partial || ut_gifts_saved(j);
}

void ut_partial_members_changed(ut_job *j)
{
    if (j->partial)
        j->partial->stale = true;
}

void ut_partial_host_connects(ut_job *j, uint32_t host)
{
    if (j->partial)
        j->partial->present_of[host] = 0xffff;
}
