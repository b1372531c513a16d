/* SPDX-License-Identifier: Apache-2.0
 *
 * The fold rule of quantised allreduces. An owner adds what slots say to float32 sums, which begin as its own slots
 * say. When a slot has all, or can have no more, its sum is divided and rounded once: what is sent of it is also what
 * this host keeps, so all hosts have the same bits. A result that comes goes from the receive buffer to its place.
 *
 * The digest is of elements, and not of slots as they travel: what stands in a hole was never in a slot, and may be the
 * same.
 */
#include "ext/quant/variant.h"

#include "core/base/digest.h"

#include "kernels/kernels.h"

/* Receipts count the dense bucket. */
static void open(ut_op_fold *f)
{
    const ut_quant *q = f->rule_memory;
    const ut_schedule *s = &f->plan->schedule;
    f->parts = q->parts;
    for (uint32_t c = 0; c < s->chunks; c++)
        if (c != s->own)
            f->ready[0][c] = ut_quant_slots(ut_quant_in_chunk(q, c), q->each);
    for (uint32_t i = 0; i < s->steps; i++) {
        ut_transfer *t = &f->plan->transfer[i];
        if (s->step[i].kind != UT_STEP_RECEIVE || !t->slots)
            continue;
        t->stands_for = (s->step[i].stage == 1 ? q->each : q->part) * (uint32_t)sizeof(float);
        t->whole = ut_quant_in_chunk(q, s->step[i].chunk) * sizeof(float);
    }
}

static uint32_t elements_of_step(const ut_quant *q, const ut_step *s, uint32_t slot)
{
    return ut_quant_in_slot(ut_quant_in_chunk(q, s->chunk), s->stage == 1 ? q->each : q->part, slot);
}

static bool takes(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len)
{
    const ut_quant *q = f->rule_memory;
    return ut_quant_takes(s->stage == 1 ? q->form : q->answer, payload, (uint32_t)len, elements_of_step(q, s, slot));
}

static bool arrive(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len, unsigned ranks)
{
    const ut_quant *q = f->rule_memory;
    (void)len, (void)ranks;
    ut_quant_add(q->form, q->sums + (size_t)slot * q->each, payload, elements_of_step(q, s, slot));
    return true;
}

static float *place_of(const ut_quant *q, uint32_t chunk, uint32_t slot)
{
    return (float *)(void *)q->bucket + q->from[chunk] + (size_t)slot * q->part;
}

/* |n| elements of the result that stand at |to|, and whose slot lies |at| bytes into the encoded bucket. */
static void add_digest(ut_op_fold *f, const float *to, uint32_t n, uint64_t at)
{
    const size_t len = n * sizeof *to;
    f->result.digest += ut_digest_part(ut_crc32c(0, to, len), at, len);
}

/* One answer of the own chunk, of a sum with |ranks| ranks. Returns the elements of it that are NaN. */
static size_t answer(ut_op_fold *f, uint32_t chunk, uint32_t slot, float divisor)
{
    ut_quant *q = f->rule_memory;
    const uint32_t all = ut_quant_in_chunk(q, chunk), n = ut_quant_in_slot(all, q->part, slot);
    const uint64_t at = f->plan->schedule.from[chunk] + (uint64_t)slot * f->payload;
    const ut_quant_rounding r = {.key = ut_quant_key(f->seq, 1, f->self, chunk, slot), .divisor = divisor};
    uint8_t *to = f->memory->encoded + at;
    ut_quant_told told;
    uint32_t len = ut_quant_encode(q->answer, to, q->sums + (size_t)slot * q->part, NULL, n, &r, &told);
    if ((uint64_t)(slot + 1) * q->part < all) {
        memset(to + len, 0, f->payload - len);
        len = f->payload;
    }
    if (q->bucket) {
        ut_quant_decode(q->answer, place_of(q, chunk, slot), to, n);
        add_digest(f, place_of(q, chunk, slot), n, at);
    }
    q->answered += told.error;
    q->answers += n;
    ut_fold_has_result(f, chunk, slot, at, len, ut_crc32c(0, to, len));
    return told.nonfinite;
}

/* By what the sum of |slot|, and of those that are of the same contributions, is divided. */
static float divisor_of(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    const double weight = f->what->weighted ? ut_fold_weight_of(f, chunk, slot / f->parts) : 0;
    if (f->what->weighted)
        return weight > 0 ? (float)weight : 1;
    return f->what->redop == UT_AVG ? (float)ut_fold_divisor(f, f->first[chunk] + slot) : 1;
}

static size_t results(ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    const ut_quant *q = f->rule_memory;
    const uint32_t g = f->first[chunk] + slot, end = ut_quant_slots(ut_quant_in_chunk(q, chunk), q->part);
    const float divisor = divisor_of(f, chunk, slot);
    size_t bad = 0;
    for (uint32_t i = 0; i < q->parts && slot + i < end; i++) {
        f->weight[g + i] = f->weight[g];
        bad += answer(f, chunk, slot + i, divisor);
    }
    return bad;
}

static size_t place(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len)
{
    ut_quant *q = f->rule_memory;
    const uint32_t n = elements_of_step(q, s, slot);
    (void)len;
    q->answered += ut_quant_error(q->answer, payload, n);
    q->answers += n;
    if (!q->bucket)
        return 0;
    float *to = place_of(q, s->chunk, slot);
    size_t bad = 0;
    ut_quant_decode(q->answer, to, payload, n);
    add_digest(f, to, n, s->offset + (uint64_t)slot * f->payload);
    for (uint32_t i = 0; i < n && payload[0] & UT_QUANT_NAN; i++)
        bad += to[i] != to[i];
    return bad;
}

/* By what a result of this host's ranks alone is divided. */
static uint32_t own_divisor(const ut_op_fold *f)
{
    return f->averaged ? 1 : f->what->by_world ? f->world : UT_MAX2(f->ranks, 1u);
}

/* What this host gave stands in the holes, as it was before it was rounded, and becomes a result of its ranks alone;
 * zeros, if it gave nothing. */
static bool fill(ut_op_fold *f, uint32_t chunk, uint32_t *at)
{
    const ut_quant *q = f->rule_memory;
    const ut_transfer *t = &f->plan->transfer[f->down[chunk]];
    for (; *at < t->slots && q->bucket; ++*at) {
        const uint32_t slot = *at, n = ut_quant_in_slot(ut_quant_in_chunk(q, chunk), q->part, slot);
        const uint64_t at = f->plan->schedule.from[chunk] + (uint64_t)slot * f->payload;
        if (ut_transfer_has(t, slot))
            continue;
        if (!ut_work_pass(f->turn, f->what->bytes, n * sizeof(float)))
            return false;
        float *to = place_of(q, chunk, slot);
        const uint8_t *own = f->memory->own + ((uint8_t *)to - q->bucket);
        if (f->ranks)
            f->result.nonfinite += ut_finish(UT_FLOAT32, f->what->redop, UT_A_IS_INPUT, to, own, n, own_divisor(f));
        else
            memset(to, 0, n * sizeof(float));
        add_digest(f, to, n, at);
    }
    return true;
}

const ut_fold_rule ut_fold_quant = {
    .digests = true, .open = open, .arrive = arrive, .results = results, .takes = takes, .place = place, .fill = fill};
