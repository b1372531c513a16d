/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ops of a coded job are made of, as the engines and their rings say while they work.
 */
#include "sim/coded/coded.h"

#include "ext/coded/coded.h"
#include "sim/partial/partial.h"

#include <stdlib.h>

sim_coded_op *sim_coded_op_of(sim_world *w, uint32_t job, uint64_t op_seq, uint64_t step)
{
    sim_coded *c = w->job[job].coded;
    if (step != ut_step_of_op(op_seq))
        sim_fail(w, "O13 slots", 0, "job %u: op_seq %" PRIu64 " is for step %" PRIu64, job, op_seq, step);
    for (uint32_t i = c->ops; i-- > 0;)
        if (c->op[i].op_seq == op_seq)
            return &c->op[i];
    if (c->ops >= 100000)
        sim_fail(w, "O13 slots", 0, "job %u is at op_seq %" PRIu64, job, op_seq);
    if (c->ops == c->op_room) {
        c->op_room = c->op_room ? 2 * c->op_room : 64;
        c->op = realloc(c->op, c->op_room * sizeof *c->op);
        assert(c->op);
    }
    c->op[c->ops] = (sim_coded_op){.op_seq = op_seq, .step = step, .first = w->now};
    return &c->op[c->ops++];
}

sim_coded_step *sim_coded_step_of(sim_world *w, uint32_t job, uint64_t step)
{
    sim_coded *c = w->job[job].coded;
    step -= w->plan.job[job].part.first_step;
    if (step >= 100000)
        sim_fail(w, "O13 slots", 0, "job %u is at step %" PRIu64, job, step);
    if (step >= c->step_room) {
        uint64_t room = 2 * step + 64;
        c->step = realloc(c->step, room * sizeof *c->step);
        assert(c->step);
        memset(c->step + c->step_room, 0, (room - c->step_room) * sizeof *c->step);
        c->step_room = room;
    }
    return &c->step[step];
}

/* |r|'s newest contribution that was taken went into |op|. */
static void took(sim_world *w, sim_rank *r, sim_coded_op *op)
{
    sim_coder *c = r->coder;
    uint32_t self = w->job[r->job].index_of[r->host];
    uint64_t call = r->completions->taken - 1;
    c->taken = r->completions->taken;
    for (uint32_t b = 0; b < SIM_CODED_BUFFERS; b++) {
        if (c->call_in[b] != call)
            continue;
        if (c->step_in[b] != op->step)
            SIM_CODED_FAIL(w, "O13 slots", r,
                           "op_seq %" PRIu64 " for step %" PRIu64 " takes what was given for %" PRIu64, op->op_seq,
                           op->step, c->step_in[b]);
        op->gave |= sim_bit(self);
        op->gave_at[self] = w->now;
        return;
    }
    SIM_CODED_FAIL(w, "O13 slots", r, "call %" PRIu64 " is said to be taken, which gave nothing", call);
}

void sim_coded_notice(sim_world *w, sim_rank *r)
{
    sim_coded *c = w->job[r->job].coded;
    uint32_t self = w->job[r->job].index_of[r->host];
    if (r->completions->taken == r->coder->taken)
        return;
    if (c->life[self] != w->host[r->host].life)
        SIM_CODED_FAIL(w, "O13 slots", r, "call %" PRIu64 " is taken, and no op has started",
                       r->completions->taken - 1);
    took(w, r, &c->op[c->running[self]]);
    w->cover[SIM_CODED_joined]++;
}

/* What the ring says was taken was given for the step of the op that started last: that one took it. Else an op did
 * that has started since, of which the engine tells next. */
static bool was_in_last(const sim_coded *c, const sim_rank *r, uint32_t self)
{
    const sim_coder *coder = r->coder;
    for (uint32_t b = 0; b < SIM_CODED_BUFFERS; b++)
        if (coder->call_in[b] == r->completions->taken - 1)
            return coder->step_in[b] == c->op[c->running[self]].step;
    return true;
}

/* The call whose contribution was taken last has no answer yet: that is the next attempt's as well. */
static bool waits_still(const sim_rank *r)
{
    return r->out && (r->ask[0].entry.flags & UT_SUBMIT_GIVE) && r->ask[0].entry.op_seq == r->coder->taken - 1;
}

void sim_coded_event(sim_world *w, sim_host *h, const ut_event *event)
{
    sim_job *job = &w->job[event->job];
    uint32_t self = job->index_of[h->index];
    sim_coded *c = job->coded;
    if (event->kind == UT_EVENT_OP_DONE) {
        h->ended[event->a < 5 ? event->a : 0]++;
        sim_coded_op *op = c->life[self] == h->life ? &c->op[c->running[self]] : NULL;
        if (op && op->op_seq == event->op_seq && event->a != UT_FAILED) {
            op->ended_at[self] = w->now;
            c->steps = UT_MAX2(c->steps, op->step + 1);
        }
    }
    if (event->kind != UT_EVENT_ACTIVATED || w->plan.evil)
        return;
    if (w->plan.hostile) { /* when it began is all that is believed */
        (void)sim_coded_op_of(w, event->job, event->op_seq, event->b);
        return;
    }
    if (event->op_seq < job->part->next[self])
        sim_fail(w, "O13 slots", h->index, "job %u op_seq %" PRIu64 " starts, and %" PRIu64 " is the next", event->job,
                 event->op_seq, job->part->next[self]);
    job->part->next[self] = event->op_seq + 1;
    sim_rank *r = &job->rank[self];
    sim_coded_op *op = sim_coded_op_of(w, event->job, event->op_seq, event->b);
    w->cover[event->a ? SIM_CODED_began_with_own : SIM_CODED_dragged_in]++;
    if (r->session != UINT32_MAX && !event->a && was_in_last(c, r, self))
        sim_coded_notice(w, r);
    c->running[self] = (uint32_t)(op - c->op);
    c->life[self] = h->life;
    if (r->session == UINT32_MAX)
        return;
    if (event->a && r->completions->taken == r->coder->taken) {
        if (!waits_still(r))
            SIM_CODED_FAIL(w, "O13 slots", r, "op_seq %" PRIu64 " starts with what nobody gave", event->op_seq);
        w->cover[SIM_CODED_tried_again]++;
    }
    if (event->a)
        took(w, r, op);
}
