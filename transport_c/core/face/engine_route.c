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
    ut_conn *c = &j->conn[host];
    c->at[UT_PORT_DATA] = *data;
    c->at[UT_PORT_FEEDBACK] = *feedback;
    c->routed = false;
    for (unsigned port = 0; port < 2; port++) {
        const ut_addr home = c->move[port].home;
        c->routed = c->routed || !ut_addr_is(&c->at[port], &home);
        ut_move_begin(&c->move[port], &home); /* what was tried was meant for the former way */
    }
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
