/* SPDX-License-Identifier: Apache-2.0
 *
 *   O2 fingerprint: each slot of a result is made of distinct ranks that called this op, of whole hosts' contributions
 */
#include "sim/oracles/oracles.h"
#include "sim/oracles/view.h"
#include "sim/world/liar.h"

#include <stdlib.h>

const char *const sim_status_name[5] = {"no status", "COMPLETE", "PARTIAL", "INSUFFICIENT", "FAILED"};

#define FAIL SIM_VIEW_FAIL

/* Of a liar's shard nothing can be told: its elements count as if all were in them. */
static const sim_held unread = {UINT64_MAX, 0};

static bool same(const sim_held *a, const sim_held *b)
{
    return a->ranks == b->ranks && a->unsure == b->unsure;
}

static void add_run(sim_view *v, uint64_t end, sim_held held)
{
    if (v->runs && same(&v->run[v->runs - 1].held, &held)) {
        v->run[v->runs - 1].end = end;
        return;
    }
    if ((v->runs & (v->runs - 1)) == 0) {
        v->run = realloc(v->run, (v->runs ? 2 * v->runs : 1) * sizeof *v->run);
        assert(v->run);
    }
    v->run[v->runs++] = (sim_run){end, held};
}

/* A host's part is all of its contribution or nothing, and the same everywhere. */
static void check_parts(sim_view *v, uint64_t element, sim_held held)
{
    uint64_t ranks = held.ranks;
    for (uint32_t h = 0; h < v->hosts; h++) {
        uint64_t theirs = v->job->host_ranks[h], part = ranks & theirs, *whole = &v->job->contributed[v->ask->op][h];
        if (part == 0 || v->job->shaken[h] || v->late)
            continue;
        if (*whole == 0 && !(held.unsure & theirs))
            *whole = part;
        else if (*whole && (part & ~*whole || *whole & ~(part | held.unsure)))
            FAIL("O2 fingerprint", "element %" PRIu64 " holds ranks %#" PRIx64 " of host %u, and elsewhere %#" PRIx64,
                 element, part, h, *whole);
    }
    if (ranks & ~v->job->submitted[v->ask->op])
        FAIL("O2 fingerprint", "element %" PRIu64 " holds ranks %#" PRIx64 ", of which only %#" PRIx64 " called the op",
             element, ranks, v->job->submitted[v->ask->op]);
    uint64_t odd = v->ask->as.odd_rank < SIM_RANKS ? sim_bit(v->ask->as.odd_rank) : 0;
    if (ranks & odd && ranks & ~odd)
        FAIL("O2 fingerprint", "element %" PRIu64 " mixes rank %u, which called it otherwise, with ranks %#" PRIx64,
             element, v->ask->as.odd_rank, ranks & ~odd);
}

/* The elements whose result came from the liar. All, where sums go through many hands, or where a maximum or an average
 * cannot be told from what it put in. */
static void liar_shard(const sim_view *v, uint64_t *from, uint64_t *to)
{
    *from = *to = 0;
    if (!v->liar || v->late) /* who came late has its own value back */
        return;
    if (!sim_direct(v->job->plan) || v->ask->as.redop != UT_SUM || v->ask->as.nonfinite)
        *to = v->ask->as.count;
    else
        sim_shard_of(v, (uint32_t)__builtin_ctzll(v->liar), from, to);
}

/* Where the slot ends that begins at |element|, and where its shard does: who owns what is cut into slots alike. */
static uint64_t slot_end(const sim_view *v, uint64_t element, uint64_t *ret_shard_end)
{
    uint64_t count = v->ask->as.count, per = sim_slot_elements(v->w, v->element), begin = 0;
    *ret_shard_end = count;
    uint32_t shards = sim_algorithm(v->job->plan) == UT_PS ? 1 : UT_MAX2(sim_ones(v->r->owners), 1u);
    for (uint32_t s = 0; s < shards && begin <= element; s++) {
        *ret_shard_end = sim_shard_begin(count, shards, s + 1);
        if (*ret_shard_end > element)
            break;
        begin = *ret_shard_end;
    }
    return UT_MIN2(begin + ((element - begin) / per + 1) * per, *ret_shard_end);
}

void sim_begin_notes(sim_view *v)
{
    uint64_t all = sim_first(v->job->signs);
    v->everywhere = (sim_held){all, all};
    v->least = v->least_sure = v->job->signs;
}

void sim_note_unread(sim_view *v, uint64_t end)
{
    add_run(v, end, unread);
}

void sim_note_ranks(sim_view *v, uint64_t from, uint64_t to, sim_held held)
{
    uint64_t all = held.ranks | held.unsure;
    check_parts(v, from, held);
    v->least = UT_MIN2(v->least, sim_ones(all));
    v->least_sure = UT_MIN2(v->least_sure, sim_ones(held.ranks));
    v->everywhere.ranks &= held.ranks;
    v->everywhere.unsure &= all;
    v->anywhere.ranks |= held.ranks;
    v->anywhere.unsure |= all;
    add_run(v, to, held);
}

static sim_held read_slot(sim_view *v, const sim_code *code, const uint8_t *result, uint64_t from, uint64_t to,
                          bool only_all)
{
    sim_held held;
    sim_wrong wrong;
    bool good = sim_code_read(code, from, to, result, &held, &wrong);
    if (!good || (only_all && held.ranks != sim_whole_of(v))) {
        char bytes[17] = "";
        const uint8_t *at = result + wrong.element * v->element;
        for (size_t b = 0; b < v->element && wrong.element < to; b++)
            snprintf(bytes + 2 * b, 3, "%02x", at[b]);
        FAIL("O2 fingerprint",
             "element %" PRIu64 " of %" PRIu64 " (dtype %u, redop %u, slot [%" PRIu64 ", %" PRIu64 "), bytes %s) %s",
             wrong.element, v->ask->as.count, code->dtype, code->redop, from, to, bytes,
             good ? "is not the result of all ranks" : wrong.reason);
    }
    return held;
}

/* The result, slot by slot; but what goes on as before is not looked at that closely, if each slot of it could tell. */
void sim_read_result(sim_view *v, const uint8_t *result)
{
    sim_code code = sim_code_of(v->w, v->rank->job, v->ask->entry.op_seq, &v->ask->as);
    uint32_t groups = sim_code_groups(&code);
    v->w->cover[SIM_told_in_turn] += groups > 1;
    uint64_t all = sim_whole_of(v), hint = v->r->status == UT_COMPLETE ? all : 0;
    bool only_all = v->r->status == UT_COMPLETE && v->ask->as.redop > UT_AVG; /* a maximum cannot tell who was there */
    sim_begin_notes(v);
    uint64_t lied_from, lied_to;
    liar_shard(v, &lied_from, &lied_to);
    for (uint64_t i = 0, next; i < v->ask->as.count; i = next) {
        uint64_t shard_end, end = slot_end(v, i, &shard_end), per = end - i;
        if (i >= lied_from && i < lied_to) {
            sim_note_unread(v, next = lied_to);
            continue;
        }
        next = i;
        if (hint && per >= groups) { /* of all slots that are as long as this one */
            uint64_t until = i + (shard_end - i) / per * per;
            next = sim_code_agree(&code, i, until, hint, result);
            next -= (next - i) % per;
        }
        sim_held held = {hint, 0};
        if (next == i) {
            held = read_slot(v, &code, result, i, end, only_all);
            hint = held.unsure ? hint : held.ranks;
            next = end;
        }
        uint64_t infinite = sim_code_infinite(&code, i, next);
        v->nonfinite += infinite;
        if (infinite < next - i)
            sim_note_ranks(v, i, next, held);
    }
    if (v->runs) /* elements that are Inf for everybody tell nothing and go with their neighbours */
        v->run[v->runs - 1].end = v->ask->as.count;
    if (v->r->nonfinite != v->nonfinite && !v->late && !v->liar)
        FAIL("O2 fingerprint", "the receipt counts %" PRIu64 " elements as not finite, there are %" PRIu64,
             v->r->nonfinite, v->nonfinite);
}

/* What travelled transformed: each element is the sum or average of all, but for rounding, or it tells nothing. */
void sim_read_transformed(sim_view *v, const uint8_t *result)
{
    sim_code code = sim_code_of(v->w, v->rank->job, v->ask->entry.op_seq, &v->ask->as);
    uint64_t all = sim_whole_of(v);
    v->mixed = v->r->status != UT_COMPLETE || v->liar;
    sim_held there = {v->mixed ? 0 : all, v->mixed ? 0 : all};
    v->everywhere = v->anywhere = there;
    v->least = v->least_sure = sim_ones(all);
    for (uint64_t i = 0; i < v->ask->as.count; i++) {
        float x;
        memcpy(&x, result + i * v->element, sizeof x);
        bool finite = x - x == 0;
        v->nonfinite += !finite;
        if (!finite && !v->ask->as.nonfinite && !v->liar) /* which may give anything; the receipt counts it */
            FAIL("O2 fingerprint", "element %" PRIu64 " is not finite after the transform", i);
    }
    uint64_t count = v->ask->as.count, wrong = count;
    const float *values = (const float *)(const void *)result; /* a bucket begins at a whole element */
    if (!v->mixed)
        wrong = sim_code_near(&code, 0, count, all, values);
    if (wrong < count)
        FAIL("O2 fingerprint", "element %" PRIu64 " of %" PRIu64 " is %g, not the result of all ranks", wrong, count,
             (double)values[wrong]);
    if (!v->mixed && v->ask->as.count)
        add_run(v, v->ask->as.count, (sim_held){all, 0});
    if (v->r->nonfinite != v->nonfinite)
        FAIL("O2 fingerprint", "the receipt counts %" PRIu64 " elements as not finite, there are %" PRIu64,
             v->r->nonfinite, v->nonfinite);
    v->w->cover[v->mixed ? SIM_transformed_partial : SIM_transformed]++;
}
