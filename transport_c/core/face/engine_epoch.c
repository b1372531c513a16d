/* SPDX-License-Identifier: Apache-2.0
 *
 * What a daemon says of the epochs of a job, and what it asks for the next one.
 */
#include "core/face/engine_impl.h"
#include "core/op/op_epoch.h"

static ut_job *job_of(const ut_engine *e, uint32_t job)
{
    return job < UT_JOBS_MAX ? e->job[job] : NULL;
}

int ut_engine_epoch(ut_engine *e, uint32_t job, const ut_epoch *epoch, ut_ns now)
{
    ut_job *j = job_of(e, job);
    int error = j ? ut_epochs_take(&j->epochs, epoch, j->next_open) : UT_ERR_UNKNOWN;
    if (!error && ut_job_hold_over(j, now))
        ut_partial_members_changed(j);
    e->stats.progress++;
    return error;
}

int ut_engine_hold(ut_engine *e, uint32_t job, uint64_t op_seq, ut_ns until)
{
    ut_job *j = job_of(e, job);
    if (!j)
        return UT_ERR_UNKNOWN;
    ut_epochs_hold(&j->epochs, op_seq, until);
    e->stats.progress++;
    return UT_OK;
}

int ut_engine_job_wishes(const ut_engine *e, uint32_t job, uint64_t *ret_next_op, uint16_t ret_option[UT_EPOCH_OPTIONS])
{
    const ut_job *j = job_of(e, job);
    if (!j)
        return UT_ERR_UNKNOWN;
    ut_job_wishes(j, ret_next_op, ret_option);
    return UT_OK;
}
