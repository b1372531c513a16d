/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose turn it is to send to this host: what ops ask of path/incast.c.
 */
#include "core/op/op.h"

uint8_t ut_job_incast_own(const ut_job *j)
{
    uint8_t asked = ut_job_options_now(j)->incast;
    return asked ? asked : j->incast.dynamic;
}

void ut_job_incast_init(ut_job *j)
{
    ut_incast_init(&j->incast, j->config.hosts);
    j->incast.gated = ut_job_incast_own(j) + 1u < j->config.hosts; /* from the first grant on */
}

uint8_t ut_job_incast(const ut_job *j)
{
    uint8_t least = ut_job_incast_own(j);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h) && j->conn[h].peer.incast)
            least = UT_MIN2(least, j->conn[h].peer.incast);
    return least;
}

void ut_op_incast_learn(ut_job *j, const ut_op *op)
{
    ut_incast_loss loss = {0};
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_transfer *t = &op->plan.transfer[i];
        const ut_step *s = &op->plan.schedule.step[i];
        if (s->kind != UT_STEP_RECEIVE)
            continue;
        uint64_t missing = ut_transfer_missing(t, j->payload);
        loss.expected += ut_transfer_expected(t, s->bytes);
        loss.lost += t->why == UT_MISSING_LOST ? ut_transfer_gaps(t, j->payload) : 0;
        loss.missing[s->peer] += missing;
    }
    ut_incast_learn(&j->incast, j->config.hosts, &loss);
}

static void look_at_transfer(ut_job *j, uint32_t host, ut_transfer *t, bool open, ut_ns now)
{
    ut_conn *c = &j->conn[host];
    if (ut_transfer_over(t) || (t->open_at == 0) != open)
        return;
    if (open) {
        if (!ut_incast_begins(&j->incast, host))
            return;
        t->open_at = UT_MAX2(now, 1);
        ut_conn_speak_at(c, now); /* it may begin */
    }
    if (!t->tail)
        ut_incast_has_turn(&j->incast, host, UT_MAX2(t->open_at, t->last) + ut_job_patience(c), now);
}

void ut_job_incast_tick(ut_job *j, ut_ns now)
{
    if (!j->incast.stale && now < j->incast.look_at)
        return;
    bool was_gated = j->incast.gated;
    ut_incast_look(&j->incast, j->config.hosts, ut_job_incast(j));
    if (!j->incast.gated) {
        if (was_gated)
            ut_job_speak(j, now); /* all have their full credit again */
        return;
    }
    for (unsigned open = 0; open < 2; open++) /* those that have their turn; then who gets one */
        for (ut_op *op = ut_job_op_after(j, NULL); op; op = ut_job_op_after(j, op)) {
            if (op->state != UT_OP_RUNNING)
                continue;
            for (uint32_t i = 0; i < op->plan.schedule.steps; i++)
                if (op->plan.schedule.step[i].kind == UT_STEP_RECEIVE)
                    look_at_transfer(j, op->plan.schedule.step[i].peer, &op->plan.transfer[i], open, now);
        }
}

ut_ns ut_job_incast_next_wake(const ut_job *j)
{
    return j->incast.stale ? 0 : j->incast.look_at;
}
