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

static bool fit(const ut_job *j, const ut_job_options *asked)
{
    const ut_job_options *began = &j->config.options;
    ut_epoch e = {.options = *asked};
    ut_epochs_keep_fixed(&j->epochs, &e);
    return ut_job_options_follow(began, &e.options, j->config.hosts, j->world);
}

int ut_engine_options_fit(const ut_engine *e, uint32_t job, const ut_job_options *options)
{
    const ut_job *j = job_of(e, job);
    return !j ? UT_ERR_UNKNOWN : fit(j, options) ? UT_OK : UT_ERR_ARGUMENT;
}

int ut_engine_epoch(ut_engine *e, uint32_t job, const ut_epoch *epoch, ut_ns now)
{
    ut_job *j = job_of(e, job);
    int error = !j                         ? UT_ERR_UNKNOWN
                : !fit(j, &epoch->options) ? UT_ERR_ARGUMENT
                                           : ut_epochs_take(&j->epochs, epoch, j->next_open);
    if (!error) {
        ut_job_hold_over(j, now);
        ut_partial_members_changed(j); /* what waits may start by another policy */
    }
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
