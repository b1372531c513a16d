/* SPDX-License-Identifier: Apache-2.0
 *
 *   O2 fingerprint: each slot of a quantised result holds, to the bit, what its owner makes of the rounded
 *   contributions of the ranks that it shows; or it is what this host gave, unrounded
 *   O15 nothing lost: what rounding took from the contribution is in the residual, to the bit
 */
#include "sim/quant/quant.h"

#include <stdlib.h>

#define FAIL SIM_VIEW_FAIL

/* What the elements show: who is in them, and of whom they tell nothing. */
static sim_held shown(const sim_view *v, const sim_quant *q, uint64_t from, uint64_t to, const float *values)
{
    sim_held held = {0, sim_first(v->job->ranks)};
    for (uint64_t i = from; i < to; i++) {
        uint32_t other, one = sim_quant_giver(q, i, &other);
        if (values[i] != values[i] || (q->code.nonfinite && sim_code_nonfinite(&q->code, i)))
            continue;
        if (!sim_quant_weight(q, one)) /* of what weighs nothing nothing is seen */
            continue;
        if (values[i] == 0)
            held.unsure &= ~(sim_bit(one) | sim_bit(other));
        else if (one == other)
            held.ranks |= sim_bit(one);
    }
    held.unsure &= ~held.ranks;
    return held;
}

static bool same(const float *a, const float *b, uint64_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}

/* Whether elements [from, to) are what this host gave, |ranks| of it and perhaps some of |also|, as a result of its
 * own. A weighted average of its ranks is one already. */
static bool is_own(const sim_view *v, const sim_quant *q, uint64_t from, uint64_t to, uint64_t ranks, uint64_t also,
                   const float *values)
{
    const uint64_t n = to - from, own = v->late ? sim_bit(v->rank->index) : v->job->host_ranks[v->self];
    float *sum = sim_room(n * sizeof *sum), *made = sim_room(n * sizeof *made);
    const uint32_t least = UT_MAX2(sim_ones(ranks), 1u), most = least + sim_ones(also & own);
    bool fits = false;
    for (uint64_t some = own; q->weighed && some && !fits; some = (some - 1) & own) {
        if ((ranks & ~some) || (some & ~(ranks | also)))
            continue;
        sim_quant_bring(q, some, from, to, sum);
        fits = same(sum, values + from, n);
    }
    if (!q->weighed)
        sim_quant_bring(q, ranks ? ranks : own, from, to, sum);
    for (uint32_t divisor = least; !q->weighed && divisor <= most && !fits && !(ranks & ~own); divisor++) {
        for (uint64_t i = 0; i < n; i++)
            made[i] = v->ask->as.redop == UT_AVG ? sum[i] / (float)divisor : sum[i];
        fits = same(made, values + from, n);
    }
    free(made);
    free(sum);
    return fits;
}

/* Whether they are what the owner makes of |ranks|, and perhaps of some of |also|, whose elements are in other slots:
 * they change the divisor alone, or what their hosts weigh. */
static bool is_answer(const sim_view *v, const sim_quant *q, const sim_quant_cut *c, const sim_quant_slot *s,
                      uint64_t from, uint64_t to, uint64_t ranks, uint64_t also, const float *values)
{
    const uint64_t n = to - from;
    float *sums = sim_room((s->to - s->from) * sizeof *sums), *made = sim_room(n * sizeof *made);
    const uint32_t least = UT_MAX2(sim_ones(ranks), 1u), most = least + sim_ones(also);
    bool fits = false;
    for (uint64_t some = also, more = 1; q->weighed && more && !fits; some = (some - 1) & also) {
        more = some;
        sim_quant_sum(v, q, c, s, ranks | some, sums);
        sim_quant_answer(v, c, s, from, to, sim_quant_weights(q, ranks | some), sums, made);
        fits = same(made, values + from, n);
    }
    if (!q->weighed)
        sim_quant_sum(v, q, c, s, ranks ? ranks : also, sums);
    for (uint32_t divisor = least; !q->weighed && divisor <= most && !fits; divisor++) {
        sim_quant_answer(v, c, s, from, to, divisor, sums, made);
        fits = same(made, values + from, n);
    }
    free(made);
    free(sums);
    return fits;
}

/* The ranks of which a slot can be made, of those that it may hold; all bits count. Without pairs a rank of which
 * nothing is told changes the divisor alone, unless it shows in another part of the same contributions. */
static sim_held read_slot(sim_view *v, const sim_quant *q, const sim_quant_cut *c, const sim_quant_slot *s,
                          uint64_t from, uint64_t to, const float *values)
{
    const sim_held may = shown(v, q, from, to, values), beside = shown(v, q, s->from, s->to, values);
    const uint64_t unsure = may.unsure, some = beside.ranks & unsure;
    uint64_t always = UINT64_MAX, sometimes = 0, also = q->pairs ? unsure : some;
    bool found = false;
    for (bool more = true; more; also = q->pairs ? (also - 1) & unsure : 0) {
        const uint64_t ranks = may.ranks | also, rest = q->pairs ? 0 : unsure & ~also;
        more = also != 0;
        bool fits = !v->late && is_answer(v, q, c, s, from, to, ranks, rest, values);
        if (!fits && (v->late || v->hosts > 1 || !c->form)) {
            fits = is_own(v, q, from, to, ranks, rest, values);
            v->w->cover[SIM_QUANT_own_in_hole] += fits;
        }
        if (!fits)
            continue;
        found = true;
        always &= ranks;
        sometimes |= ranks | rest;
    }
    if (!found)
        FAIL("O2 fingerprint",
             "elements [%" PRIu64 ", %" PRIu64 ") of %" PRIu64
             ", slot %u of chunk %u of host %u (forms %#x, redop %u), "
             "show ranks %#" PRIx64 " and perhaps %#" PRIx64 ", but are not what is made of these",
             from, to, v->ask->as.count, s->number, s->chunk, s->owner, v->ask->as.wire, v->ask->as.redop, may.ranks,
             may.unsure);
    return (sim_held){always, sometimes & ~always};
}

static void count(const sim_view *v)
{
    const ut_receipt *r = v->r;
    uint64_t *cover = v->w->cover;
    cover[r->status == UT_COMPLETE       ? SIM_QUANT_complete
          : r->status == UT_INSUFFICIENT ? SIM_QUANT_insufficient
                                         : SIM_QUANT_partial]++;
    cover[SIM_QUANT_repaired] += r->bytes_repaired != 0;
    cover[SIM_QUANT_late] += v->late;
    cover[SIM_QUANT_fewer_owners] += !v->late && r->owners != sim_first(v->hosts);
    for (uint32_t h = 0; h < v->hosts; h++)
        cover[SIM_QUANT_hole] += h != v->self && r->peer[h].missing[1] != 0;
}

/* The chunks by their numbers: TAR deals them out among the owners, and the others have none. */
static uint32_t chunk_of(const sim_view *v, uint32_t host)
{
    const uint32_t all = sim_ones(v->r->owners), place = sim_ones(v->r->owners & (sim_bit(host) - 1));
    return (uint32_t)((place + v->ask->entry.op_seq) % UT_MAX2(all, 1u));
}

static uint32_t owner_of(const sim_view *v, uint64_t element, uint64_t *from, uint64_t *to)
{
    for (uint32_t h = 0; h < v->hosts && !v->late; h++) {
        sim_shard_of(v, h, from, to);
        if (element >= *from && element < *to)
            return h;
    }
    *from = 0, *to = v->ask->as.count; /* who came late has its own value back, and knows of no owners */
    return 0;
}

/* What each host's ranks weigh, of those hosts that were heard. */
static void check_weights(const sim_view *v, const sim_quant *q)
{
    for (uint32_t h = 0; h < v->hosts; h++) {
        const ut_receipt_peer *row = &v->r->peer[h];
        const uint64_t ranks = (uint64_t)row->fresh << __builtin_ctzll(v->job->host_ranks[h]);
        if (q->weighed && !ranks) /* it is not known which they are */
            continue;
        const uint64_t want = q->weighed ? sim_quant_weights(q, ranks) : 0;
        if (row->share != want && (h == v->self || row->share || !q->weighed))
            FAIL("O3 conservation", "host %u, ranks %#" PRIx64 ", is said to weigh %" PRIu64 ", it weighs %" PRIu64, h,
                 ranks, row->share, want);
    }
}

static void check_numbers(const sim_view *v, const sim_quant *q)
{
    const ut_receipt *r = v->r;
    const uint64_t infinite = sim_code_infinite(&q->code, 0, v->ask->as.count);
    if (v->late)
        return;
    check_weights(v, q);
    if (r->nonfinite != v->nonfinite || (v->ask->as.wire && v->ask->as.count && r->nonfinite_given != infinite))
        FAIL("O2 fingerprint",
             "the receipt counts %" PRIu64 " elements as not finite, there are %" PRIu64 "; given %" PRIu64
             " of %" PRIu64,
             r->nonfinite, v->nonfinite, r->nonfinite_given, infinite);
    if (r->wire != v->ask->as.wire)
        FAIL("O2 fingerprint", "it is said to have travelled as %#x, not as %#x", r->wire, v->ask->as.wire);
}

void sim_read_quant(sim_view *v, const uint8_t *result)
{
    const float *values = (const float *)(const void *)result;
    const sim_quant q = sim_quant_of(v->w, v->rank->job, v->ask->entry.op_seq, &v->ask->as);
    const sim_quant_cut c = sim_quant_cut_of(v);
    sim_begin_notes(v);
    count(v);
    if (v->liar && !v->late) { /* what it has put in, nobody can tell */
        v->mixed = true;
        v->everywhere = v->anywhere = (sim_held){0, 0};
        if (v->ask->as.count)
            sim_note_unread(v, v->ask->as.count);
        return;
    }
    if (v->r->hadamard && !v->late && v->ask->as.count) { /* a dense one: it is near what it should be, not equal */
        sim_note_ranks(v, 0, v->ask->as.count, (sim_held){0, sim_first(v->job->ranks)});
        v->run[v->runs - 1].end = v->ask->as.count;
        check_weights(v, &q);
        return;
    }
    for (uint64_t i = 0, end; i < v->ask->as.count; i = end) {
        uint64_t first, last;
        sim_quant_slot s = {.owner = owner_of(v, i, &first, &last)};
        s.chunk = chunk_of(v, s.owner);
        s.number = (uint32_t)((i - first) / c.each);
        s.from = first + (uint64_t)s.number * c.each;
        s.to = UT_MIN2(s.from + c.each, last);
        end = UT_MIN2(i + c.part, s.to);
        uint64_t bad = 0;
        for (uint64_t k = i; k < end; k++)
            bad += !(values[k] - values[k] == 0);
        v->nonfinite += bad;
        sim_held held = read_slot(v, &q, &c, &s, i, end, values);
        if (bad < end - i)
            sim_note_ranks(v, i, end, held);
    }
    if (v->runs)
        v->run[v->runs - 1].end = v->ask->as.count;
    check_numbers(v, &q);
}
