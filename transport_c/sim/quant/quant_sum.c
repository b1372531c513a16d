/* SPDX-License-Identifier: Apache-2.0
 *
 * What owners make of quantised contributions, and of weighted ones, done anew with the kernels alone. On the way it is
 * seen that rounding leaves in a residual what it took (O15).
 */
#include "sim/quant/quant.h"
#include "sim/world/seal.h"

#include "core/wire/packets.h"
#include "kernels/kernels.h"
#include "kernels/quant.h"

#include <stdlib.h>

#define FAIL SIM_VIEW_FAIL

sim_quant_cut sim_quant_cut_of(const sim_view *v)
{
    const uint32_t payload = ut_wire_payload(v->w->plan.packet_bytes, sim_seal_overhead(v->w));
    sim_quant_cut c = {.form = v->ask->as.wire & 15, .answer = v->ask->as.wire >> 4, .parts = 1};
    if (!c.form) {
        c.each = c.part = payload / sizeof(float);
        return c;
    }
    const uint32_t given = ut_quant_elements(c.form, payload), answered = ut_quant_elements(c.answer, payload);
    c.parts = (given + answered - 1) / answered;
    c.part = given / c.parts;
    c.each = c.part * c.parts;
    return c;
}

void sim_quant_bring(const sim_quant *q, uint64_t ranks, uint64_t from, uint64_t to, float *out)
{
    const uint64_t n = to - from, share = sim_quant_weights(q, ranks);
    if (!q->weighed || sim_ones(ranks) == 1) {
        memset(out, 0, n * sizeof *out);
        for (uint64_t rest = ranks; rest; rest &= rest - 1)
            sim_quant_add(q, (uint32_t)__builtin_ctzll(rest), from, to, out);
        return;
    }
    float *given = sim_room(SIM_LOCAL_MOST * n * sizeof *given);
    const void *sources[SIM_LOCAL_MOST];
    double weights[SIM_LOCAL_MOST];
    unsigned k = 0;
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        const uint32_t rank = (uint32_t)__builtin_ctzll(rest), weight = share ? sim_quant_weight(q, rank) : 1;
        if (!weight)
            continue;
        sim_quant_fill(q, rank, from, to, given + k * n);
        sources[k] = given + k * n;
        weights[k++] = weight;
    }
    ut_weigh(UT_FLOAT32, out, sources, weights, k, n, share ? (double)share : k);
    free(given);
}

/* Encodes what a host of weight |share| brings, and what was left over; that becomes what rounding took. */
static void encode(const sim_quant *q, unsigned form, uint8_t *bytes, const float *given, float *left, uint32_t n,
                   const ut_quant_rounding *r, uint64_t share)
{
    if (!q->weighed) {
        (void)ut_quant_encode(form, bytes, given, left, n, r, NULL);
        return;
    }
    float *scaled = sim_room(2 * n * sizeof *scaled), *came = scaled + n;
    for (uint32_t i = 0; i < n; i++)
        scaled[i] = share ? (float)share * (left ? given[i] + left[i] : given[i]) : 0;
    (void)ut_quant_encode(form, bytes, scaled, NULL, n, r, NULL);
    ut_quant_decode(form, came, bytes, n);
    for (uint32_t i = 0; i < n && left && share; i++)
        left[i] = came[i] == came[i] ? (scaled[i] - came[i]) / (float)share : left[i];
    free(scaled);
}

static void check_residual(const sim_view *v, const sim_quant_slot *s, uint32_t host, const float *left)
{
    const float *kept = sim_quant_residual(v->rank, v->ask);
    if (host == v->self && kept && !v->late && memcmp(kept + s->from, left, (s->to - s->from) * sizeof *left) != 0)
        FAIL("O15 nothing lost", "elements [%" PRIu64 ", %" PRIu64 "): the residual is not what rounding took", s->from,
             s->to);
}

void sim_quant_sum(const sim_view *v, const sim_quant *q, const sim_quant_cut *c, const sim_quant_slot *s,
                   uint64_t ranks, float *sums)
{
    const uint32_t n = (uint32_t)(s->to - s->from);
    float *given = sim_room(n * sizeof *given), *left = sim_room(n * sizeof *left);
    uint8_t *bytes = sim_room(c->form ? ut_quant_bytes(c->form, n) : 1);
    memset(sums, 0, n * sizeof *sums);
    for (uint32_t h = 0; h < v->hosts; h++) {
        const uint64_t theirs = ranks & v->job->host_ranks[h], share = sim_quant_weights(q, theirs);
        if (!theirs)
            continue;
        sim_quant_bring(q, theirs, s->from, s->to, given);
        if (!c->form) {
            ut_weigh_in(UT_FLOAT32, sums, given, (double)share, false, n);
            continue;
        }
        const bool feeds = sim_quant_feeds(v->job, h, &v->ask->as);
        for (uint32_t i = 0; i < n && feeds; i++)
            left[i] = sim_quant_left(given[i]);
        const ut_quant_rounding r = {.key = ut_quant_key(v->ask->entry.op_seq, 0, h, s->chunk, s->number),
                                     .nearest = v->ask->as.nearest,
                                     .divisor = 1};
        encode(q, c->form, bytes, given, feeds ? left : NULL, n, &r, share);
        ut_quant_add(c->form, sums, bytes, n);
        if (feeds)
            check_residual(v, s, h, left);
    }
    free(bytes);
    free(left);
    free(given);
}

void sim_quant_answer(const sim_view *v, const sim_quant_cut *c, const sim_quant_slot *s, uint64_t from, uint64_t to,
                      uint64_t n, const float *sums, float *out)
{
    const uint32_t number = s->number * c->parts + (uint32_t)((from - s->from) / c->part),
                   count = (uint32_t)(to - from);
    if (!c->form) {
        memset(out, 0, count * sizeof *out);
        if (n)
            (void)ut_weigh_out(UT_FLOAT32, out, sums + (from - s->from), (double)n, count);
        return;
    }
    uint8_t *bytes = sim_room(ut_quant_bytes(c->answer, count));
    const ut_quant_rounding r = {.key = ut_quant_key(v->ask->entry.op_seq, 1, s->owner, s->chunk, number),
                                 .divisor = v->ask->as.redop == UT_AVG && n ? (float)n : 1};
    (void)ut_quant_encode(c->answer, bytes, sums + (from - s->from), NULL, count, &r, NULL);
    ut_quant_decode(c->answer, out, bytes, count);
    free(bytes);
}
