/* SPDX-License-Identifier: Apache-2.0
 *
 * What a daemon says of the epochs of a job: each call takes the lock, calls the engine and wakes its thread.
 */
#define _GNU_SOURCE
#include <inttypes.h>

#include "loop.h"

#define FORKED UT_ERR_CLOSED /* ut_driver_error says whose driver it is */

int ut_driver_epoch(ut_driver *d, uint32_t job, const ut_epoch *epoch)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    const int result = ut_engine_epoch(d->engine, job, epoch, ut_driver_now());
    if (result != UT_OK)
        return ut_driver_leave_failing(d, result, "epoch %" PRIu64 " of job %" PRIu32 ": %s", epoch->number, job,
                                       result == UT_ERR_SEQUENCE ? "is not newer than the one that is here"
                                                                 : "cannot be one of this job");
    return ut_driver_leave_poking(d, UT_OK);
}

int ut_driver_hold(ut_driver *d, uint32_t job, uint64_t op_seq, uint64_t until)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    ut_engine_hold(d->engine, job, op_seq, until);
    return ut_driver_leave_poking(d, UT_OK);
}

int ut_driver_job_wishes(ut_driver *d, uint32_t job, uint64_t *ret_next_op, uint16_t ret_option[UT_EPOCH_OPTIONS])
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    ut_engine_job_wishes(d->engine, job, ret_next_op, ret_option);
    ut_driver_leave(d);
    return UT_OK;
}
