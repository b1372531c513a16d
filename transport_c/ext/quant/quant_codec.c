/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec of quantised allreduces. The own contribution is rounded slot by slot when the op opens, that to the own
 * chunk too: a result depends on who is in it, and not on who owns it. Results are put into their place as they come
 * (ext/quant/coded_slots.c), so nothing is left to decode.
 *
 * A host that is alone rounds as two would, first what it gives and then the result: values do not change in kind when
 * a job grows.
 */
#include "ext/quant/variant.h"

static bool fits(const ut_op_what *what, uint32_t hosts, unsigned algorithm)
{
    (void)hosts;
    return what->told == UT_ALLREDUCE_QUANT && what->bytes && algorithm == UT_TAR;
}

static void begin(const ut_codec_op *c)
{
    ut_quant *q = c->variant;
    q->sums = (float *)(void *)c->memory->held;
    q->nonfinite_given = q->answers = 0;
    q->given = q->answered = 0;
}

/* By what the sum of a host that is alone is divided. */
static float divisor_of(const ut_codec_op *c, const ut_quant *q)
{
    if (q->weighted)
        return (float)UT_MAX2(q->share, 1);
    return c->what->redop == UT_SUM ? 1 : (float)(c->what->by_world ? c->world : UT_MAX2(c->ranks, 1));
}

/* What a host that is alone gives becomes its result. */
static void answer_alone(const ut_codec_op *c, uint32_t slot, uint32_t n)
{
    ut_quant *q = c->variant;
    uint8_t given[UT_PACKET_MAX];
    float *to = (float *)(void *)q->bucket + (size_t)slot * q->each;
    ut_quant_told told;
    (void)ut_quant_give(q, (uint64_t)slot * q->each, n, given, ut_quant_key(c->seq, 0, c->self, 0, slot));
    ut_quant_decode(q->form, to, given, n);
    for (uint32_t i = 0; i * q->part < n; i++, to += q->part) {
        const uint32_t some = ut_quant_in_slot(n, q->part, i);
        const ut_quant_rounding r = {.key = ut_quant_key(c->seq, 1, c->self, 0, slot * q->parts + i),
                                     .divisor = divisor_of(c, q)};
        (void)ut_quant_encode(q->answer, given, to, NULL, some, &r, &told);
        ut_quant_decode(q->answer, to, given, some);
        q->answered += told.error;
        q->answers += some;
    }
}

/* A host that brings nothing sends nothing, and adds up its shard from zero. */
static void give(const ut_codec_op *c, uint32_t chunk, uint32_t slot, uint32_t n, bool last)
{
    ut_quant *q = c->variant;
    uint8_t *to = c->memory->encoded + c->plan->schedule.from[chunk] + (uint64_t)slot * c->payload;
    const uint64_t at = (uint64_t)slot * q->each;
    if (c->ranks == 0) {
        if (chunk == c->plan->schedule.own)
            memset(q->sums + at, 0, n * sizeof *q->sums);
        return;
    }
    const uint32_t len = ut_quant_give(q, q->from[chunk] + at, n, to, ut_quant_key(c->seq, 0, c->self, chunk, slot));
    if (!last)
        memset(to + len, 0, c->payload - len);
    if (chunk == c->plan->schedule.own)
        ut_quant_decode(q->form, q->sums + at, to, n);
}

static bool encode(const ut_codec_op *c)
{
    ut_quant *q = c->variant;
    if (c->way->index == 0 && c->way->at == 0)
        begin(c);
    for (; c->way->index < c->plan->schedule.chunks; c->way->index++, c->way->at = 0) {
        const uint32_t chunk = c->way->index, all = ut_quant_in_chunk(q, chunk), slots = ut_quant_slots(all, q->each);
        for (; c->way->at < slots; c->way->at++) {
            const uint32_t slot = (uint32_t)c->way->at, n = ut_quant_in_slot(all, q->each, slot);
            if (!ut_work_pass(c->turn, c->what->bytes, (uint64_t)n * sizeof(float)))
                return false;
            if (c->hosts == 1)
                answer_alone(c, slot, n);
            else
                give(c, chunk, slot, n, slot + 1 == slots);
        }
    }
    return true;
}

const ut_codec ut_codec_quant = {.id = UT_CODEC_QUANT, .rule = &ut_fold_quant, .fits = fits, .encode = encode};
