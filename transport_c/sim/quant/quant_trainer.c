/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised submissions: what ranks give, and how it lies in their arenas: contribution and result as in a dense op,
 * the residual at the end of the slot, with bytes around all that must not change.
 */
#include "sim/quant/quant.h"

enum { MARGIN = 64, MARGIN_BYTE = 0x5a, FILL_BYTE = 0xee };

uint64_t sim_quant_room(uint64_t bytes)
{
    return bytes + 2 * MARGIN;
}

sim_quant sim_quant_of(sim_world *w, uint32_t job, uint64_t op_seq, const sim_op *op)
{
    sim_quant q = {.bits = sim_mix(w->seed ^ sim_mix(op_seq << 8 | job)),
                   .ranks = w->job[job].ranks,
                   .code = sim_code_of(w, job, op_seq, op)};
    q.weighed = op->weighed;
    q.pairs = q.ranks > 1 && q.ranks <= 8 && (q.bits & 3) != 0 && !q.weighed;
    return q;
}

uint32_t sim_quant_giver(const sim_quant *q, uint64_t element, uint32_t *ret_other)
{
    const uint32_t one = (uint32_t)(element % q->ranks);
    *ret_other = q->pairs && (element / q->ranks) % 2 ? (one + 1) % q->ranks : one;
    return one;
}

/* Within a quarter of each other, so that no form rounds what one of them gives to nothing; but one rank in some ops
 * has none. */
uint32_t sim_quant_weight(const sim_quant *q, uint32_t rank)
{
    if (!q->weighed)
        return 1;
    if (q->bits >> 8 & 1 && rank == (q->bits >> 16) % q->ranks)
        return 0;
    return (uint32_t)(12 + sim_mix(q->bits ^ rank) % 4) << (q->bits >> 24) % 20;
}

uint64_t sim_quant_weights(const sim_quant *q, uint64_t ranks)
{
    uint64_t sum = 0;
    for (uint64_t rest = ranks; rest; rest &= rest - 1)
        sum += sim_quant_weight(q, (uint32_t)__builtin_ctzll(rest));
    return sum;
}

/* From 0.75 to 1, either sign, times a power of two that is the op's own. */
static float magnitude(const sim_quant *q, uint64_t element, uint32_t rank)
{
    const uint64_t bits = sim_mix(q->bits ^ sim_mix(element << 8 | rank));
    const float size = 0.75f + (float)(bits % 1024) / 4096;
    union {
        uint32_t bits;
        float f;
    } power = {(uint32_t)(127 - 20 + q->bits % 41) << 23};
    /* Both ranks of a pair have the same sign: together they are not nothing. */
    return (sim_mix(q->bits ^ element) & 1 ? size : -size) * power.f;
}

static float value_of(const sim_quant *q, uint32_t rank, uint64_t element)
{
    uint32_t other, one = sim_quant_giver(q, element, &other);
    if (q->code.nonfinite && sim_code_nonfinite(&q->code, element))
        return __builtin_inff();
    return rank == one || rank == other ? magnitude(q, element, rank) : 0;
}

void sim_quant_fill(const sim_quant *q, uint32_t rank, uint64_t from, uint64_t to, float *out)
{
    for (uint64_t i = from; i < to; i++)
        out[i - from] = value_of(q, rank, i);
}

void sim_quant_add(const sim_quant *q, uint32_t rank, uint64_t from, uint64_t to, float *out)
{
    for (uint64_t i = from; i < to; i++)
        out[i - from] += value_of(q, rank, i);
}

float sim_quant_left(float given)
{
    return given - given == 0 ? given / 16 : 3;
}

bool sim_quant_feeds(const sim_job *job, uint32_t host, const sim_op *op)
{
    return op->wire && op->feeds && job->plan->local[host] == 1;
}

static uint64_t residual_at(const sim_rank *r, const sim_ask *ask)
{
    return (ask->slot + r->slot_bytes - MARGIN - ask->as.count * sizeof(float)) / 4 * 4;
}

const float *sim_quant_residual(const sim_rank *r, const sim_ask *ask)
{
    const uint64_t at = ut_submission_residual(&ask->entry);
    return at ? (const float *)(const void *)(r->arena + at - 1) : NULL;
}

static void count_kind(sim_world *w, const sim_rank *r, const sim_op *op)
{
    static const uint16_t forms[] = {SIM_QUANT_int16, SIM_QUANT_int8, SIM_QUANT_int4};
    w->cover[SIM_QUANT_weighed] += op->weighed;
    w->cover[SIM_QUANT_weighed_dense] += op->weighed && !op->wire;
    if (!op->wire)
        return;
    static const uint16_t modes[] = {0, SIM_QUANT_bounded, SIM_QUANT_best_effort, SIM_QUANT_reliable};
    const sim_job *job = &w->job[r->job];
    w->cover[forms[(op->wire & 15) - 4]]++;
    w->cover[modes[op->mode]]++;
    w->cover[SIM_QUANT_finer_answer] += op->wire >> 4 != (op->wire & 15);
    w->cover[op->redop == UT_AVG ? SIM_QUANT_avg : SIM_QUANT_sum]++;
    w->cover[op->nearest ? SIM_QUANT_nearest : SIM_QUANT_at_random]++;
    w->cover[SIM_QUANT_residual] += sim_quant_feeds(job, job->index_of[r->host], op);
    w->cover[SIM_QUANT_agree] += op->agree;
    w->cover[SIM_QUANT_empty] += op->count == 0;
    w->cover[SIM_QUANT_alone] += job->plan->hosts == 1;
    w->cover[SIM_QUANT_several_local] += job->plan->local[job->index_of[r->host]] > 1;
    w->cover[SIM_QUANT_nonfinite] += op->nonfinite;
    w->cover[SIM_QUANT_desync] += op->odd_rank == r->index;
}

void sim_quant_ask(sim_world *w, sim_rank *r, sim_ask *ask)
{
    const sim_op *op = &ask->as;
    ut_submission *e = &ask->entry;
    const sim_job *job = &w->job[r->job];
    sim_quant q = sim_quant_of(w, r->job, e->op_seq, op);
    float *src = (float *)(void *)(r->arena + e->src);
    memset(r->arena + ask->slot, MARGIN_BYTE, r->slot_bytes);
    sim_quant_fill(&q, r->index, 0, op->count, src);
    if (e->dst != e->src)
        memset(r->arena + e->dst, FILL_BYTE, op->count * sizeof *src);
    if (op->wire) {
        e->collective = UT_ALLREDUCE_QUANT;
        e->rounding = op->nearest;
        e->alike.quant.forms = op->wire;
    }
    if (sim_quant_feeds(job, job->index_of[r->host], op)) {
        float *left = (float *)(void *)(r->arena + residual_at(r, ask));
        for (uint64_t i = 0; i < op->count; i++)
            left[i] = sim_quant_left(src[i]);
        e->residual = residual_at(r, ask) + 1;
    }
    if (op->weighed) {
        e->flags |= UT_SUBMIT_WEIGHTED;
        e->residual |= (uint64_t)sim_quant_weight(&q, r->index) << UT_RESIDUAL_BITS;
    }
    count_kind(w, r, op);
}

static void check_margin(sim_world *w, const sim_rank *r, const ut_submission *e, uint64_t from, uint64_t to)
{
    if (from >= to || sim_all_bytes(r->arena + from, to - from, MARGIN_BYTE))
        return;
    while (r->arena[from] == MARGIN_BYTE)
        from++;
    sim_fail(w, "O5 bounded memory", r->host,
             "op_seq %" PRIu64 " wrote byte %" PRIu64 " of the arena; src %" PRIu64 ", dst %" PRIu64 ", %" PRIu64
             " elements",
             e->op_seq, from, e->src, e->dst, e->count);
}

void sim_quant_check_arena(sim_world *w, const sim_rank *r, const sim_ask *ask)
{
    const ut_submission *e = &ask->entry;
    const uint64_t bytes = e->count * sizeof(float), end = ask->slot + r->slot_bytes;
    const uint64_t at = ut_submission_residual(e), left = at ? at - 1 : end, behind = UT_MAX2(e->src, e->dst) + bytes;
    check_margin(w, r, e, ask->slot, UT_MIN2(e->src, e->dst));
    check_margin(w, r, e, UT_MIN2(e->src, e->dst) + bytes, UT_MAX2(e->src, e->dst));
    check_margin(w, r, e, behind, left);
    check_margin(w, r, e, left + bytes, end);
    sim_quant q = sim_quant_of(w, r->job, e->op_seq, &ask->as);
    for (uint64_t i = 0; i < e->count && e->src != e->dst; i++) {
        float want;
        sim_quant_fill(&q, r->index, i, i + 1, &want);
        if (memcmp(&want, r->arena + e->src + 4 * i, 4) != 0)
            sim_fail(w, "O5 bounded memory", r->host, "op_seq %" PRIu64 " changed its source", e->op_seq);
    }
}
