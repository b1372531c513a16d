/* SPDX-License-Identifier: Apache-2.0
 *
 * Sparse submissions: a rank's entries at any four bytes of its part of the arena, and the tensor behind or before
 * them, with bytes around both that must not change.
 */
#include "sim/sparse/sparse.h"

#include <stdlib.h>

enum { MARGIN = 64, MARGIN_BYTE = 0x5a, FILL_BYTE = 0xee };

uint64_t sim_sparse_room(uint64_t bytes)
{
    return 2 * bytes + 8 * MARGIN; /* of single elements an entry is twice as large */
}

/* Of a light world: entries drawn by chance, each of 1; the tensor behind them. */
static uint64_t fill_light(const sim_world *w, const sim_rank *r, const sim_op *op, ut_submission *e)
{
    sim_rng rng = {w->seed ^ (e->op_seq << 32 | r->index << 8 | r->job)};
    uint32_t *names = (uint32_t *)(void *)(r->arena + (e->src = (e->src + 3) & ~UINT64_C(3))), n = 0;
    for (uint32_t i = 0; i < op->count; i++)
        if (sim_chance(&rng, op->sparse_ppm))
            names[n++] = i;
    for (uint32_t i = 0; i < n; i++)
        ((float *)(void *)(names + n))[i] = 1;
    e->dst = e->src + op->count * 4;
    return n;
}

static uint64_t source_bytes(const ut_submission *e)
{
    return e->entries * 4 * (1 + (uint64_t)e->alike.sparse.group);
}

static uint64_t fill(sim_world *w, sim_rank *r, const sim_ask *ask, ut_submission *e)
{
    sim_rng *rng = &w->rng_trainer;
    const sim_op *op = &ask->as;
    sim_entries code = sim_entries_of(w, r->job, e->op_seq, op);
    uint64_t result = op->count * 4, source = code.units * 4 * (1 + code.group);
    bool tensor_first = sim_chance(rng, 300000);
    uint64_t first = ask->slot + MARGIN + 4 * sim_below(rng, 16);
    uint64_t second = first + (tensor_first ? result : source) + MARGIN + 4 * sim_below(rng, 16);
    e->src = tensor_first ? second : first;
    e->dst = tensor_first ? first : second;
    uint8_t *entries = sim_room(source);
    uint64_t n = sim_entries_fill(&code, r->index, entries);
    memset(r->arena + ask->slot, MARGIN_BYTE, r->slot_bytes);
    memcpy(r->arena + e->src, entries, n * 4 * (1 + code.group));
    memset(r->arena + e->dst, FILL_BYTE, result);
    free(entries);
    w->cover[SIM_SPARSE_no_entry] += n == 0 && code.units;
    w->cover[SIM_SPARSE_all_entries] += n == code.units && n;
    return n;
}

static void count_kind(sim_world *w, const sim_rank *r, const sim_op *op)
{
    static const uint16_t forms[] = {SIM_SPARSE_float32, SIM_SPARSE_float16, SIM_SPARSE_bfloat16, SIM_SPARSE_float8};
    static const uint16_t modes[] = {0, SIM_SPARSE_bounded, SIM_SPARSE_best_effort, SIM_SPARSE_reliable};
    static const uint16_t spreads[] = {SIM_SPARSE_even, SIM_SPARSE_head, SIM_SPARSE_patches, SIM_SPARSE_few_ranks};
    const sim_job *job = &w->job[r->job];
    w->cover[forms[op->form]]++;
    w->cover[modes[op->mode]]++;
    w->cover[spreads[op->spread]]++;
    w->cover[op->redop == UT_AVG ? SIM_SPARSE_avg : SIM_SPARSE_sum]++;
    w->cover[SIM_SPARSE_rows] += op->group > 1;
    w->cover[SIM_SPARSE_long_rows] += op->group > 16;
    w->cover[SIM_SPARSE_agree] += op->agree;
    w->cover[SIM_SPARSE_empty] += op->count == 0;
    w->cover[SIM_SPARSE_alone] += job->plan->hosts == 1;
    w->cover[SIM_SPARSE_several_local] += job->plan->local[job->index_of[r->host]] > 1;
    w->cover[SIM_SPARSE_nonfinite] += op->nonfinite;
    w->cover[SIM_SPARSE_int8] += op->down != 0;
    w->cover[SIM_SPARSE_int8_nonfinite] += op->down != 0 && op->nonfinite;
    w->cover[SIM_SPARSE_desync] += op->odd_rank == r->index;
}

void sim_sparse_ask(sim_world *w, sim_rank *r, sim_ask *ask)
{
    const sim_op *op = &ask->as;
    ut_submission *e = &ask->entry;
    bool light = w->plan.light;
    e->entries = light ? fill_light(w, r, op, e) : fill(w, r, ask, e);
    e->collective = UT_ALLREDUCE_SPARSE;
    e->alike.sparse.hint = (uint32_t)(op->count / op->group * op->sparse_ppm / 1000000) + op->hint_off;
    e->alike.sparse.group = op->group;
    e->alike.sparse.form = op->form;
    e->alike.sparse.down = op->down;
    if (!light && sim_mix(w->seed ^ e->op_seq << 16 ^ r->index) & 1) /* drawn apart: worlds stay as they were */
        e->flags |= UT_SUBMIT_RETURN;
    if (!light)
        count_kind(w, r, op);
}

static void check_margin(sim_world *w, const sim_rank *r, const ut_submission *e, uint64_t from, uint64_t to)
{
    if (from >= to || sim_all_bytes(r->arena + from, to - from, MARGIN_BYTE))
        return;
    while (r->arena[from] == MARGIN_BYTE)
        from++;
    sim_fail(w, "O5 bounded memory", r->host,
             "op_seq %" PRIu64 " wrote byte %" PRIu64 " of the arena; %" PRIu64 " entries at %" PRIu64 ", dst %" PRIu64
             ", %" PRIu64 " elements",
             e->op_seq, from, e->entries, e->src, e->dst, e->count);
}

void sim_sparse_check_arena(sim_world *w, const sim_rank *r, const sim_ask *ask)
{
    const ut_submission *e = &ask->entry;
    uint64_t src_end = e->src + source_bytes(e), dst_end = e->dst + e->count * 4;
    bool src_first = e->src <= e->dst;
    check_margin(w, r, e, ask->slot, UT_MIN2(e->src, e->dst));
    check_margin(w, r, e, src_first ? src_end : dst_end, src_first ? e->dst : e->src);
    check_margin(w, r, e, UT_MAX2(src_end, dst_end), ask->slot + r->slot_bytes);
    sim_entries code = sim_entries_of(w, r->job, e->op_seq, &ask->as);
    uint8_t *entries = sim_room(code.units * 4 * (1 + code.group));
    uint64_t n = sim_entries_fill(&code, r->index, entries);
    /* Of what may be returned sparse_read.c looks at the values. */
    uint64_t fixed = e->flags & UT_SUBMIT_RETURN ? 4 * n : source_bytes(e);
    bool same = n == e->entries && memcmp(entries, r->arena + e->src, fixed) == 0;
    free(entries);
    if (!same)
        sim_fail(w, "O5 bounded memory", r->host, "op_seq %" PRIu64 " changed its source", e->op_seq);
}
