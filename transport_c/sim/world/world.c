/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a world: the faults rage until every rank has done its ops; then they stop, what is dead comes back, and
 * a few more ops must be perfect; then the books are closed.
 */
#include "sim/coded/coded.h"
#include "sim/oracles/oracles.h"
#include "sim/partial/partial.h"
#include "sim/world/epochs.h"
#include "sim/world/liar.h"
#include "sim/world/moving.h"
#include "sim/world/seal.h"
#include "sim/world/seats.h"

#include <stdlib.h>

enum { EVENTS_MAX = 20000000, EVENTS_OF_PACKET = 12, LOOK_EVERY = 16 };
#define LONGEST (UINT64_C(3600) * UT_SECOND)
#define SETTLE (250 * UT_MS)

static void make_job(sim_world *w, uint32_t number)
{
    sim_job *job = &w->job[number];
    job->plan = &w->plan.job[number];
    job->kind = sim_is_coded(job->plan)     ? &sim_kind_coded
                : sim_is_partial(job->plan) ? &sim_kind_partial
                                            : &sim_kind_ordinary;
    if (sim_is_partial(job->plan))
        job->part = sim_alloc(sizeof *job->part);
    if (sim_is_coded(job->plan))
        job->coded = sim_alloc(sizeof *job->coded);
    memset(job->index_of, 0xff, sizeof job->index_of);
    for (uint32_t i = 0; i < job->plan->hosts; i++) {
        job->index_of[job->plan->host[i]] = i;
        for (uint32_t k = 0; k < job->plan->local[i]; k++) {
            sim_rank *r = &job->rank[job->ranks];
            *r = (sim_rank){.job = number, .index = job->ranks, .host = job->plan->host[i], .session = UINT32_MAX};
            job->host_ranks[i] |= sim_bit(job->ranks++);
        }
        for (uint32_t op = 0; op < job->plan->ops; op++) /* a study may be large */
            w->events_most += EVENTS_OF_PACKET * 2 * job->plan->op[op].count / sim_slot_elements(w, 8);
        job->shaken[i] = sim_is_liar(w, job->plan->host[i]);
    }
    job->signs = job->ranks;
    if (job->plan->seats)
        sim_seats_make(job);
}

void sim_world_init(sim_world *w, uint64_t seed, const sim_plan *plan, bool trace_all)
{
    w->seed = seed;
    w->plan = *plan;
    w->trace_all = trace_all;
    w->tail = sim_alloc(SIM_TAIL * sizeof *w->tail);
    w->rng_net = sim_rng_for(seed, 2);
    w->rng_host = sim_rng_for(seed, 3);
    w->rng_trainer = sim_rng_for(seed, 4);
    w->rng_liar = sim_rng_for(seed, 17);
    w->cover[plan->partial ? SIM_PART_hostile : plan->sparse ? SIM_SPARSE_hostile : SIM_hostile] += plan->hostile;
    w->cover[plan->partial  ? SIM_PART_many_hosts
             : plan->sparse ? SIM_SPARSE_many_hosts
                            : SIM_many_hosts] += plan->hosts > SIM_MANY;
    w->faults = true;
    w->events_most = EVENTS_MAX;
    for (uint32_t j = 0; j < w->plan.jobs; j++)
        make_job(w, j);
    for (uint32_t i = 0; i < w->plan.hosts; i++) {
        sim_host *h = &w->host[i];
        h->index = i;
        h->service_at = UT_NEVER;
        for (unsigned port = 0; port < 2; port++)
            h->queue_end[port] = &h->queue[port];
    }
}

static void begin(sim_world *w)
{
    for (uint32_t i = 0; i < w->plan.hosts; i++) {
        w->host[i].alive = true;
        w->host[i].life = 1;
    }
    for (uint32_t i = 0; i < w->plan.hosts; i++)
        sim_daemon_start(w, &w->host[i]);
    sim_epochs_begin(w);
    sim_net_start(w);
    sim_moving_start(w);
    for (uint32_t i = 0; i < w->plan.items; i++)
        sim_push(w, w->plan.item[i].at, SIM_EV_ITEM, i, 0, 0, 0, NULL);
    for (uint32_t j = 0; j < w->plan.jobs; j++)
        if (w->plan.job[j].part.change.at)
            sim_push(w, w->plan.job[j].part.change.at, SIM_EV_CHANGE, j, 0, 0, 0, NULL);
}

bool sim_all_done(const sim_world *w)
{
    for (uint32_t j = 0; j < w->plan.jobs; j++)
        for (uint32_t r = 0; r < w->job[j].ranks; r++)
            if (!w->job[j].kind->done(w, &w->job[j].rank[r]))
                return false;
    return true;
}

static void dispatch(sim_world *w, const sim_event *e)
{
    sim_rank *r;
    switch (e->kind) {
    case SIM_EV_SWITCH:
        sim_net_switch(w, e->p);
        break;
    case SIM_EV_ARRIVE:
        sim_net_arrive(w, e->p);
        break;
    case SIM_EV_SERVICE:
        if (e->b == w->host[e->a].service_gen)
            sim_host_service(w, &w->host[e->a]);
        break;
    case SIM_EV_READY:
        r = &w->job[e->a].rank[e->b];
        if (r->born == e->c)
            sim_kind_of(w, r)->ready(w, r);
        break;
    case SIM_EV_ITEM:
        sim_item_begin(w, e->a);
        break;
    case SIM_EV_ITEM_END:
        sim_item_end(w, e->a);
        break;
    case SIM_EV_CONTROL:
        sim_control(w, e);
        break;
    case SIM_EV_INJECT:
        sim_net_inject(w);
        break;
    case SIM_EV_PROBE:
        sim_probe_event(w, e);
        break;
    case SIM_EV_CHANGE:
        sim_part_change_due(w, e->a);
        break;
    case SIM_EV_EPOCH:
        sim_epochs_event(w, e);
        break;
    case SIM_EV_RIVAL:
        sim_rival_event(w, e);
        break;
    case SIM_EV_CALM:
        w->calming = true;
        w->calm_since = w->now;
        sim_trace(w, SIM_TR_CALM, 0, 0, 0, 0, 0);
        for (uint32_t j = 0; j < w->plan.jobs; j++)
            for (uint32_t k = 0; k < w->job[j].ranks; k++)
                w->job[j].kind->go_on(w, &w->job[j].rank[k]);
        break;
    case SIM_EV_END:
        w->ended = true;
        break;
    case SIM_EV_PLACE:
        sim_moving_event(w, e);
        break;
    }
}

/* Which part of its life the world has come to. */
enum phase { RAGING, SETTLING, CALM_DUE, CALM, ENDING };

static enum phase next_phase(sim_world *w, enum phase phase)
{
    if (phase == CALM_DUE && w->calming)
        return CALM;
    if (phase == CALM_DUE || phase == ENDING || !sim_all_done(w))
        return phase;
    switch (phase) {
    case RAGING:
        sim_faults_stop(w);
        return SETTLING;
    case SETTLING:
        sim_push(w, w->now + SETTLE, SIM_EV_CALM, 0, 0, 0, 0, NULL);
        return CALM_DUE;
    default:
        sim_push(w, w->now + SETTLE, SIM_EV_END, 0, 0, 0, 0, NULL);
        return ENDING;
    }
}

/* Who keeps the world from going on. */
_Noreturn static void fail_stuck(sim_world *w, enum phase phase, const char *what)
{
    for (uint32_t j = 0; j < w->plan.jobs; j++)
        for (uint32_t k = 0; k < w->job[j].ranks; k++) {
            const sim_rank *r = &w->job[j].rank[k];
            if (!w->job[j].kind->done(w, r))
                sim_fail(w, "O1 deadline", r->host,
                         "%s in phase %d: job %u rank %u is at op %u with %u out, session %d", what, (int)phase, j, k,
                         r->next, r->out, (int)r->session);
        }
    sim_fail(w, "O1 deadline", 0, "%s in phase %d", what, (int)phase);
}

static enum phase go_on(sim_world *w, enum phase phase)
{
    for (;;) {
        enum phase next = next_phase(w, phase);
        if (next == phase)
            return phase;
        phase = next;
    }
}

static void run(sim_world *w)
{
    enum phase phase = RAGING;
    begin(w);
    while (!w->ended) {
        sim_event e;
        if (w->events == 0)
            phase = go_on(w, phase);
        if (!sim_pop(w, &e))
            fail_stuck(w, phase, "nothing will ever happen again");
        w->now = e.at;
        dispatch(w, &e);
        if (++w->events_done > w->events_most || w->now > LONGEST)
            fail_stuck(w, phase, "no end");
        if (w->events_done % LOOK_EVERY == 0)
            phase = go_on(w, phase);
    }
    if (!w->plan.evil) {
        sim_check_agreement(w);
        for (uint32_t j = 0; j < w->plan.jobs; j++)
            if (w->job[j].kind->check)
                w->job[j].kind->check(w, j);
    }
    sim_account_world(w);
    sim_incast_check(w);
    for (uint32_t i = 0; i < w->plan.hosts; i++) {
        sim_host *h = &w->host[i];
        for (uint32_t j = 0; j < w->plan.jobs; j++)
            if (h->alive && h->seat[j].open)
                ut_engine_job_remove(h->engine, j, sim_local(w, h));
    }
}

bool sim_world_run(sim_world *w)
{
    if (setjmp(w->failed) == 0)
        run(w);
    return w->failure[0] == 0;
}

void sim_world_free(sim_world *w)
{
    for (uint32_t i = 0; i < w->events; i++) {
        const sim_event *e = sim_event_in(w, i);
        if (e->kind == SIM_EV_SWITCH || e->kind == SIM_EV_ARRIVE)
            sim_packet_free(e->p);
        else if (e->kind == SIM_EV_CONTROL || e->kind == SIM_EV_PROBE || e->kind == SIM_EV_EPOCH)
            free(e->p);
    }
    free(w->heap);
    free(w->event);
    for (uint32_t i = 0; i < SIM_SAVED; i++)
        if (w->saved[i])
            sim_packet_free(w->saved[i]);
    for (uint32_t i = 0; i < SIM_LIES; i++)
        if (w->lie_before[i])
            sim_packet_free(w->lie_before[i]);
    for (uint32_t i = 0; i < w->plan.hosts; i++) {
        sim_host *h = &w->host[i];
        for (unsigned port = 0; port < 2; port++)
            while (h->queue[port]) {
                sim_packet *packet = h->queue[port];
                h->queue[port] = packet->next;
                sim_packet_free(packet);
            }
        for (uint32_t j = 0; j < SIM_JOBS; j++) {
            sim_guarded_free(&h->seat[j].memory);
            sim_seal_close_seat(w, h, j);
        }
        sim_guarded_free(&h->memory);
    }
    for (uint32_t j = 0; j < w->plan.jobs; j++) { /* of what was never used not even pages are touched */
        for (uint32_t i = 0; i < SIM_MARKS; i++)
            free(w->marks[j][i].mark);
        free(w->job[j].epochs.who);
        if (w->job[j].kind->free)
            w->job[j].kind->free(&w->job[j]);
        for (uint32_t r = 0; r < w->job[j].ranks; r++) {
            sim_rank *rank = &w->job[j].rank[r];
            if (!w->plan.light)
                free(rank->arena);
            free(rank->submissions);
            free(rank->completions);
        }
        for (uint32_t op = 0; op < SIM_OPS; op++)
            for (uint32_t h = 0; h < w->plan.job[j].hosts; h++)
                free(w->job[j].outcome[op][h].run);
    }
    sim_seal_free(w);
    free(w->zeros);
    free(w->tail);
}
