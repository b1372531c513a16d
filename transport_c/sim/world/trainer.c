/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer: computes, writes a bucket into its arena, submits, takes receipts in order. It does what a real one may do
 * and what hurts a careless engine: submits ahead, changes its buffers the moment it has the receipt, and when it dies
 * its memory is gone at once. Around each bucket in the arena lie bytes that must not change.
 */
#include "sim/oracles/oracles.h"
#include "sim/quant/quant.h"
#include "sim/sparse/sparse.h"
#include "sim/world/liar.h"
#include "sim/world/moves.h"
#include "sim/world/seats.h"

#include "core/op/op.h"
#include "kernels/block.h"

#include <stdlib.h>

enum { MARGIN = 64, MARGIN_BYTE = 0x5a, FILL_BYTE = 0xee, SPENT_BYTE = 0xa5 };

static sim_host *host_of(sim_world *w, const sim_rank *r)
{
    return &w->host[r->host];
}

static uint32_t ops_now(const sim_world *w, const sim_rank *r)
{
    const sim_job_plan *j = &w->plan.job[r->job];
    return w->calming ? j->ops + sim_calm_ops(j) : j->ops;
}

static bool done(const sim_world *w, const sim_rank *r)
{
    if (r->session == UINT32_MAX)
        return r->dead && !r->planned_return;
    return r->out == 0 && r->next >= ops_now(w, r);
}

static void be_ready(sim_world *w, sim_rank *r, ut_ns in)
{
    if (r->ready_pending)
        return;
    r->ready_pending = true;
    sim_push(w, w->now + in, SIM_EV_READY, r->job, r->index, r->born, 0, NULL);
}

static ut_ns compute_time(sim_world *w, const sim_rank *r)
{
    const sim_job_plan *j = &w->plan.job[r->job];
    ut_ns in = sim_between(&w->rng_trainer, j->compute_min, j->compute_max);
    if (w->plan.odd.host == r->host)
        in += w->plan.odd.late;
    if (j->skew && sim_chance(&w->rng_trainer, 150000))
        in += sim_below(&w->rng_trainer, j->skew);
    return in;
}

uint64_t sim_truly_called(const sim_world *w, uint32_t job, uint64_t op_seq)
{
    const sim_job_plan *j = &w->plan.job[job];
    uint32_t called = j->ops + sim_calm_ops(j);
    if (!w->plan.hostile || sim_is_partial(j))
        return op_seq;
    while (called > 0 && w->job[job].submitted[called - 1] == 0)
        called--;
    return UT_MIN2(op_seq, j->base + called);
}

static uint64_t slot_bytes(const sim_job_plan *j)
{
    return (2 * (j->bucket_max + MARGIN + 64) + 2 * MARGIN + j->sparse_room + 63) / 64 * 64;
}

/* In a light world all of them average zeros, in one and the same memory; but sparse entries are each rank's own. */
static bool shares_arena(const sim_world *w)
{
    return w->plan.light && !sim_is_sparse(&w->plan.job[0].op[0]);
}

static uint8_t *arena_for(sim_world *w, const sim_rank *r)
{
    uint64_t most = 0;
    if (!shares_arena(w))
        return sim_alloc(r->arena_bytes);
    for (uint32_t j = 0; j < w->plan.jobs; j++)
        most = UT_MAX2(most, slot_bytes(&w->plan.job[j]) * w->plan.job[j].ahead);
    w->zeros = w->zeros ? w->zeros : sim_alloc(most);
    return w->zeros;
}

static void attach(sim_world *w, sim_rank *r)
{
    sim_host *h = host_of(w, r);
    const sim_job_plan *j = &w->plan.job[r->job];
    r->slot_bytes = slot_bytes(j);
    r->arena_bytes = r->slot_bytes * j->ahead;
    r->arena = arena_for(w, r);
    r->submissions = sim_alloc(sizeof *r->submissions);
    r->completions = sim_alloc(sizeof *r->completions);
    const sim_job *job = &w->job[r->job];
    uint32_t place = r->index - (uint32_t)__builtin_ctzll(job->host_ranks[job->index_of[r->host]]);
    ut_session_memory memory = {r->submissions, r->completions, r->arena, r->arena_bytes, place, 0};
    uint64_t seq = sim_truly_called(w, r->job, UT_MAX2(ut_engine_next_op_seq(h->engine, r->job), j->base));
    uint32_t session;
    int error = ut_engine_session_add(h->engine, r->job, &memory, seq, &session);
    if (error || session >= UT_SESSIONS_MAX || h->by_session[session])
        sim_fail(w, "attach", r->host, "rank %u of job %u gets error %d, session %u", r->index, r->job, error, session);
    if (seq - j->base > j->ops + sim_calm_ops(j))
        sim_fail(w, "attach", r->host, "the job's next op is %" PRIu64 ", which nobody has ever called", seq);
    h->by_session[session] = r;
    h->sessions = UT_MAX2(h->sessions, session + 1);
    r->session = session;
    r->sign = j->seats ? sim_seats_sign(w, r->job, job->index_of[r->host], h->life) : r->index;
    r->next = (uint32_t)(seq - j->base);
    r->out = 0;
    r->dead = r->planned_return = r->rung = r->ready_pending = false;
    r->taken_seen = 0;
    r->born++;
    sim_trace(w, SIM_TR_RETURN, r->host, r->job, r->index, seq, session);
    be_ready(w, r, compute_time(w, r));
}

void sim_trainer_detach(sim_world *w, sim_rank *r, bool tell_engine)
{
    sim_host *h = host_of(w, r);
    if (r->session == UINT32_MAX)
        return;
    if (tell_engine) {
        sim_host_look(w, h); /* what it did with this rank, it did before */
        ut_engine_session_remove(h->engine, r->session, sim_local(w, h));
        while (!ut_engine_has_let_go(h->engine, r->job))
            ut_engine_tick(h->engine, sim_local(w, h));
        h->sessions_removed = true;
    }
    if (sim_kind_of(w, r)->detach)
        sim_kind_of(w, r)->detach(w, r);
    h->by_session[r->session] = NULL;
    r->session = UINT32_MAX;
    r->out = 0;
    r->born++;
    r->ready_pending = false;
    if (!shares_arena(w))
        free(r->arena);
    free(r->submissions);
    free(r->completions);
    r->arena = NULL;
    r->submissions = NULL;
    r->completions = NULL;
}

/* The op as this rank calls it: as planned, or with the one field different. */
static sim_op as_called(const sim_op *op, uint32_t rank)
{
    sim_op as = *op;
    if (op->odd_rank != rank)
        return as;
    switch (op->odd_field) {
    case UT_FIELD_DTYPE:
        as.dtype = op->dtype != UT_FLOAT32 ? UT_FLOAT32 : op->mode == UT_BEST_EFFORT ? UT_FLOAT64 : UT_INT32;
        as.nonfinite = false;
        if (ut_dtype_bytes(as.dtype) > ut_dtype_bytes(op->dtype))
            as.count = op->count / (ut_dtype_bytes(as.dtype) / ut_dtype_bytes(op->dtype));
        break;
    case UT_FIELD_REDOP:
        as.redop = op->redop == UT_SUM ? UT_AVG : UT_SUM;
        break;
    case UT_FIELD_COUNT:
        as.count = op->count ? op->count - UT_MAX2(op->group, 1) : UT_MAX2(op->group, 1);
        break;
    case UT_FIELD_AGREE:
        as.agree = !op->agree;
        break;
    case UT_FIELD_GROUP:
        as.group = 1;
        break;
    case UT_FIELD_FORM:
        as.form = op->form ^ 1;
        break;
    case UT_FIELD_DOWN:
        as.down = op->down ? 0 : UT_VALUE_INT8;
        break;
    case UT_FIELD_HINT:
        as.hint_off = 1;
        break;
    case UT_FIELD_WIRE: /* dense, or in other forms */
        as.wire = op->wire == 0x55 ? 0 : 0x55;
        break;
    default:
        as.mode = op->mode == UT_BOUNDED ? UT_RELIABLE : UT_BOUNDED;
    }
    return as;
}

static void count_kind(sim_world *w, const sim_rank *r, const sim_op *op, bool in_place)
{
    static const uint8_t redops[] = {0, SIM_redop_sum, SIM_redop_avg, SIM_redop_min, SIM_redop_max, SIM_redop_prod};
    static const uint8_t dtypes[] = {0,
                                     SIM_dtype_float32,
                                     SIM_dtype_float64,
                                     SIM_dtype_float16,
                                     SIM_dtype_bfloat16,
                                     SIM_dtype_int32,
                                     SIM_dtype_int64};
    static const uint8_t modes[] = {0, SIM_mode_bounded, SIM_mode_best_effort, SIM_mode_reliable};
    static const uint8_t algorithms[] = {0, SIM_algorithm_tar, SIM_algorithm_ring, SIM_algorithm_bcube,
                                         SIM_algorithm_ps};
    const sim_job_plan *j = &w->plan.job[r->job];
    w->cover[redops[op->redop]]++;
    w->cover[op->dtype == UT_BYTES ? (unsigned)SIM_barrier : dtypes[op->dtype]]++;
    static const uint8_t others[] = {0, SIM_reduce_scatter, SIM_all_gather, SIM_broadcast, SIM_all_to_all};
    if (op->collective != UT_ALLREDUCE && op->collective != UT_BARRIER)
        w->cover[others[op->collective]]++;
    w->cover[modes[op->mode]]++;
    w->cover[algorithms[sim_algorithm(j)]]++;
    w->cover[SIM_in_place] += in_place;
    w->cover[SIM_empty_bucket] += op->count == 0;
    w->cover[SIM_fewer_elements_than_hosts] += op->count > 0 && op->count < j->hosts;
    w->cover[SIM_nonfinite] += op->nonfinite;
    w->cover[SIM_submitted_ahead] += r->out > 0;
    w->cover[SIM_several_jobs] += w->plan.jobs > 1;
    w->cover[SIM_several_local_ranks] += j->local[w->job[r->job].index_of[r->host]] > 1;
    w->cover[SIM_desync] += op->odd_rank == r->index;
    w->cover[SIM_tight_deadline] += op->deadline < 200 * UT_MS && op->deadline > UT_US;
    w->cover[SIM_past_deadline] += op->deadline <= UT_US;
}

static void ring(sim_world *w, sim_rank *r)
{
    r->rung = true;
    sim_host_readable(w, host_of(w, r));
}

/* A request that must be refused, and must not hurt what follows it. Returns whether it has used up the op's number:
 * all do but those that have the number wrong. */
static bool submit_badly(sim_world *w, sim_rank *r, const sim_ask *good)
{
    sim_rng *rng = &w->rng_trainer;
    sim_ask bad = *good;
    ut_submission *e = &bad.entry;
    uint64_t how = sim_below(rng, 7);
    switch (how) {
    case 0:
        e->dtype = sim_chance(rng, 500000) ? 0 : UT_DTYPES_END;
        break;
    case 1:
        e->redop = sim_chance(rng, 500000) ? 0 : UT_REDOPS_END;
        break;
    case 2:
        e->mode = sim_chance(rng, 500000) ? 0 : UT_MODES_END;
        break;
    case 3:
        e->count = sim_chance(rng, 500000) ? UINT64_MAX / 2 : r->arena_bytes;
        break;
    case 4:
        e->src = sim_chance(rng, 500000) ? UINT64_MAX - 63 : r->arena_bytes + 64;
        break;
    case 5:
        e->dst = sim_chance(rng, 500000) ? UINT64_MAX - 63 : r->arena_bytes + 64;
        break;
    default:
        e->op_seq += sim_chance(rng, 500000) ? 1 : UINT64_MAX;
    }
    bad.expect_error = 1;
    if (ut_ring_submit(r->submissions, r->completions, e))
        sim_fail(w, "submit", r->host, "rank %u of job %u finds its ring full with %u out", r->index, r->job, r->out);
    r->ask[r->out++] = bad;
    w->cover[SIM_bad_submission]++;
    return how < 6;
}

/* A part of the arena that no op which is out uses: ops may end in another order than they began. */
static uint64_t free_slot(const sim_rank *r)
{
    for (uint32_t slot = 0;; slot++) {
        bool used = false;
        for (uint32_t i = 0; i < r->out; i++)
            used = used || r->ask[i].slot == slot * r->slot_bytes;
        if (!used)
            return slot * r->slot_bytes;
    }
}

/* Before, between and behind the two buffers of |bytes|, which may be one. */
static void lay_margins(sim_rank *r, uint64_t slot, uint64_t src, uint64_t dst, uint64_t bytes)
{
    memset(r->arena + slot, MARGIN_BYTE, src - slot);
    if (dst > src)
        memset(r->arena + src + bytes, MARGIN_BYTE, dst - src - bytes);
    memset(r->arena + dst + bytes, MARGIN_BYTE, slot + r->slot_bytes - dst - bytes);
}

/* Writes what the rank has, and round it what must not change. */
static void fill(sim_world *w, sim_rank *r, const sim_ask *ask, const sim_layout *layout)
{
    const sim_op *op = &ask->as;
    uint64_t bytes = op->count * ut_dtype_bytes(op->dtype), src = ask->entry.src, dst = ask->entry.dst;
    sim_code code = sim_code_of(w, r->job, ask->entry.op_seq, op);
    bool all_written = layout->src_bytes == bytes && layout->dst_bytes == bytes && op->dtype != UT_BYTES;
    lay_margins(r, ask->slot, src, dst, all_written ? bytes : 0);
    if (op->dtype != UT_BYTES)
        sim_code_fill(&code, r->sign, r->arena + src, op->count);
    if (layout->src_bytes < bytes) { /* of the rest it has nothing */
        memset(r->arena + src, MARGIN_BYTE, layout->src_from);
        memset(r->arena + src + layout->src_from + layout->src_bytes, MARGIN_BYTE,
               bytes - layout->src_from - layout->src_bytes);
    }
    if (src != dst)
        memset(r->arena + dst + layout->dst_from, FILL_BYTE, layout->dst_bytes);
}

static void submit(sim_world *w, sim_rank *r)
{
    sim_host *h = host_of(w, r);
    sim_job *job = &w->job[r->job];
    const sim_job_plan *j = job->plan;
    sim_rng *rng = &w->rng_trainer;
    sim_op op = as_called(&j->op[r->next], r->index);
    size_t element = ut_dtype_bytes(op.dtype);
    uint64_t bytes = op.count * element, slot = free_slot(r);
    sim_layout layout = sim_layout_of(job, job->index_of[r->host], &op);
    bool in_place = (sim_chance(rng, 500000) && !layout.apart) || layout.in_place;
    uint64_t src = slot + MARGIN + sim_below(rng, 64 / element) * element;
    uint64_t dst =
        in_place ? src : src + j->bucket_max / 64 * 64 + 64 + MARGIN + sim_below(rng, 64 / element) * element;
    src = src / element * element;
    dst = w->plan.light ? src : dst / element * element;
    uint64_t seq = j->base + r->next;
    if (j->hadamard_then && r->next == j->hadamard_at)
        job->epochs.wished.hadamard = j->hadamard_then;
    if (!w->plan.light && !sim_is_sparse(&op) && !sim_is_quant(&op))
        fill(w, r, &(sim_ask){.slot = slot, .as = op, .entry = {.op_seq = seq, .src = src, .dst = dst}}, &layout);
    src += layout.src_from;
    dst += layout.dst_from;
    sim_ask ask = {.op = r->next, .as = op, .submitted = w->now, .wakeups = h->wakeups, .slot = slot};
    ask.deadline = op.deadline == UT_NEVER ? UT_NEVER : sim_local(w, h) + op.deadline;
    ask.entry = (ut_submission){.op_seq = seq,
                                .src = src,
                                .dst = dst,
                                .count = op.collective == UT_BARRIER ? 0 : op.count,
                                .deadline_ns = ask.deadline,
                                .dtype = op.dtype,
                                .redop = ut_op_reduces(op.collective) ? op.redop : 0,
                                .collective = op.collective,
                                .mode = op.mode,
                                .flags = op.agree ? UT_SUBMIT_AGREE : 0};
    if (op.collective == UT_BROADCAST)
        ask.entry.alike.root = op.root;
    else if (op.collective == UT_BARRIER)
        ask.entry.alike.note = op.count;
    else if (sim_is_sparse(&op))
        sim_sparse_ask(w, r, &ask);
    else if (sim_is_quant(&op))
        sim_quant_ask(w, r, &ask);
    if (w->faults && r->out + 1 < SIM_AHEAD && sim_chance(rng, w->plan.bad_submission) &&
        op.collective == UT_ALLREDUCE && submit_badly(w, r, &ask)) {
        r->next++;
        ring(w, r);
        return;
    }
    if (ut_ring_submit(r->submissions, r->completions, &ask.entry))
        sim_fail(w, "submit", r->host, "rank %u of job %u finds its ring full with %u out", r->index, r->job, r->out);
    sim_trace(w, SIM_TR_SUBMIT, r->host, r->job, r->index, seq, bytes);
    count_kind(w, r, &op, in_place);
    w->cover[SIM_sequence_wrap_16] += seq == UINT64_C(1) << 16;
    w->cover[SIM_sequence_wrap_32] += seq == UINT64_C(1) << 32;
    w->cover[SIM_clock_wrap_32us] += ask.deadline - op.deadline < UINT64_C(4294967296) * 1000 &&
                                     op.deadline != UT_NEVER && ask.deadline >= UINT64_C(4294967296) * 1000;
    w->cover[SIM_clock_wrap_63] +=
        ask.deadline - op.deadline < UINT64_C(1) << 63 && op.deadline != UT_NEVER && ask.deadline >= UINT64_C(1) << 63;
    job->submitted[r->next] |= sim_bit(r->sign);
    r->ask[r->out++] = ask;
    r->next++;
    ring(w, r);
}

/* Submits if there is an op to submit and room for it, and comes back after computing the next. */
static void go_on(sim_world *w, sim_rank *r)
{
    sim_host *h = host_of(w, r);
    if (r->session == UINT32_MAX || r->ready_pending || r->next >= ops_now(w, r))
        return;
    if (h->paused) { /* the whole host stands still */
        be_ready(w, r, h->resumes - w->now + UT_US);
        return;
    }
    if (r->out >= w->plan.job[r->job].ahead)
        return; /* the next receipt goes on */
    submit(w, r);
    if (r->out < w->plan.job[r->job].ahead)
        be_ready(w, r, compute_time(w, r));
}

static void ready(sim_world *w, sim_rank *r)
{
    r->ready_pending = false;
    go_on(w, r);
}

static void check_margin(sim_world *w, const sim_rank *r, const sim_ask *ask, uint64_t from, uint64_t to)
{
    const ut_submission *e = &ask->entry;
    if (sim_all_bytes(r->arena + from, to - from, MARGIN_BYTE))
        return;
    while (r->arena[from] == MARGIN_BYTE)
        from++;
    sim_fail(w, "O5 bounded memory", r->host,
             "op_seq %" PRIu64 " wrote byte %" PRIu64 " of the arena; src %" PRIu64 ", dst %" PRIu64 ", %" PRIu64
             " elements",
             e->op_seq, from, e->src, e->dst, e->count);
}

/* Nothing outside the result may have changed. */
static void check_arena(sim_world *w, const sim_rank *r, const sim_ask *ask)
{
    const ut_submission *e = &ask->entry;
    uint64_t slot = ask->slot;
    if (sim_is_sparse(&ask->as)) {
        sim_sparse_check_arena(w, r, ask);
        return;
    }
    const sim_job *job = &w->job[r->job];
    sim_layout layout = sim_layout_of(job, job->index_of[r->host], &ask->as);
    /* Before both buffers, between them, and behind both; they may be one, or overlap. */
    bool src_first = e->src <= e->dst;
    uint64_t src_end = e->src + layout.src_bytes, dst_end = e->dst + layout.dst_bytes;
    uint64_t first_end = src_first ? src_end : dst_end, second = src_first ? e->dst : e->src;
    check_margin(w, r, ask, slot, UT_MIN2(e->src, e->dst));
    if (first_end < second)
        check_margin(w, r, ask, first_end, second);
    check_margin(w, r, ask, UT_MAX2(src_end, dst_end), slot + r->slot_bytes);
    if (e->src - layout.src_from == e->dst - layout.dst_from)
        return;
    sim_code code = sim_code_of(w, r->job, e->op_seq, &ask->as);
    size_t element = ut_dtype_bytes(e->dtype);
    uint64_t from = layout.src_from / element, to = from + layout.src_bytes / element;
    if (sim_code_agree(&code, from, to, sim_bit(r->sign), r->arena + e->src - layout.src_from) != to)
        sim_fail(w, "O5 bounded memory", r->host, "op_seq %" PRIu64 " changed its source", e->op_seq);
}

static bool answers(const ut_receipt *receipt, const sim_ask *ask)
{
    bool refusal = receipt->hosts == 0; /* it speaks of no host */
    return ask->taken && ask->entry.op_seq == receipt->op_seq && refusal == (ask->expect_error != 0);
}

/* Ops end in the order of their data and deadlines, so a receipt is found by its number. */
static void take_receipt(sim_world *w, sim_rank *r, const ut_receipt *receipt)
{
    uint32_t at = 0;
    while (at < r->out && !answers(receipt, &r->ask[at]))
        at++;
    if (at == r->out)
        sim_fail(w, "O1 deadline", r->host,
                 "rank %u of job %u got a receipt for op_seq %" PRIu64
                 " (status %u, error %d), which it does not wait for",
                 r->index, r->job, receipt->op_seq, receipt->status, receipt->error);
    sim_ask ask = r->ask[at];
    r->out--;
    memmove(r->ask + at, r->ask + at + 1, (r->out - at) * sizeof *r->ask);
    sim_trace(w, SIM_TR_RECEIPT, r->host, r->job, r->index, receipt->op_seq, receipt->status);
    if (ask.expect_error) {
        if (receipt->status != UT_FAILED || receipt->error == UT_OK)
            sim_fail(w, "submit", r->host, "a bad request for op_seq %" PRIu64 " got status %u, error %d",
                     receipt->op_seq, receipt->status, receipt->error);
        return;
    }
    w->receipts++;
    if (!w->plan.light)
        (sim_is_quant(&ask.as) ? sim_quant_check_arena : check_arena)(w, r, &ask);
    bool told_lies = sim_is_liar(w, r->host) && ask.op < w->plan.job[r->job].ops; /* which it has provoked itself */
    if (!w->plan.evil && !told_lies)
        sim_check_receipt(w, r, &ask, receipt, r->arena + ask.entry.dst);
    if (w->calming && !w->plan.evil && !w->plan.light)
        sim_check_calm(w, r, &ask, receipt);
    /* The buffer is the trainer's again. */
    if (!w->plan.light)
        memset(r->arena + ask.slot, SPENT_BYTE, r->slot_bytes);
}

static void collect(sim_world *w, sim_rank *r)
{
    ut_receipt receipt;
    uint32_t got = 0;
    while (ut_ring_take_completion(r->submissions, r->completions, &receipt)) {
        take_receipt(w, r, &receipt);
        got++;
    }
    if (got == 0)
        sim_fail(w, "wake-up", r->host, "rank %u of job %u was woken for nothing", r->index, r->job);
    be_ready(w, r, compute_time(w, r));
}

static ut_ns due(const sim_world *w, const sim_rank *r, const sim_ask *ask)
{
    (void)w, (void)r;
    return ask->deadline;
}

const sim_kind sim_kind_ordinary = {
    .attach = attach, .done = done, .go_on = go_on, .ready = ready, .collect = collect, .due = due};
