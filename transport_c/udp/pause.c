/* SPDX-License-Identifier: Apache-2.0
 *
 * Hosts that go and come back: what the daemon says of others and of itself (core/op/op_pause.c), and asks of them.
 */
#define _GNU_SOURCE
#include <inttypes.h>

#include "loop.h"

#define FORKED UT_ERR_CLOSED /* ut_driver_error says whose driver it is */

static int leave_unknown(ut_driver *d, uint32_t job, int code)
{
    return ut_driver_leave_failing(d, code, "job %" PRIu32 ": there is no such job", job);
}

static int leave_peer(ut_driver *d, uint32_t job, uint32_t host, int code)
{
    if (code != UT_OK)
        return ut_driver_leave_failing(d, code, "host %" PRIu32 " of job %" PRIu32 ": there is no such peer", host,
                                       job);
    return ut_driver_leave_poking(d, UT_OK);
}

int ut_driver_peer_ask(ut_driver *d, uint32_t job, uint32_t host)
{
    if (!ut_driver_enter(d))
        return FORKED;
    return leave_peer(d, job, host, ut_engine_peer_ask(d->engine, job, host, ut_driver_now()));
}

int ut_driver_peer_await(ut_driver *d, uint32_t job, uint32_t host, uint32_t on)
{
    if (!ut_driver_enter(d))
        return FORKED;
    return leave_peer(d, job, host, ut_engine_peer_await(d->engine, job, host, on != 0, ut_driver_now()));
}

int ut_driver_job_hold(ut_driver *d, uint32_t job)
{
    if (!ut_driver_enter(d))
        return FORKED;
    const int result = ut_engine_job_hold(d->engine, job, ut_driver_now());
    if (result != UT_OK)
        return leave_unknown(d, job, result);
    ut_driver_leave(d);
    return UT_OK;
}

int ut_driver_job_place(ut_driver *d, uint32_t job, uint64_t *ret_floor, uint32_t *ret_unsettled)
{
    if (!ut_driver_enter(d))
        return FORKED;
    const int result = ut_engine_job_place(d->engine, job, ret_floor, ret_unsettled);
    if (result != UT_OK)
        return leave_unknown(d, job, result);
    ut_driver_leave(d);
    return UT_OK;
}
