/* SPDX-License-Identifier: Apache-2.0
 *
 * What a job knows across its ops: how far it has got, and how to reach its fellow hosts.
 */
#include "core/op/op.h"

uint64_t ut_job_up(const ut_job *j)
{
    uint64_t up = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h))
            up |= ut_bit(h);
    return up;
}

uint64_t ut_job_lost(const ut_job *j)
{
    uint64_t lost = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        lost |= j->conn[h].state == UT_CONN_ABSENT ? ut_bit(h) : 0;
    return lost;
}

void ut_job_speak(ut_job *j, ut_ns at)
{
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h))
            ut_conn_speak_at(&j->conn[h], at);
}

/* To the first op that is open, or to the next one. A partial job may leave out any number of ops. */
void ut_job_raise_rx_floor(ut_job *j)
{
    uint64_t floor = j->next_open;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        const ut_op *op = &j->op[k];
        if (op->state != UT_OP_FREE && op->state != UT_OP_LINGERING && op->seq >= j->rx_floor)
            floor = UT_MIN2(floor, op->seq);
    }
    j->rx_floor = UT_MAX2(j->rx_floor, floor);
}

uint64_t ut_job_tx_floor(const ut_job *j)
{
    uint64_t floor = j->next_open;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if (j->op[k].state != UT_OP_FREE)
            floor = UT_MIN2(floor, j->op[k].seq);
    return floor;
}
