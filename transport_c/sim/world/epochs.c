/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/world/epochs.h"

#include "sim/partial/partial.h"
#include "sim/world/liar.h"
#include "sim/world/seats.h"

#include <stdlib.h>

/* SIM_EV_EPOCH, field b: what is due. Those below HANDED are the job's, the others a host's, with its life in c. */
enum due { LOOK, DECIDE, HANDED, HELD };

typedef struct message {
    uint32_t job;
    ut_epoch epoch; /* number 0: the newest there is then */
    uint64_t hold;  /* nanoseconds */
} message;

/* ---- what is drawn ---- */

static void draw(sim_world *w)
{
    sim_epochs *e = &w->epochs;
    e->rng = sim_rng_for(w->seed, 43);
    e->every = 5 * UT_MS;
    e->late = UT_MS;
    if (w->plan.study)
        return;
    e->every = sim_octaves(&e->rng, 2 * UT_MS, 20 * UT_MS);
    e->late = sim_octaves(&e->rng, 50 * UT_US, 30 * UT_MS);
    e->margin = (uint32_t)sim_below(&e->rng, 4);
    if (w->plan.faultless)
        return;
    e->none = sim_chance(&e->rng, 120000) && !w->plan.job[0].seats;
    w->cover[SIM_epoch_none] += e->none;
    e->unheld = sim_chance(&e->rng, 500000) ? (uint32_t)sim_octaves(&e->rng, 50000, 1000000) : 0;
    uint32_t *some[] = {&e->never, &e->apart, &e->without, &e->quick, &e->vain};
    for (unsigned i = 0; i < sizeof some / sizeof *some; i++)
        *some[i] = sim_chance(&e->rng, 400000) ? (uint32_t)sim_octaves(&e->rng, 100000, 800000) : 0;
    e->alike = sim_chance(&e->rng, 400000) ? 500000 : 0;
    e->often = sim_chance(&e->rng, 400000) ? (uint32_t)sim_octaves(&e->rng, 50000, 800000) : 0;
}

/* ---- the job's side ---- */

static void push(sim_world *w, uint32_t job, enum due due, ut_ns in)
{
    sim_push(w, w->now + in, SIM_EV_EPOCH, job, due, 0, 0, NULL);
}

static void tell(sim_world *w, uint32_t job, uint32_t self, enum due due, message m, ut_ns in)
{
    const sim_host *h = &w->host[w->plan.job[job].host[self]];
    message *copy = sim_alloc(sizeof *copy);
    *copy = m;
    copy->job = job;
    sim_push(w, w->now + in, SIM_EV_EPOCH, h->index, due, h->life, 0, copy);
}

static sim_seat *seat_of(sim_world *w, uint32_t job, uint32_t self)
{
    sim_host *h = &w->host[w->plan.job[job].host[self]];
    return h->alive && h->seat[job].open ? &h->seat[job] : NULL;
}

static uint64_t next_op(const sim_world *w, uint32_t job, uint32_t self, uint16_t *ret_option)
{
    uint64_t next;
    uint16_t option[UT_EPOCH_OPTIONS];
    (void)ut_engine_job_wishes(w->host[w->plan.job[job].host[self]].engine, job, &next, option);
    if (ret_option)
        memcpy(ret_option, option, sizeof option);
    return next;
}

/* What is true: who is there, who of them owns, and what the first of them would choose. */
static ut_epoch truth(sim_world *w, uint32_t job)
{
    sim_job *j = &w->job[job];
    ut_epoch e = {.world = j->ranks, .from = 0, .options = j->epochs.wished};
    memcpy(e.ranks_of, j->plan->local, j->plan->hosts);
    for (uint32_t h = j->plan->hosts; h-- > 0;) {
        sim_seat *seat = seat_of(w, job, h);
        if (!seat || j->epochs.leaving >> h & 1)
            continue;
        uint64_t next = next_op(w, job, h, e.option);
        e.from = UT_MAX2(e.from, next);
        e.members |= sim_bit(h);
        if (next > seat->first || (j->epochs.decided.owners >> h & 1 && j->epochs.owner_life[h] == seat->life))
            e.owners |= sim_bit(h);
    }
    e.owners = e.owners ? e.owners : e.members;
    if (j->plan->seats)
        e.world = sim_ones(e.members);
    return e;
}

static bool differs(const ut_epoch *a, const ut_epoch *b)
{
    return a->members != b->members || a->owners != b->owners || memcmp(a->option, b->option, sizeof a->option) != 0 ||
           memcmp(&a->options, &b->options, sizeof a->options) != 0;
}

/* So many ops from the next one on still run under the epoch before; in the calm, which is short, none. */
static uint64_t margin(sim_world *w)
{
    return w->faults ? sim_below(&w->epochs.rng, w->epochs.margin + 1) : 0;
}

/* Other options that a job may have while it runs. */
static void redraw(sim_world *w, uint32_t job, ut_job_options *o)
{
    sim_rng *rng = &w->epochs.rng;
    const sim_job_plan *j = &w->plan.job[job];
    o->congestion = (uint8_t)sim_below(rng, UT_CC_END);
    o->early_percent = (uint8_t)sim_below(rng, 101);
    if (sim_is_partial(j) && !sim_is_coded(j))
        sim_plan_draw_policy(o, w->job[job].ranks, rng);
    else if (o->t_b_ns)
        o->t_b_ns = sim_octaves(rng, UT_MS, 500 * UT_MS) / UT_US * UT_US;
    w->cover[SIM_epoch_options]++;
}

/* Another epoch of the same number: cut among fewer, with other options, or with another codec. */
static ut_epoch another(sim_world *w, uint32_t job, const ut_epoch *of)
{
    sim_rng *rng = &w->epochs.rng;
    ut_epoch e = *of;
    uint64_t fewer = e.owners & sim_next(rng);
    if (fewer && fewer != e.owners && !w->plan.hostile && sim_chance(rng, 700000))
        e.owners = fewer;
    else if (sim_chance(rng, 500000))
        redraw(w, job, &e.options);
    else
        e.option[UT_EPOCH_CODEC] ^= 1;
    e.id = sim_next(rng);
    if (sim_chance(rng, w->epochs.alike))
        e.id = (e.id & ~UINT64_C(0xffff)) | (of->id & 0xffff);
    return e;
}

static void decide(sim_world *w, uint32_t job)
{
    sim_epochs *e = &w->epochs;
    sim_job *j = &w->job[job];
    sim_rng *rng = &e->rng;
    uint32_t hosts = j->plan->hosts;
    const bool rage = w->faults && !w->plan.faultless;
    ut_epoch next = truth(w, job);
    j->epochs.asked = false;
    if (!next.members)
        return;
    next.number = ++j->epochs.number;
    next.id = sim_next(rng);
    next.from = j->epochs.held ? j->epochs.from : next.from + margin(w);
    if (rage && sim_chance(rng, e->often))
        next.option[UT_EPOCH_CODEC] ^= 1; /* a lie about losses */
    if (rage && sim_chance(rng, e->often))
        redraw(w, job, &next.options);
    uint64_t out = sim_bit((uint32_t)sim_below(rng, hosts));
    bool without = rage && !w->plan.hostile && sim_chance(rng, e->without) && next.owners & ~out;
    if (without && (!j->plan->seats || next.members & out)) {
        next.members &= ~out; /* it lives */
        next.owners &= ~out;
        next.world -= j->plan->seats;
        j->epochs.stale = true;
        w->cover[SIM_epoch_without_live]++;
    }
    j->epochs.decided = next;
    if (j->plan->seats)
        sim_seats_decided(w, job);
    for (uint32_t h = 0; h < hosts; h++)
        if (seat_of(w, job, h))
            j->epochs.owner_life[h] = seat_of(w, job, h)->life;
    uint64_t half = rage && sim_chance(rng, e->apart) ? sim_draw_set(rng, hosts) : 0;
    uint64_t untold = rage && sim_chance(rng, e->never) ? sim_bit((uint32_t)sim_below(rng, hosts)) : 0;
    ut_epoch other = another(w, job, &next);
    j->epochs.stale = j->epochs.stale || half || untold;
    bool alike = half && other.id << 48 == next.id << 48;
    j->epochs.alike = j->epochs.alike || alike;
    j->epochs.mixed = j->epochs.mixed || (alike && memcmp(other.option, next.option, sizeof next.option) != 0);
    w->cover[SIM_epoch]++;
    w->cover[SIM_epoch_held] += j->epochs.held;
    w->cover[SIM_epoch_late] += !j->epochs.held;
    w->cover[SIM_epoch_apart] += half != 0;
    w->cover[SIM_epoch_alike] += alike;
    w->cover[SIM_epoch_untold] += untold != 0;
    j->epochs.told_by = w->now + e->late;
    for (uint32_t h = 0; h < hosts; h++)
        if (seat_of(w, job, h) && !(untold >> h & 1))
            tell(w, job, h, HANDED, (message){.epoch = half >> h & 1 ? other : next}, sim_below(rng, e->late + 1));
    if (rage && sim_chance(rng, e->quick)) {
        j->epochs.stale = true;
        j->epochs.held = false;
        push(w, job, DECIDE, sim_below(rng, UT_MS));
        w->cover[SIM_epoch_quick]++;
    }
}

/* All hosts hold from some op on; then the epoch comes, or does not. */
static void hold(sim_world *w, uint32_t job, bool in_vain)
{
    sim_epochs *e = &w->epochs;
    sim_job *j = &w->job[job];
    const uint64_t length = 2 * e->late + 20 * UT_MS;
    j->epochs.from = 0;
    for (uint32_t h = 0; h < j->plan->hosts; h++)
        if (seat_of(w, job, h) && !(in_vain && sim_chance(&e->rng, 500000)))
            tell(w, job, h, HELD, (message){.hold = in_vain ? sim_below(&e->rng, length) : length},
                 sim_below(&e->rng, e->late + 1));
    if (in_vain) {
        w->cover[SIM_epoch_hold_in_vain]++;
        return;
    }
    j->epochs.asked = j->epochs.held = true;
    push(w, job, DECIDE, e->late + 1);
}

static void look(sim_world *w, uint32_t job)
{
    sim_epochs *e = &w->epochs;
    sim_job *j = &w->job[job];
    if (!w->ended)
        push(w, job, LOOK, e->every);
    if (j->epochs.asked)
        return;
    const bool rage = w->faults && !w->plan.faultless;
    if (!rage && w->now <= j->epochs.told_by)
        return; /* an epoch ends the hold for the next one, so daemons hold none for it before they have this one */
    ut_epoch now = truth(w, job);
    if (!now.members)
        return;
    if (!j->epochs.stale && !differs(&now, &j->epochs.decided) && !sim_seats_differ(w, job) &&
        !(rage && sim_chance(&e->rng, e->often))) {
        if (rage && sim_chance(&e->rng, e->vain / 20))
            hold(w, job, true);
        return;
    }
    j->epochs.stale = false;
    if (rage && sim_chance(&e->rng, e->unheld)) {
        j->epochs.held = false;
        decide(w, job);
    } else {
        hold(w, job, false);
    }
}

static void hand(sim_world *w, sim_host *h, uint32_t job, const ut_epoch *given);

/* All that are there when the job begins are in its first epoch. */
static void begin_with_seats(sim_world *w, uint32_t job)
{
    sim_job *j = &w->job[job];
    j->epochs.decided.number = j->epochs.number = 1;
    j->epochs.decided.id = sim_next(&w->epochs.rng);
    sim_seats_decided(w, job);
    for (uint32_t h = 0; h < j->plan->hosts; h++)
        hand(w, &w->host[j->plan->host[h]], job, &j->epochs.decided);
}

void sim_epochs_begin(sim_world *w)
{
    draw(w);
    for (uint32_t job = 0; job < w->plan.jobs && !w->epochs.none; job++) {
        const sim_job_plan *j = w->job[job].plan;
        if (j->hosts < 2 || (sim_algorithm(j) != UT_TAR && sim_algorithm(j) != UT_TREE))
            continue;
        w->job[job].epochs.begun = true;
        w->job[job].epochs.wished = j->options;
        w->job[job].epochs.wished.algorithm = (uint8_t)sim_algorithm(j); /* all 0 says nothing */
        w->job[job].epochs.decided = truth(w, job);                      /* what all begin with, each by itself */
        for (uint32_t h = 0; h < j->hosts; h++)
            w->job[job].epochs.owner_life[h] = 1;
        if (j->seats)
            begin_with_seats(w, job);
        push(w, job, LOOK, w->epochs.every);
    }
}

void sim_epochs_calm(sim_world *w)
{
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        w->job[job].epochs.stale = true;
}

/* ---- a host's side ---- */

void sim_epochs_open(sim_world *w, sim_host *h, uint32_t job, uint64_t first)
{
    sim_epochs *e = &w->epochs;
    const sim_job *j = &w->job[job];
    sim_seat *seat = &h->seat[job];
    uint32_t self = j->index_of[h->index];
    seat->first = first;
    seat->life = h->life;
    seat->owners[seat->owners_n++] = sim_first(j->plan->hosts);
    seat->options[seat->options_n++].are = j->plan->options;
    if (j->plan->seats) {
        if (h->life > 1) /* what it does before it is in is nobody's affair, and it does nothing */
            ut_engine_hold(h->engine, job, first, UT_NEVER);
        return;
    }
    if (!j->epochs.begun || !j->epochs.number)
        return;
    ut_ns in = sim_below(&e->rng, e->late + 1);
    if (!w->faults || !sim_chance(&e->rng, e->unheld)) /* it opens nothing before it knows */
        ut_engine_hold(h->engine, job, first, sim_local(w, h) + in + 20 * UT_MS);
    if (!w->faults || !sim_chance(&e->rng, e->never))
        tell(w, job, self, HANDED, (message){0}, in);
}

/* Host |seat| goes by |o| from op |from| on. */
static void options_from(sim_seat *seat, uint64_t from, uint64_t number, const ut_job_options *o)
{
    while (seat->options_n && seat->options[seat->options_n - 1].from >= from)
        seat->options_n--;
    if (seat->options_n == SIM_OPTIONS_KEPT)
        memmove(seat->options, seat->options + 1, --seat->options_n * sizeof *seat->options);
    seat->options[seat->options_n].from = from;
    seat->options[seat->options_n].number = number;
    seat->options[seat->options_n++].are = *o;
}

static uint32_t options_place(const sim_seat *seat, uint64_t op_seq)
{
    uint32_t at = seat->options_n - 1;
    while (at > 0 && seat->options[at].from > op_seq)
        at--;
    return at;
}

const ut_job_options *sim_options_at(const sim_world *w, uint32_t job, uint32_t self, uint64_t op_seq)
{
    const sim_seat *seat = &w->host[w->plan.job[job].host[self]].seat[job];
    return &seat->options[options_place(seat, op_seq)].are;
}

uint64_t sim_epoch_number_at(const sim_world *w, uint32_t job, uint32_t self, uint64_t op_seq)
{
    const sim_seat *seat = &w->host[w->plan.job[job].host[self]].seat[job];
    uint32_t at = options_place(seat, op_seq);
    return seat->options[at].from > op_seq ? UINT64_MAX : seat->options[at].number;
}

static void hand(sim_world *w, sim_host *h, uint32_t job, const ut_epoch *given)
{
    sim_seat *seat = &h->seat[job];
    const sim_job *j = &w->job[job];
    if (j->plan->seats && !seat->epoch.number && !(given->members >> j->index_of[h->index] & 1))
        return; /* it is told the first one that it is in */
    uint64_t next = next_op(w, job, j->index_of[h->index], NULL);
    bool again = given->number == seat->epoch.number && given->id == seat->epoch.id;
    int want = again || given->number > seat->epoch.number ? UT_OK : UT_ERR_SEQUENCE;
    if (j->plan->seats && !seat->epoch.number && h->life > 1) /* the hold without end is over */
        ut_engine_hold(h->engine, job, UINT64_MAX, 0);
    int error = ut_engine_epoch(h->engine, job, given, sim_local(w, h));
    sim_trace(w, SIM_TR_CONTROL, h->index, job, given->number, given->id, given->from);
    if (error != want)
        sim_fail(w, "O17 epochs", h->index, "job %u: epoch %" PRIu64 " after %" PRIu64 ": error %d, not %d", job,
                 given->number, seat->epoch.number, error, want);
    if (error || again)
        return;
    uint64_t from = UT_MAX2(given->from, next);
    options_from(seat, from, given->number, &given->options);
    seat->epoch = *given;
    seat->epoch.from = from;
    bool known = false;
    for (uint32_t i = 0; i < seat->owners_n; i++)
        known = known || seat->owners[i] == given->owners;
    if (!known && seat->owners_n < SIM_EPOCH_OWNERS)
        seat->owners[seat->owners_n++] = given->owners;
    else if (!known)
        seat->owners_all = true; /* more than are kept: any may be right */
    sim_host_readable(w, h);
}

void sim_epochs_event(sim_world *w, const sim_event *event)
{
    if (event->b == LOOK) {
        look(w, event->a);
        return;
    }
    if (event->b == DECIDE) {
        decide(w, event->a);
        return;
    }
    sim_host *h = &w->host[event->a];
    message m = *(message *)event->p;
    if (h->alive && h->paused) {
        sim_push(w, h->resumes, SIM_EV_EPOCH, event->a, event->b, event->c, 0, event->p);
        return;
    }
    free(event->p);
    sim_job *j = &w->job[m.job];
    if (!h->alive || h->life != event->c || !h->seat[m.job].open)
        return;
    if (event->b == HELD) {
        uint64_t from = next_op(w, m.job, j->index_of[h->index], NULL) + margin(w);
        j->epochs.from = UT_MAX2(j->epochs.from, from);
        if (j->plan->seats && !h->seat[m.job].epoch.number)
            return; /* it holds without end until it is in */
        ut_engine_hold(h->engine, m.job, from, sim_local(w, h) + m.hold);
        sim_host_readable(w, h);
    } else if (m.epoch.number || j->epochs.number) {
        hand(w, h, m.job, m.epoch.number ? &m.epoch : &j->epochs.decided);
    }
}

/* ---- O17 ---- */

/* The epoch that all live hosts hold, in which each of them is, and nobody else; |ret|: from which op on. */
static const ut_epoch *settled(const sim_world *w, uint32_t job, uint64_t *ret)
{
    const sim_job_plan *j = w->job[job].plan;
    const ut_epoch *all = NULL;
    uint64_t here = 0;
    *ret = 0;
    for (uint32_t i = 0; i < j->hosts; i++) {
        const sim_host *h = &w->host[j->host[i]];
        if (!h->alive)
            continue;
        const ut_epoch *e = &h->seat[job].epoch;
        if (!h->seat[job].open || !e->number || (all && all->id != e->id))
            return NULL;
        all = e;
        here |= sim_bit(i);
        *ret = UT_MAX2(*ret, e->from);
    }
    return all && all->members == here ? all : NULL;
}

bool sim_epochs_check(sim_world *w, uint32_t job, uint32_t self, const ut_receipt *r)
{
    const sim_host *h = &w->host[w->plan.job[job].host[self]];
    const sim_seat *seat = &h->seat[job];
    uint64_t from;
    bool known = seat->owners_all;
    for (uint32_t i = 0; i < seat->owners_n; i++)
        known = known || seat->owners[i] == r->owners;
    if (!known)
        sim_fail(w, "O17 epochs", h->index, "job %u op_seq %" PRIu64 ": no epoch has the owners %#" PRIx64, job,
                 r->op_seq, r->owners);
    const ut_epoch *e = settled(w, job, &from);
    if (!e || r->op_seq < from)
        return false;
    if (r->owners != e->owners)
        sim_fail(w, "O17 epochs", h->index,
                 "job %u op_seq %" PRIu64 ": hosts %#" PRIx64 " own the bucket; from op %" PRIu64
                 " on all hold an epoch in which %#" PRIx64 " do",
                 job, r->op_seq, r->owners, from, e->owners);
    for (uint32_t i = 0; i < w->plan.job[job].hosts; i++)
        if (!(e->members >> i & 1) && r->peer[i].missing[0] + r->peer[i].missing[1])
            sim_fail(w, "O17 epochs", h->index,
                     "job %u op_seq %" PRIu64 ": %u and %u bytes of host %u are missing, which is not in the epoch",
                     job, r->op_seq, r->peer[i].missing[0], r->peer[i].missing[1], i);
    return true;
}
