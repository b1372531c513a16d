/* SPDX-License-Identifier: Apache-2.0
 *
 * Hosts that go for a moment and come back: op_pause.c.
 */
#ifndef UT_OP_PAUSE_H
#define UT_OP_PAUSE_H

#include "core/op/op.h"

/* A RUNNING op waits for what |host|, which is away or about to go, brings when it is back. */
bool ut_op_awaits(const ut_job *j, const ut_op *op, uint32_t host);
/* |host| takes part in a RUNNING op: it is a member and up, or comes back for it. */
static inline bool ut_op_counts_on(const ut_job *j, const ut_op *op, uint32_t host)
{
    return ut_bits_have(op->epoch.members, host) && (ut_job_host_is_up(j, host) || ut_op_awaits(j, op, host));
}
/* It never begins here: its ranks hear nothing of it, and ask another life of this host for it. */
static inline bool ut_op_is_held(const ut_op *op)
{
    return op->state == UT_OP_GATHERING && op->local.held;
}
/* Another life of |host|, which was awaited, has a path. It is awaited until something is heard on it: that path may be
 * made anew before anything was, and nothing that waits for the host may end of that. */
void ut_op_host_back(ut_job *j, uint32_t host, ut_ns now);
/* Feedback came from |host|. */
static inline void ut_job_host_heard(ut_job *j, uint32_t host)
{
    j->awaited &= ~(j->back & ut_bit(host));
    j->back &= ~ut_bit(host);
}

#endif
