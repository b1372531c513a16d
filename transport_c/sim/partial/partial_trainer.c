/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer of a partial job: gives what it has computed, waits for a result or goes on, in one of the styles of
 * sim_style. It keeps three buffers as a real client does: one in an op, one that waits, one being composed; what the
 * rings let go of is spoilt at once, so that an engine that still reads it shows.
 */
#include "sim/partial/partial.h"

#include "kernels/quant.h"

#include <stdlib.h>

/* A call whose contribution is in an op that ends so soon after its deadline waits for that. */
#define GRACE (10 * UT_MS)

enum { MARGIN = 64, MARGIN_BYTE = 0x5a, FILL_BYTE = 0xee };
#define CALM_DEADLINE (5 * UT_SECOND)

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

/* Where ranks of one host join their residuals, an op may send what was left over of one that is not in it. */
static bool feeds(const sim_world *w, const sim_rank *r)
{
    const sim_job *job = &w->job[r->job];
    return sim_part_plan_of(w, r)->feeds && job->plan->local[job->index_of[r->host]] == 1;
}

void sim_part_attach(sim_world *w, sim_rank *r)
{
    sim_host *h = &w->host[r->host];
    sim_job *job = &w->job[r->job];
    const sim_part_plan *p = sim_part_plan_of(w, r);
    uint32_t place = r->index - (uint32_t)__builtin_ctzll(job->host_ranks[job->index_of[r->host]]);
    r->arena_bytes = SIM_REGIONS * region(p);
    r->arena = sim_alloc(r->arena_bytes);
    memset(r->arena, MARGIN_BYTE, r->arena_bytes);
    if (feeds(w, r))
        memset(r->arena + buffer_at(p, SIM_RESIDUAL), 0, bucket_bytes(p));
    r->submissions = sim_alloc(sizeof *r->submissions);
    r->completions = sim_alloc(sizeof *r->completions);
    ut_session_memory memory = {r->submissions, r->completions, r->arena, r->arena_bytes, place, 0};
    uint32_t session;
    int error = ut_engine_session_add(h->engine, r->job, &memory, 0, &session);
    if (error || session >= UT_SESSIONS_MAX || h->by_session[session])
        SIM_PART_FAIL(w, "attach", r, "error %d, session %u", error, session);
    sim_giver *g = r->giver;
    if (!g)
        g = r->giver = sim_alloc(sizeof *g);
    g->first = g->gifts;
    g->waiting = g->offered = SIM_NONE;
    for (unsigned i = 0; i < SIM_BUFFERS; i++)
        g->buffer[i] = SIM_NONE;
    g->calls = g->absent = 0;
    g->attached = w->now;
    g->next = UT_MAX2(ut_engine_next_op_seq(h->engine, r->job), job->plan->base);
    h->by_session[session] = r;
    h->sessions = UT_MAX2(h->sessions, session + 1);
    r->session = session;
    r->out = 0;
    r->dead = r->planned_return = r->rung = r->ready_pending = false;
    r->taken_seen = 0;
    r->born++;
    if (r->born > 1 || p->style[r->index] == SIM_SLEEPER)
        w->cover[r->born > 1 ? SIM_PART_joined_late : SIM_PART_sleeper]++;
    sim_trace(w, SIM_TR_RETURN, r->host, r->job, r->index, g->next, session);
    sim_part_go_on(w, r);
}

void sim_part_detach(sim_world *w, sim_rank *r)
{
    (void)w;
    r->giver->waiting = r->giver->offered = SIM_NONE;
}

/* Every live rank has had its answers of the calm. */
static bool calm_enough(const sim_world *w, uint32_t job)
{
    for (uint32_t k = 0; k < w->job[job].ranks; k++) {
        const sim_rank *r = &w->job[job].rank[k];
        if (!w->host[r->host].gone &&
            (r->session == UINT32_MAX || r->giver->calm_answers < sim_calm_ops(w->job[job].plan)))
            return false;
    }
    return true;
}

bool sim_part_done(const sim_world *w, const sim_rank *r)
{
    const sim_part_plan *p = sim_part_plan_of(w, r);
    if (w->host[r->host].gone)
        return true;
    if (r->session == UINT32_MAX)
        return r->dead && !r->planned_return;
    if (r->out)
        return false;
    if (w->calming)
        return calm_enough(w, r->job);
    return p->style[r->index] == SIM_SLEEPER || r->giver->steps >= p->steps;
}

ut_ns sim_part_due(const sim_world *w, const sim_rank *r, const sim_ask *ask)
{
    bool taken = ask->slot != SIM_NONE && (r->giver->gift[ask->slot].takes || sim_part_blind(w));
    return taken && ask->deadline && ask->deadline < UT_NEVER - GRACE ? ask->deadline + GRACE : ask->deadline;
}

static ut_ns compute_time(sim_world *w, const sim_rank *r)
{
    const sim_job_plan *j = &w->plan.job[r->job];
    ut_ns begins = (r->giver->steps + 1) * j->part.period;
    if (j->part.period && !w->calming)
        return UT_MAX2(begins + j->part.late[r->index], w->now) - w->now;
    ut_ns in = sim_between(&w->rng_trainer, j->compute_min, j->compute_max);
    if (w->faults)
        in += j->part.late[r->index];
    return in;
}

static void come_back(sim_world *w, sim_rank *r, ut_ns in)
{
    if (r->ready_pending)
        return;
    r->ready_pending = true;
    sim_push(w, w->now + in, SIM_EV_READY, r->job, r->index, r->born, 0, NULL);
}

/* ---- calls ---- */

/* A new contribution in a free buffer. */
static uint32_t compose(sim_world *w, sim_rank *r, bool sticky)
{
    sim_giver *g = r->giver;
    const sim_part_plan *p = sim_part_plan_of(w, r);
    uint32_t buffer = 0;
    while (buffer < SIM_BUFFERS && g->buffer[buffer] != SIM_NONE)
        buffer++;
    if (buffer == SIM_BUFFERS && sim_part_blind(w))
        buffer = 0;
    if (buffer == SIM_BUFFERS)
        SIM_PART_FAIL(w, "O13 slots", r,
                      "all buffers are the engine's; taken %" PRIu64 ", freed %" PRIu64 ", contributions %u, %u and %u",
                      r->completions->taken, r->completions->freed, g->buffer[0], g->buffer[1], g->buffer[2]);
    if ((g->gifts & (g->gifts - 1)) == 0) {
        g->gift = realloc(g->gift, (g->gifts ? 2 * g->gifts : 1) * sizeof *g->gift);
        assert(g->gift);
    }
    uint32_t number = g->gifts++;
    g->gift[number] = (sim_gift){.state = SIM_OFFERED, .buffer = (uint8_t)buffer, .sticky = sticky};
    g->buffer[buffer] = number;
    sim_gift_code code = sim_gift_code_of(w, r->job);
    sim_gift_fill(&code, r->index, number, r->arena + buffer_at(p, buffer), p->count);
    return number;
}

static ut_ns usual_time(const sim_world *w, const sim_rank *r)
{
    return w->calming ? CALM_DEADLINE : sim_part_plan_of(w, r)->deadline;
}

static void submit(sim_world *w, sim_rank *r, uint8_t flags, uint64_t wanted, ut_ns deadline)
{
    sim_host *h = &w->host[r->host];
    sim_giver *g = r->giver;
    const sim_part_plan *p = sim_part_plan_of(w, r);
    uint64_t dst = buffer_at(p, SIM_BUFFERS);
    memset(r->arena + dst, FILL_BYTE, bucket_bytes(p));
    sim_ask ask = {.submitted = w->now, .slot = SIM_NONE};
    uint64_t src = dst;
    if (flags & UT_SUBMIT_GIVE) {
        uint32_t number = compose(w, r, (flags & UT_SUBMIT_STICKY) != 0);
        g->gift[number].call = g->calls;
        g->gift[number].hurried = deadline < usual_time(w, r);
        g->offered = number;
        g->composing = g->waiting != SIM_NONE;
        flags |= g->composing ? UT_SUBMIT_REPLACE : 0;
        src = buffer_at(p, g->gift[number].buffer);
        ask.slot = number;
    }
    g->results_then = r->completions->results;
    ut_ns until = deadline == UT_NEVER ? UT_NEVER : sim_local(w, h) + deadline;
    ask.deadline = flags & UT_SUBMIT_NOWAIT ? 0 : until;
    ask.entry = (ut_submission){.op_seq = g->calls++,
                                .src = src,
                                .dst = dst,
                                .count = p->count,
                                .deadline_ns = until,
                                .dtype = p->dtype,
                                .redop = p->redop,
                                .mode = p->mode,
                                .flags = flags | (p->world ? UT_SUBMIT_WORLD : 0),
                                .wanted = wanted,
                                .oldest_step = flags & UT_SUBMIT_GIVE ? g->steps : 0,
                                .newest_step = flags & UT_SUBMIT_GIVE ? g->steps : 0};
    if (p->wire && (flags & UT_SUBMIT_GIVE)) {
        ask.entry.collective = UT_ALLREDUCE_QUANT;
        ask.entry.gift_forms = p->wire;
        ask.entry.rounding = feeds(w, r);
        ask.entry.gift_residual = feeds(w, r) ? (uint32_t)(buffer_at(p, SIM_RESIDUAL) / UT_GIFT_RESIDUAL + 1) : 0;
    }
    if (ut_ring_submit(r->submissions, r->completions, &ask.entry))
        SIM_PART_FAIL(w, "submit", r, "the ring is full with %u out", r->out);
    sim_trace(w, SIM_TR_SUBMIT, r->host, r->job, r->index, ask.entry.op_seq, flags);
    r->ask[r->out++] = ask;
    r->rung = true;
    sim_host_readable(w, h);
}

static void call(sim_world *w, sim_rank *r)
{
    sim_giver *g = r->giver;
    const sim_part_plan *p = sim_part_plan_of(w, r);
    sim_rng *rng = &w->rng_trainer;
    uint8_t style = w->calming ? SIM_EAGER : p->style[r->index];
    ut_ns deadline = usual_time(w, r);
    if (w->faults && !w->plan.faultless && sim_chance(rng, 60000)) {
        deadline = sim_octaves(rng, UT_US, p->deadline);
        w->cover[SIM_PART_short_deadline]++;
    }
    w->cover[SIM_PART_bounded + p->mode - UT_BOUNDED]++;
    w->cover[p->redop != UT_AVG ? SIM_redop_sum : p->world ? SIM_PART_world_divisor : SIM_PART_contributors_divisor]++;
    g->steps++;
    if (p->period && !w->calming)
        sim_part_op_of(w, r->job, w->plan.job[r->job].base + g->steps - 1)->called[r->index] = w->now;
    if (style == SIM_EAGER) {
        submit(w, r, UT_SUBMIT_GIVE, g->next, deadline);
        return;
    }
    uint64_t pick = style == SIM_READER ? 60 + sim_below(rng, 40) : sim_below(rng, 100);
    uint8_t sticky = style == SIM_STICKY ? UT_SUBMIT_STICKY : 0;
    if (pick < 30)
        submit(w, r, UT_SUBMIT_GIVE | UT_SUBMIT_NOWAIT | sticky, UT_NEVER, deadline);
    else if (pick < 60)
        submit(w, r, UT_SUBMIT_GIVE | UT_SUBMIT_NOWAIT | sticky, g->next, deadline);
    else
        submit(w, r, pick < 80 ? UT_SUBMIT_NOWAIT : 0, g->next, deadline);
    w->cover[SIM_PART_read] += pick >= 60;
}

void sim_part_go_on(sim_world *w, sim_rank *r)
{
    const sim_host *h = &w->host[r->host];
    const sim_part_plan *p = sim_part_plan_of(w, r);
    if (r->session == UINT32_MAX || r->ready_pending || r->out)
        return;
    if (w->calming ? calm_enough(w, r->job) : p->style[r->index] == SIM_SLEEPER || r->giver->steps >= p->steps)
        return;
    ut_ns in = compute_time(w, r);
    if (r->giver->calm_answers >
        sim_calm_ops(&w->plan.job[r->job])) /* it goes on for the sake of those who have no answer yet */
        in += 20 * UT_MS;
    come_back(w, r, h->paused ? h->resumes - w->now + UT_US : in);
}

/* SIM_EV_READY. */
void sim_part_ready(sim_world *w, sim_rank *r)
{
    const sim_part_plan *p = sim_part_plan_of(w, r);
    r->ready_pending = false;
    if (w->host[r->host].paused || r->out ||
        (w->calming ? calm_enough(w, r->job) : p->style[r->index] == SIM_SLEEPER || r->giver->steps >= p->steps))
        sim_part_go_on(w, r);
    else
        call(w, r);
}

/* ---- what the engine makes of it ---- */

void sim_part_offer(sim_world *w, sim_rank *r)
{
    sim_giver *g = r->giver;
    const sim_job *job = &w->job[r->job];
    if (g->offered == SIM_NONE)
        return;
    const ut_submission *e = &r->ask[0].entry;
    sim_gift *gift = &g->gift[g->offered];
    bool at_once = e->flags & UT_SUBMIT_NOWAIT;
    gift->given_for = at_once ? job->part->next[job->index_of[r->host]] : e->wanted;
    gift->arrived = at_once ? UT_NEVER : e->wanted;
    if (g->waiting != SIM_NONE && !gift->sticky) {
        gift->given_for = UT_MIN2(gift->given_for, g->gift[g->waiting].given_for);
        gift->arrived = UT_MAX2(gift->arrived, g->gift[g->waiting].arrived);
    }
}

/* Accepted: it lies in the slot, if no op has taken it at once. */
void sim_part_settle(sim_world *w, sim_rank *r)
{
    sim_giver *g = r->giver;
    if (g->offered == SIM_NONE || (r->out && !r->ask[0].taken))
        return;
    sim_gift *gift = &g->gift[g->offered];
    if (g->composing && g->waiting == SIM_NONE && !sim_part_blind(w))
        SIM_PART_FAIL(w, "O13 slots", r, "call %" PRIu64 " replaced what an op had taken already", gift->call);
    if (g->waiting != SIM_NONE) {
        w->cover[SIM_PART_replaced]++;
        g->gift[g->waiting].state = g->gift[g->waiting].takes ? SIM_TAKEN : SIM_REPLACED;
    }
    if (gift->state == SIM_OFFERED)
        gift->state = SIM_WAITING;
    g->waiting = gift->state == SIM_WAITING ? g->offered : SIM_NONE;
    g->offered = SIM_NONE;
}

static void check_arena(sim_world *w, const sim_rank *r, bool untouched)
{
    const sim_part_plan *p = sim_part_plan_of(w, r);
    uint64_t bytes = bucket_bytes(p);
    for (uint32_t k = 0; k < SIM_REGIONS; k++) {
        uint64_t from = buffer_at(p, k);
        for (uint64_t i = k * region(p); i < (k + 1) * region(p); i++) {
            bool inside = i >= from && i < from + bytes;
            if (inside && (k < SIM_RESULT || (k == SIM_RESULT && !untouched) || (k == SIM_RESIDUAL && feeds(w, r)))) {
                i = from + bytes - 1;
                continue;
            }
            if (r->arena[i] != (inside && k == SIM_RESULT ? FILL_BYTE : MARGIN_BYTE))
                SIM_PART_FAIL(w, "O5 bounded memory", r, "byte %" PRIu64 " of the arena was written", i);
        }
    }
}

/* What rounding took is less than a step of the largest that a rank gives, or the ranks of a host together. */
static void check_residual(sim_world *w, const sim_rank *r)
{
    const sim_part_plan *p = sim_part_plan_of(w, r);
    const float *left = (const float *)(const void *)(r->arena + buffer_at(p, SIM_RESIDUAL));
    const float code = (p->wire & 15) == UT_QUANT_INT16 ? 32767 : 127;
    const float most = (float)sim_gift_most(p->wire) / code * 17 / 16;
    for (uint64_t i = 0; feeds(w, r) && i < p->count; i++)
        if (!(left[i] <= most && left[i] >= -most))
            SIM_PART_FAIL(w, "O15 nothing lost", r, "element %" PRIu64 " of its residual is %g, of %g at most", i,
                          (double)left[i], (double)most);
}

/* What was given comes back: at a deadline, or because an op was quicker. */
static void take_back(sim_giver *g, uint32_t number, uint8_t state)
{
    g->gift[number].state = state;
    if (g->offered == number)
        g->offered = SIM_NONE;
    if (g->waiting == number)
        g->waiting = SIM_NONE;
}

/* INSUFFICIENT at the deadline: nothing lies in the slot any more, and the caller has its own value. */
static void check_deadline(sim_world *w, sim_rank *r, const sim_ask *ask, const ut_receipt *receipt)
{
    sim_giver *g = r->giver;
    const sim_part_plan *p = sim_part_plan_of(w, r);
    bool gave = ask->entry.flags & UT_SUBMIT_GIVE;
    if (ask->entry.flags & UT_SUBMIT_NOWAIT || sim_local(w, &w->host[r->host]) < ask->deadline)
        SIM_PART_FAIL(w, "O1 deadline", r, "call %" PRIu64 " was given up before its deadline", ask->entry.op_seq);
    if (receipt->kept)
        SIM_PART_FAIL(w, "O13 slots", r, "call %" PRIu64 " keeps what it takes back", ask->entry.op_seq);
    check_arena(w, r, !gave);
    w->cover[SIM_PART_insufficient]++;
    if (!gave)
        return;
    if (memcmp(r->arena + ask->entry.dst, r->arena + ask->entry.src, bucket_bytes(p)) != 0)
        SIM_PART_FAIL(w, "O2 fingerprint", r, "call %" PRIu64 " got another value back than its own",
                      ask->entry.op_seq);
    sim_part_settle(w, r); /* with what it had replaced it goes */
    if (g->gift[ask->slot].state != SIM_TAKEN) {
        w->cover[SIM_PART_taken_back]++;
        take_back(g, (uint32_t)ask->slot, SIM_BACK);
    }
}

static void check_answer(sim_world *w, sim_rank *r, const sim_ask *ask, const ut_receipt *receipt)
{
    sim_giver *g = r->giver;
    const ut_submission *e = &ask->entry;
    bool gave = e->flags & UT_SUBMIT_GIVE, result = receipt->status == UT_COMPLETE || receipt->status == UT_PARTIAL;
    /* INSUFFICIENT may be an op's result, or the end of waiting for one. */
    bool gave_up = receipt->status == UT_INSUFFICIENT && receipt->stage_end[1] == UT_END_NONE;
    if (receipt->status == UT_OVERTAKEN) {
        if (!g->composing || !(e->flags & UT_SUBMIT_REPLACE) || (g->waiting != SIM_NONE))
            SIM_PART_FAIL(w, "O13 slots", r, "call %" PRIu64 " was overtaken, and what it was to replace lies there",
                          e->op_seq);
        take_back(g, (uint32_t)ask->slot, SIM_REFUSED);
        w->cover[SIM_PART_overtaken]++;
    } else if (gave && receipt->status != UT_FAILED && !gave_up) {
        sim_part_settle(w, r);
        bool lies = g->gift[ask->slot].state == SIM_WAITING || g->gift[ask->slot].op > receipt->op_seq;
        if (!g->gift[ask->slot].sticky && receipt->kept != lies && receipt->status != UT_EMPTY)
            SIM_PART_FAIL(w, "O13 slots", r, "call %" PRIu64 ", contribution %" PRIu64 ": kept is %u, state %u",
                          e->op_seq, ask->slot, receipt->kept, g->gift[ask->slot].state);
        w->cover[SIM_PART_kept] += lies;
    }
    if (receipt->status == UT_EMPTY || receipt->status == UT_OVERTAKEN) {
        w->cover[SIM_PART_empty_answer] += receipt->status == UT_EMPTY;
        if (receipt->status == UT_EMPTY && !(e->flags & UT_SUBMIT_NOWAIT) &&
            sim_local(w, &w->host[r->host]) < ask->deadline)
            SIM_PART_FAIL(w, "O1 deadline", r, "call %" PRIu64 " is told that there is nothing, and would wait",
                          e->op_seq);
        /* A receipt of no op names the one that comes next. An op takes the memory of the fourth before it, whose
         * result is gone then, if all in between have failed. */
        bool held = receipt->op_seq <= g->results_then - 1 + UT_OPS_MAX;
        if (receipt->status == UT_EMPTY && g->results_then > e->wanted && held)
            SIM_PART_FAIL(w, "O13 slots", r,
                          "call %" PRIu64 " is told that there is no op from %" PRIu64 " on; %" PRIu64 " has ended",
                          e->op_seq, e->wanted, g->results_then - 1);
        check_arena(w, r, true);
        return;
    }
    if (gave_up) {
        check_deadline(w, r, ask, receipt);
        return;
    }
    if (receipt->status == UT_FAILED && gave)
        sim_part_settle(w, r);
    if (receipt->status == UT_FAILED && gave && !receipt->kept && g->gift[ask->slot].state != SIM_TAKEN)
        take_back(g, (uint32_t)ask->slot, SIM_BACK);
    check_arena(w, r, false);
    check_residual(w, r);
    sim_part_check(w, r, ask, receipt);
    if (result || receipt->op_seq >= g->next)
        g->next = UT_MAX2(g->next, receipt->op_seq + 1);
    w->cover[SIM_PART_answered_at_once] += g->results_then > e->wanted;
    w->ops++;
}

/* For the study of skew: what this step cost the rank. */
static void note_latency(sim_world *w, const sim_rank *r, const sim_ask *ask)
{
    sim_part_op *op = sim_part_op_of(w, r->job, w->plan.job[r->job].base + r->giver->steps - 1);
    op->waited_ns += w->now - ask->submitted;
    op->answers++;
    if (ask->submitted <= op->first || w->plan.job[r->job].options.policy == UT_POLICY_FULL)
        op->last = w->now;
}

void sim_part_collect(sim_world *w, sim_rank *r)
{
    ut_receipt receipt;
    uint32_t got = 0;
    for (; ut_ring_take_completion(r->submissions, r->completions, &receipt); got++) {
        if (!r->out || receipt.call_seq != r->ask[0].entry.op_seq)
            SIM_PART_FAIL(w, "O1 deadline", r, "an answer to call %" PRIu64 ", which it does not wait for",
                          receipt.call_seq);
        sim_ask ask = r->ask[0];
        sim_trace(w, SIM_TR_RECEIPT, r->host, r->job, r->index, receipt.op_seq, receipt.status);
        w->receipts++;
        if (w->plan.hostile)
            sim_part_check_among_liars(w, r, &receipt);
        if (!sim_part_blind(w))
            check_answer(w, r, &ask, &receipt);
        else if (ask.slot != SIM_NONE && receipt.kept)
            sim_part_settle(w, r);
        else if (ask.slot != SIM_NONE)
            take_back(r->giver, (uint32_t)ask.slot, SIM_BACK);
        r->out = 0;
        r->giver->offered = SIM_NONE;
        if (w->calming)
            r->giver->calm_answers++;
        else if (sim_part_plan_of(w, r)->period)
            note_latency(w, r, &ask);
    }
    if (got == 0)
        SIM_PART_FAIL(w, "wake-up", r, "was woken for nothing, with %u out", r->out);
    sim_part_go_on(w, r);
}

void sim_part_free(sim_job *job)
{
    for (uint32_t k = 0; k < job->ranks; k++)
        if (job->rank[k].giver) {
            free(job->rank[k].giver->gift);
            free(job->rank[k].giver);
        }
    if (job->part)
        free(job->part->op);
    free(job->part);
}
