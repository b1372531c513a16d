/* SPDX-License-Identifier: Apache-2.0
 *
 * Hosts that go for a moment. A host whose daemon is told to stop *holds*: it opens no op more, and ends those that are
 * open. The others *await* it: reliable ops, which nobody can end without it, neither fail nor end while it is away.
 * When it is back it lacks all that it was sent, so what is sent to it begins anew; what came from it stays, for its
 * ranks call the op again with the same contribution.
 */
#include "core/op/op_pause.h"

void ut_job_hold(ut_job *j, bool opens_none, ut_ns now)
{
    j->held = opens_none;
    j->held_at = now;
}

uint32_t ut_job_unsettled(const ut_job *j)
{
    uint32_t n = 0;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        const ut_op *op = &j->op[k];
        n += op->state != UT_OP_FREE && !op->local.held && op->time.start <= j->held_at;
    }
    return n;
}

/* Where sums are forwarded, or are of blocks, what a host has of an op does not show what it may still be sent. */
bool ut_op_awaits(const ut_job *j, const ut_op *op, uint32_t host)
{
    return (j->awaited & ut_bit(host)) && op->state == UT_OP_RUNNING && op->what.mode == UT_RELIABLE &&
           op->plan.schedule.direct && !op->variant;
}

/* Its own ranks have it from |host|'s former life: in place of what they gave for that shard stands the result. */
static bool has_results_of(const ut_op *op, uint32_t host)
{
    for (uint32_t i = op->plan.rx_of[1][host]; i != UINT32_MAX; i = op->plan.peer_next[i])
        if (op->plan.transfer[i].done && op->what.collective == UT_ALLREDUCE)
            return true;
    return false;
}

static void begin_anew(const ut_job *j, ut_op *op, uint32_t host)
{
    const uint64_t bit = ut_bit(host);
    op->peers.record_matched &= ~bit;
    op->peers.peer_masks &= ~bit;
    op->peers.masks_waived &= ~bit;
    for (unsigned stage = 0; stage < 2; stage++)
        for (uint32_t i = op->plan.tx_of[stage][host]; i != UINT32_MAX; i = op->plan.peer_next[i]) {
            ut_transfer *t = &op->plan.transfer[i];
            const uint32_t start = t->start, stop = t->stop;
            ut_transfer_init(t, op->plan.schedule.step[i].bytes, j->payload, t->bits, t->again);
            t->start = start;
            t->stop = stop;
        }
}

void ut_op_host_back(ut_job *j, uint32_t host, ut_ns now)
{
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        if (!ut_op_awaits(j, op, host) || ((op->peers.rx_done | op->peers.tx_done) & ut_bit(host)))
            continue; /* what it has ended it does not call again */
        if (has_results_of(op, host))
            ut_op_fail(j, op, UT_ERR_ABSENT, now);
        else
            begin_anew(j, op, host);
    }
}
