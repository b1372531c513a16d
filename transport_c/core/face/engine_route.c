/* SPDX-License-Identifier: Apache-2.0
 *
 * By which way a peer's packets go. Paths are known by their ids and not by addresses, so a path that stands goes on
 * over another way: its numbers, keys and measurements stay.
 */
#include "core/face/engine_impl.h"

int ut_engine_peer_route(ut_engine *e, uint32_t job, uint32_t host, const ut_addr *data, const ut_addr *feedback)
{
    ut_job *j = job < UT_JOBS_MAX ? e->job[job] : NULL;
    if (!j || host >= j->config.hosts || host == j->config.self || j->conn[host].state != UT_CONN_UP)
        return UT_ERR_UNKNOWN;
    if (data->len > sizeof data->bytes || feedback->len > sizeof feedback->bytes)
        return UT_ERR_ARGUMENT;
    j->conn[host].data = *data;
    j->conn[host].feedback = *feedback;
    e->stats.progress++;
    return UT_OK;
}

void ut_engine_peers_relayed(ut_engine *e, uint32_t job, uint64_t mask, uint64_t relays)
{
    ut_job *j = job < UT_JOBS_MAX ? e->job[job] : NULL;
    if (!j)
        return;
    j->account.relayed = mask;
    j->account.relays = relays;
}
