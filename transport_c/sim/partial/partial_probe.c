/* SPDX-License-Identifier: Apache-2.0
 *
 * The controller of jobs with probes: a role of the first live host's daemon. For the next op it asks the hosts of q
 * drawn ranks whether they are ready; who is says so, at once or when it is; the first answer wins, and its host is
 * told to start the op. A round that brings nothing is drawn anew after a while. Here messages get lost, come twice,
 * late or as lies, controllers die, and two may act at once: only the core's word on what was started counts.
 */
#include "sim/partial/partial.h"
#include "sim/world/epochs.h"

#include <stdlib.h>

enum kind { TICK = 1, ASK, READY, EXPIRED, START, REFUSED };
#define TIMEOUT (40 * UT_MS)
#define ON_THE_WAY (150 * UT_US)

static sim_prober *prober_of(sim_world *w, const sim_host *h, uint32_t job)
{
    return &w->job[job].part->prober[w->job[job].index_of[h->index]];
}

static void push(sim_world *w, const sim_host *to, uint32_t job, const sim_probe *m, ut_ns in)
{
    sim_probe *copy = sim_alloc(sizeof *copy);
    *copy = *m;
    sim_push(w, w->now + in, SIM_EV_PROBE, to->index, to->life, job, 0, copy);
}

static void tell(sim_world *w, const sim_host *from, uint32_t host, uint32_t job, sim_probe m)
{
    const sim_part_plan *p = &w->plan.job[job].part;
    const sim_host *to = &w->host[w->plan.job[job].host[host]];
    m.from = w->job[job].index_of[from->index];
    m.from_life = from->life;
    if (w->faults && sim_chance(&w->rng_host, p->probe_lost)) {
        w->cover[SIM_PART_probe_lost]++;
        return;
    }
    bool twice = w->faults && sim_chance(&w->rng_host, p->probe_twice);
    for (unsigned n = 0; n <= twice; n++)
        push(w, to, job, &m, ON_THE_WAY + (w->faults ? sim_below(&w->rng_host, p->probe_late + 1) : 0));
    w->cover[SIM_PART_probe_twice] += twice;
}

static bool by_probe(const sim_world *w, uint32_t job, uint32_t self, uint64_t op_seq)
{
    return sim_options_at(w, job, self, op_seq)->policy == UT_POLICY_PROBE;
}

/* The first live host; and for a while perhaps the second, which believes that the first is gone. */
static bool is_controller(const sim_world *w, const sim_host *h, uint32_t job)
{
    const sim_job_plan *j = &w->plan.job[job];
    uint32_t before = 0, self = w->job[job].index_of[h->index];
    for (uint32_t i = 0; i < self; i++)
        before += w->host[j->host[i]].alive;
    return before == 0 || (before == 1 && j->part.two_controllers && w->faults);
}

static void begin_round(sim_world *w, sim_host *h, uint32_t job)
{
    sim_part *part = w->job[job].part;
    uint32_t self = w->job[job].index_of[h->index], world = w->job[job].ranks, pick[SIM_RANKS];
    sim_prober *c = &part->prober[self];
    uint64_t op_seq = UT_MAX2(part->next[self], w->plan.job[job].base);
    if (!is_controller(w, h, job) || !by_probe(w, job, self, op_seq))
        return;
    if (self != part->last_controller)
        w->cover[self && w->host[w->plan.job[job].host[0]].alive ? SIM_PART_two_controllers
                                                                 : SIM_PART_controller_moved]++;
    part->last_controller = self;
    c->round++;
    c->won = false;
    c->op_seq = op_seq;
    uint32_t q = sim_part_picks(sim_options_at(w, job, self, op_seq), world), asked = 0;
    ut_picks(sim_mix(w->seed ^ c->round), op_seq, world, world, pick);
    for (uint32_t i = 0; i < world && asked < q; i++) {
        const sim_rank *r = &w->job[job].rank[pick[i]];
        if (!w->host[r->host].alive)
            continue;
        asked++;
        tell(w, h, w->job[job].index_of[r->host], job,
             (sim_probe){.kind = ASK, .rank = pick[i], .round = c->round, .op_seq = op_seq});
    }
}

void sim_probe_start(sim_world *w, sim_host *h, uint32_t job)
{
    sim_prober *c = prober_of(w, h, job);
    *c = (sim_prober){.round = c->round};
    push(w, h, job, &(sim_probe){.kind = TICK}, UT_MS);
}

void sim_probe_moved(sim_world *w, sim_host *h, uint32_t job)
{
    sim_prober *c = prober_of(w, h, job);
    uint64_t next = w->job[job].part->next[w->job[job].index_of[h->index]];
    for (uint32_t i = c->asks; i-- > 0;)
        if (c->ask[i].op_seq < next) {
            tell(w, h, c->ask[i].from, job,
                 (sim_probe){.kind = EXPIRED, .round = c->ask[i].round, .op_seq = c->ask[i].op_seq});
            c->ask[i] = c->ask[--c->asks];
        }
    if (c->ready_op < next)
        c->ready = 0;
    begin_round(w, h, job);
}

static bool is_ready(const sim_world *w, const sim_host *h, uint32_t job, const sim_prober *c, const sim_ask_of *ask)
{
    uint32_t place = ask->rank - (uint32_t)__builtin_ctzll(w->job[job].host_ranks[w->job[job].index_of[h->index]]);
    return c->ready_op == ask->op_seq && c->ready >> place & 1;
}

static void answer_ready(sim_world *w, sim_host *h, uint32_t job)
{
    sim_prober *c = prober_of(w, h, job);
    for (uint32_t i = c->asks; i-- > 0;)
        if (is_ready(w, h, job, c, &c->ask[i])) {
            tell(w, h, c->ask[i].from, job,
                 (sim_probe){.kind = READY, .round = c->ask[i].round, .op_seq = c->ask[i].op_seq});
            c->ask[i] = c->ask[--c->asks];
            w->cover[SIM_PART_probe_answered]++;
        }
}

/* The engine says which of its ranks have arrived for the next op. */
void sim_probe_ready(sim_world *w, sim_host *h, const ut_event *event)
{
    sim_job *job = &w->job[event->job];
    uint32_t self = job->index_of[h->index];
    sim_prober *c = &job->part->prober[self];
    for (uint32_t k = 0, place = 0; k < job->ranks; k++) {
        if (!(job->host_ranks[self] >> k & 1) || !(event->a >> place++ & 1) || sim_part_blind(w))
            continue;
        const sim_giver *g = job->rank[k].giver;
        bool lies = g && (g->waiting != SIM_NONE || g->offered != SIM_NONE);
        if (!lies || event->op_seq < job->part->next[self])
            sim_fail(w, "O14 policy", h->index,
                     "job %u: rank %u is said to be ready for op_seq %" PRIu64 ", the next is %" PRIu64
                     "; its slot is %s",
                     event->job, k, event->op_seq, job->part->next[self], lies ? "full" : "empty");
    }
    if (c->ready_op != event->op_seq || c->ready_at == 0)
        c->ready_at = w->now;
    c->ready_op = event->op_seq;
    c->ready = event->a;
    answer_ready(w, h, event->job);
}

static void asked(sim_world *w, sim_host *h, uint32_t job, const sim_probe *m)
{
    sim_prober *c = prober_of(w, h, job);
    uint64_t next = w->job[job].part->next[w->job[job].index_of[h->index]];
    sim_ask_of ask = {.op_seq = m->op_seq, .from = m->from, .rank = m->rank, .round = m->round};
    if (m->op_seq < next) {
        tell(w, h, m->from, job, (sim_probe){.kind = EXPIRED, .round = m->round, .op_seq = m->op_seq});
        w->cover[SIM_PART_probe_expired]++;
        return;
    }
    if (w->faults && sim_chance(&w->rng_host, w->plan.job[job].part.probe_lie)) {
        tell(w, h, m->from, job, (sim_probe){.kind = READY, .round = m->round, .op_seq = m->op_seq});
        w->cover[SIM_PART_probe_lied]++;
        return;
    }
    if (c->asks == SIM_ASKS) /* the oldest has timed out long since */
        memmove(c->ask, c->ask + 1, --c->asks * sizeof *c->ask);
    c->ask[c->asks++] = ask;
    answer_ready(w, h, job);
}

static void told_to_start(sim_world *w, sim_host *h, uint32_t job, const sim_probe *m)
{
    sim_prober *c = prober_of(w, h, job);
    uint64_t told = c->told;
    c->told = m->op_seq + 1;
    int error = ut_engine_activate(h->engine, job, m->op_seq, sim_local(w, h));
    if (error) {
        c->told = told;
        tell(w, h, m->from, job, (sim_probe){.kind = REFUSED, .round = m->round, .op_seq = m->op_seq});
    }
    sim_host_readable(w, h);
}

static void take(sim_world *w, sim_host *h, uint32_t job, const sim_probe *m)
{
    sim_prober *c = prober_of(w, h, job);
    bool current = m->round == c->round && m->op_seq == c->op_seq;
    switch (m->kind) {
    case TICK:
        if (c->round)
            w->cover[SIM_PART_probe_again]++;
        begin_round(w, h, job);
        push(w, h, job, m, TIMEOUT);
        break;
    case ASK:
        asked(w, h, job, m);
        break;
    case READY:
        if (!current || c->won)
            break;
        c->won = true;
        tell(w, h, m->from, job, (sim_probe){.kind = START, .round = m->round, .op_seq = m->op_seq});
        break;
    case START:
        told_to_start(w, h, job, m);
        break;
    case REFUSED:
        if (current)
            begin_round(w, h, job);
        break;
    }
}

/* SIM_EV_PROBE. Frees the message. */
void sim_probe_event(sim_world *w, const sim_event *event)
{
    sim_host *h = &w->host[event->a];
    sim_probe *m = event->p;
    if (h->alive && h->paused) {
        sim_push(w, h->resumes, SIM_EV_PROBE, event->a, event->b, event->c, 0, m);
        return;
    }
    sim_probe copy = *m;
    free(m);
    bool from_dead = copy.kind != TICK && copy.from_life != w->host[w->plan.job[event->c].host[copy.from]].life;
    if (h->alive && h->life == event->b && h->seat[event->c].open && !from_dead)
        take(w, h, event->c, &copy);
}
