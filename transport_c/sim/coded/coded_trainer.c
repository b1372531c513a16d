/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer of a coded job: computes its part of a step, gives it or takes the result that is there already, and goes
 * on to the next step; after a failure it gives the same once more, and where it is behind it goes on with the step
 * after the newest. What the rings let go of is spoilt at once, so that an engine that still reads it shows.
 */
#include "sim/coded/coded.h"
#include "sim/partial/partial.h"
#include "sim/world/liar.h"

#include <stdlib.h>

/* A call whose contribution is in an op that ends so soon after its deadline waits for that. */
#define GRACE (10 * UT_MS)
#define CALM_DEADLINE (5 * UT_SECOND)

enum { MARGIN = 64, MARGIN_BYTE = 0x5a, FILL_BYTE = 0xee, SPENT_BYTE = 0xa5, TRIES = 60 };

static const sim_part_plan *plan_of(const sim_world *w, const sim_rank *r)
{
    return &w->plan.job[r->job].part;
}

static bool is_blind(const sim_world *w)
{
    return w->plan.evil || w->plan.hostile;
}

static uint64_t bucket_bytes(const sim_part_plan *p)
{
    return p->count * ut_dtype_bytes(p->dtype);
}

static uint64_t region(const sim_part_plan *p)
{
    return (bucket_bytes(p) + 2 * MARGIN + 63) / 64 * 64;
}

static uint64_t buffer_at(const sim_part_plan *p, uint32_t buffer)
{
    return buffer * region(p) + MARGIN;
}

/* The step that trainers take after |step|. */
static uint64_t after(sim_world *w, const sim_rank *r, uint64_t step)
{
    const sim_part_plan *p = plan_of(w, r);
    w->cover[SIM_CODED_jump] += step == p->jump_at;
    return step + 1 + (step == p->jump_at ? p->jump : 0);
}

/* The step after the newest that a trainer has had, which a trainer begins with that has the model of another one. */
static uint64_t newest(const sim_world *w, uint32_t job)
{
    uint64_t step = w->plan.job[job].part.first_step;
    for (uint32_t k = 0; k < w->job[job].ranks; k++) {
        const sim_rank *r = &w->job[job].rank[k];
        step = UT_MAX2(step, r->coder && r->session != UINT32_MAX ? r->coder->step : 0);
    }
    return step;
}

static void go_on(sim_world *w, sim_rank *r);

static void attach(sim_world *w, sim_rank *r)
{
    sim_host *h = &w->host[r->host];
    const sim_part_plan *p = plan_of(w, r);
    r->arena_bytes = (SIM_CODED_BUFFERS + 1) * region(p);
    r->arena = sim_alloc(r->arena_bytes);
    memset(r->arena, MARGIN_BYTE, r->arena_bytes);
    r->submissions = sim_alloc(sizeof *r->submissions);
    r->completions = sim_alloc(sizeof *r->completions);
    ut_session_memory memory = {r->submissions, r->completions, r->arena, r->arena_bytes, 0, 0};
    uint32_t session;
    int error = ut_engine_session_add(h->engine, r->job, &memory, 0, &session);
    if (error || session >= UT_SESSIONS_MAX || h->by_session[session])
        SIM_CODED_FAIL(w, "attach", r, "error %d, session %u", error, session);
    bool first = !r->coder;
    if (first) {
        r->coder = sim_alloc(sizeof *r->coder);
        r->coder->step = p->first_step;
    } else if (sim_chance(&w->rng_trainer, 700000)) { /* else it goes on where it was, as from a checkpoint */
        r->coder->step = newest(w, r->job);
    }
    sim_coder *c = r->coder;
    c->calls = c->taken = 0;
    c->again = 0;
    c->newcomer = true;
    memset(c->call_in, 0xff, sizeof c->call_in);
    h->by_session[session] = r;
    h->sessions = UT_MAX2(h->sessions, session + 1);
    r->session = session;
    r->out = 0;
    r->dead = r->planned_return = r->rung = r->ready_pending = false;
    r->taken_seen = 0;
    r->born++;
    w->cover[SIM_CODED_joined_late] += !first;
    sim_trace(w, SIM_TR_RETURN, r->host, r->job, r->index, c->step, session);
    go_on(w, r);
}

static void detach(sim_world *w, sim_rank *r)
{
    (void)w;
    memset(r->coder->call_in, 0xff, sizeof r->coder->call_in);
}

/* Every live rank has had its answers of the calm. */
static bool calm_enough(const sim_world *w, uint32_t job)
{
    for (uint32_t k = 0; k < w->job[job].ranks; k++) {
        const sim_rank *r = &w->job[job].rank[k];
        if (!w->host[r->host].gone &&
            (r->session == UINT32_MAX || r->coder->calm_answers < sim_calm_ops(w->job[job].plan)))
            return false;
    }
    return true;
}

/* Who has begun a step of the calm is not left alone with it: the step after the last one that is asked for. */
static uint64_t last_step(const sim_world *w, uint32_t job)
{
    sim_coded *c = w->job[job].coded;
    for (uint32_t k = 0, unknown = c->last == 0; unknown && k < w->job[job].ranks; k++) {
        const sim_rank *r = &w->job[job].rank[k];
        c->last = UT_MAX2(c->last, r->out ? r->ask[0].entry.wanted + 1 : 0);
    }
    return c->last;
}

static bool has_enough(const sim_world *w, const sim_rank *r)
{
    const sim_part_plan *p = plan_of(w, r);
    if (w->calming)
        return calm_enough(w, r->job) && (r->coder->step >= last_step(w, r->job) || r->coder->again ||
                                          r->coder->calm_tries > sim_calm_ops(&w->plan.job[r->job]) + TRIES);
    return p->style[r->index] == SIM_SLEEPER || r->coder->made >= p->steps;
}

static bool done(const sim_world *w, const sim_rank *r)
{
    if (w->host[r->host].gone)
        return true;
    if (r->session == UINT32_MAX)
        return r->dead && !r->planned_return;
    return r->out == 0 && has_enough(w, r);
}

static ut_ns due(const sim_world *w, const sim_rank *r, const sim_ask *ask)
{
    (void)w, (void)r;
    bool grace = (ask->entry.flags & UT_SUBMIT_GIVE) && ask->deadline < UT_NEVER - GRACE;
    return grace ? ask->deadline + GRACE : ask->deadline;
}

static void come_back(sim_world *w, sim_rank *r, ut_ns in)
{
    if (r->ready_pending)
        return;
    r->ready_pending = true;
    sim_push(w, w->now + in, SIM_EV_READY, r->job, r->index, r->born, 0, NULL);
}

static void go_on(sim_world *w, sim_rank *r)
{
    const sim_job_plan *j = &w->plan.job[r->job];
    const sim_host *h = &w->host[r->host];
    if (r->session == UINT32_MAX || r->ready_pending || r->out || has_enough(w, r))
        return;
    ut_ns in = sim_between(&w->rng_trainer, j->compute_min, j->compute_max);
    if (r->coder->again) /* it has what it gives */
        in = UT_MS;
    else if (w->faults && sim_chance(&w->rng_trainer, j->part.stall_ppm)) {
        in += sim_octaves(&w->rng_trainer, UT_MS, j->part.stall);
        w->cover[SIM_CODED_stall]++;
    }
    if (r->coder->calm_answers > sim_calm_ops(j)) /* it goes on for the sake of those who have no answer yet */
        in += 20 * UT_MS;
    come_back(w, r, h->paused ? h->resumes - w->now + UT_US : in);
}

/* ---- calls ---- */

/* Writes what the rank has for the step into a free buffer. */
static uint32_t make(sim_world *w, sim_rank *r)
{
    sim_coder *c = r->coder;
    const sim_part_plan *p = plan_of(w, r);
    uint32_t buffer = 0;
    while (buffer < SIM_CODED_BUFFERS && c->call_in[buffer] != UINT64_MAX)
        buffer++;
    if (buffer == SIM_CODED_BUFFERS && !is_blind(w))
        SIM_CODED_FAIL(w, "O13 slots", r, "all buffers are the engine's; taken %" PRIu64 ", freed %" PRIu64,
                       r->completions->taken, r->completions->freed);
    buffer %= SIM_CODED_BUFFERS;
    c->call_in[buffer] = c->calls;
    c->step_in[buffer] = c->step;
    sim_coded_fill(w, r->job, w->job[r->job].index_of[r->host], c->step, r->arena + buffer_at(p, buffer));
    return buffer;
}

static void submit(sim_world *w, sim_rank *r, bool give, ut_ns deadline)
{
    sim_host *h = &w->host[r->host];
    sim_coder *c = r->coder;
    const sim_part_plan *p = plan_of(w, r);
    uint64_t dst = buffer_at(p, SIM_CODED_BUFFERS), src = dst;
    memset(r->arena + dst, FILL_BYTE, bucket_bytes(p));
    if (give)
        src = buffer_at(p, make(w, r));
    sim_ask ask = {.submitted = w->now, .deadline = sim_local(w, h) + deadline};
    ask.entry = (ut_submission){.op_seq = c->calls++,
                                .src = src,
                                .dst = dst,
                                .count = p->count,
                                .deadline_ns = ask.deadline,
                                .dtype = p->dtype,
                                .redop = UT_SUM,
                                .mode = UT_BOUNDED,
                                .flags = give ? UT_SUBMIT_GIVE : 0,
                                .wanted = c->step,
                                .oldest_step = give ? (uint32_t)c->step : 0,
                                .newest_step = give ? (uint32_t)c->step : 0};
    if (ut_ring_submit(r->submissions, r->completions, &ask.entry))
        SIM_CODED_FAIL(w, "submit", r, "the ring is full with %u out", r->out);
    sim_trace(w, SIM_TR_SUBMIT, r->host, r->job, r->index, ask.entry.op_seq, c->step << 1 | give);
    r->ask[r->out++] = ask;
    r->rung = true;
    sim_host_readable(w, h);
}

/* SIM_EV_READY. */
static void ready(sim_world *w, sim_rank *r)
{
    sim_coder *c = r->coder;
    const sim_part_plan *p = plan_of(w, r);
    sim_rng *rng = &w->rng_trainer;
    r->ready_pending = false;
    if (w->host[r->host].paused || r->out || has_enough(w, r)) {
        go_on(w, r);
        return;
    }
    ut_ns deadline = w->calming ? CALM_DEADLINE : p->deadline;
    if (w->faults && !w->plan.faultless && sim_chance(rng, 60000)) {
        deadline = sim_octaves(rng, UT_US, p->deadline);
        w->cover[SIM_CODED_short_deadline]++;
    }
    bool over = r->completions->results > c->step && sim_chance(rng, 800000);
    bool waits = w->faults && !w->plan.faultless && sim_chance(rng, 50000);
    w->cover[SIM_CODED_over] += over;
    w->cover[SIM_CODED_waits] += waits && !over;
    w->cover[SIM_CODED_given_again] += c->again && !over && !waits;
    w->cover[p->dtype == UT_FLOAT32 ? SIM_CODED_float32 : SIM_CODED_float64]++;
    c->made++;
    submit(w, r, !over && !waits, deadline);
}

/* ---- what the engine makes of it ---- */

static void spoil(sim_world *w, sim_rank *r, uint32_t buffer)
{
    const sim_part_plan *p = plan_of(w, r);
    uint8_t *mem = r->arena + buffer_at(p, buffer), *again = sim_alloc(bucket_bytes(p) + 1);
    sim_coded_fill(w, r->job, w->job[r->job].index_of[r->host], r->coder->step_in[buffer], again);
    bool same = memcmp(again, mem, bucket_bytes(p)) == 0;
    free(again);
    if (!same)
        SIM_CODED_FAIL(w, "O5 bounded memory", r, "the contribution to step %" PRIu64 " was changed",
                       r->coder->step_in[buffer]);
    memset(mem, SPENT_BYTE, bucket_bytes(p));
    r->coder->call_in[buffer] = UINT64_MAX;
    w->cover[SIM_CODED_scribbled]++;
}

/* A contribution is the trainer's again when an op that took it has ended, or its call has its answer and no op took
 * it. */
static void words(sim_world *w, sim_rank *r)
{
    const ut_completion_ring *words = r->completions;
    sim_coder *c = r->coder;
    if (!is_blind(w))
        sim_coded_notice(w, r);
    for (uint32_t b = 0; b < SIM_CODED_BUFFERS; b++) {
        uint64_t call = c->call_in[b];
        bool out = r->out && r->ask[0].entry.op_seq == call;
        bool taken = words->taken > call;
        if (call != UINT64_MAX && (taken ? words->freed > call : !out))
            spoil(w, r, b);
    }
}

/* Nothing outside of the result may have changed, and that neither where there is none. */
static void check_arena(sim_world *w, const sim_rank *r, bool untouched)
{
    const sim_part_plan *p = plan_of(w, r);
    uint64_t bytes = bucket_bytes(p);
    for (uint32_t k = 0; k <= SIM_CODED_BUFFERS; k++) {
        uint64_t from = buffer_at(p, k), end = from + bytes;
        bool good = sim_all_bytes(r->arena + k * region(p), MARGIN, MARGIN_BYTE) &&
                    sim_all_bytes(r->arena + end, (k + 1) * region(p) - end, MARGIN_BYTE);
        if (!good || (k == SIM_CODED_BUFFERS && untouched && !sim_all_bytes(r->arena + from, bytes, FILL_BYTE)))
            SIM_CODED_FAIL(w, "O5 bounded memory", r, "the arena was written near buffer %u", k);
    }
}

/* What the answer means for the trainer. */
static void take_answer(sim_world *w, sim_rank *r, const sim_ask *ask, const ut_receipt *receipt)
{
    sim_coder *c = r->coder;
    check_arena(w, r, receipt->status == UT_BEHIND);
    if (receipt->status == UT_BEHIND) {
        sim_coded_check_behind(w, r, ask, receipt);
        c->step = after(w, r, UT_MAX2(c->step, (uint64_t)receipt->step)); /* with the model of another rank */
        c->again = 0;
        return;
    }
    sim_coded_check(w, r, ask, receipt);
    w->ops++;
    if (receipt->status == UT_FAILED) {
        c->again++;
        return;
    }
    c->again = 0;
    c->newcomer = false;
    c->step = after(w, r, c->step);
}

/* In the calm each rank must come to a result, if one of each group is there for good. */
static void count_calm(sim_world *w, sim_rank *r, const ut_receipt *receipt)
{
    const sim_job_plan *j = &w->plan.job[r->job];
    uint64_t here = 0;
    for (uint32_t k = 0; k < j->hosts; k++)
        here |= (uint64_t)!w->host[j->host[k]].gone << k;
    /* Of two hosts each believes what the other told in this life, even when that one lies no more; and where one
     * contribution is enough, one that lies takes the job to any step. */
    uint64_t liar = sim_liar_of(w, &w->job[r->job]);
    bool same_life = liar && w->host[w->plan.liar.host].life == 1;
    bool misled = (same_life && __builtin_popcountll(here) <= 2) || (liar && sim_coded_can(j, liar));
    /* Without a control network a host that is gone stays an owner, and its shard is missing. */
    bool whole = !w->epochs.none || here == sim_first(j->hosts);
    bool decodable = !w->plan.evil && !misled && whole && sim_coded_can(j, here);
    bool result = receipt->status == UT_COMPLETE || receipt->status == UT_PARTIAL;
    r->coder->calm_answers += result || !decodable;
    if (++r->coder->calm_tries > sim_calm_ops(j) + TRIES && decodable && r->coder->calm_answers == 0)
        SIM_CODED_FAIL(w, "O10 calm", r, "has had no result in %u tries", r->coder->calm_tries);
}

static void collect(sim_world *w, sim_rank *r)
{
    ut_receipt receipt;
    uint32_t got = 0;
    if (!is_blind(w))
        sim_coded_notice(w, r);
    for (; ut_ring_take_completion(r->submissions, r->completions, &receipt); got++) {
        if (!r->out || receipt.call_seq != r->ask[0].entry.op_seq)
            SIM_CODED_FAIL(w, "O1 deadline", r, "an answer to call %" PRIu64 ", which it does not wait for",
                           receipt.call_seq);
        sim_ask ask = r->ask[0];
        sim_trace(w, SIM_TR_RECEIPT, r->host, r->job, r->index, receipt.op_seq, receipt.status);
        w->receipts++;
        r->out = 0;
        if (w->plan.hostile)
            sim_coded_check_among_liars(w, r, &ask, &receipt);
        if (!is_blind(w))
            take_answer(w, r, &ask, &receipt);
        else if (receipt.status == UT_BEHIND) /* with the model of another rank, whatever the receipt says */
            r->coder->step = UT_MAX2(newest(w, r->job), after(w, r, ask.entry.wanted));
        else
            r->coder->step = receipt.status == UT_FAILED ? ask.entry.wanted : after(w, r, ask.entry.wanted);
        if (w->calming)
            count_calm(w, r, &receipt);
    }
    if (got == 0)
        SIM_CODED_FAIL(w, "wake-up", r, "was woken for nothing, with %u out", r->out);
    go_on(w, r);
}

static void free_job(sim_job *job)
{
    for (uint32_t k = 0; k < job->ranks; k++)
        free(job->rank[k].coder);
    if (job->coded) {
        free(job->coded->op);
        free(job->coded->step);
    }
    free(job->coded);
    free(job->part);
}

const sim_kind sim_kind_coded = {.attach = attach,
                                 .detach = detach,
                                 .done = done,
                                 .go_on = go_on,
                                 .ready = ready,
                                 .collect = collect,
                                 .words = words,
                                 .due = due,
                                 .opens = sim_part_opens,
                                 .event = sim_coded_event,
                                 .free = free_job};
