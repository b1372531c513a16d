/* SPDX-License-Identifier: Apache-2.0
 *
 * How long an op whose trainers have their receipts is kept for peers.
 */
#include "core/op/op.h"

/* |host| is in the op, and has seen what it must see before the op is let go: this host's record, or the one that says
 * that the op has failed. Who has yet to begin the op would find the floors above it, and take nothing that came. */
static bool has_seen_record(const ut_job *j, const ut_op *op, uint32_t host)
{
    if (!ut_op_record_of(j, op, host))
        return false;
    return op->account.failed ? ut_ledger_knows(&j->ledger, host, op->seq)
                              : ut_ledger_has_heard_of(&j->ledger, host, op->seq);
}

/* A member has not got all of what this host holds of the op, or has not seen its record. Nobody else can take anything
 * of it: a host that has paths and is no member yet, as a newcomer, does not begin it. */
bool ut_op_still_needed(const ut_job *j, const ut_op *op)
{
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const bool wants = ut_bits_have(op->epoch.members & ~op->peers.rx_done, h);
        if (h == j->config.self || !wants || !ut_job_host_is_up(j, h))
            continue;
        if (!ut_op_sent_all(op, h, 0) || !has_seen_record(j, op, h))
            return true;
    }
    return false;
}

void ut_op_linger(ut_job *j, ut_op *op, ut_ns now)
{
    assert(op->state == UT_OP_LINGERING);
    if (now < op->time.linger_until && ut_op_still_needed(j, op))
        return;
    op->state = UT_OP_FREE;
    j->host->room(j->host->context);
}
