/* SPDX-License-Identifier: Apache-2.0 */
#include "ext/quant/quant.h"

bool ut_quant_forms_valid(uint8_t forms)
{
    const uint8_t form = ut_quant_form_of(forms), answer = ut_quant_answer_of(forms);
    return ut_quant_is_form(form) && ut_quant_is_form(answer) && answer <= form; /* the finer a form, the less it is */
}

void ut_quant_divide(ut_quant *q, uint32_t payload)
{
    const uint32_t given = ut_quant_elements(q->form, payload), answered = ut_quant_elements(q->answer, payload);
    assert(given && answered && answered <= given);
    q->parts = ut_quant_slots(given, answered);
    q->part = given / q->parts;
    q->each = q->part * q->parts;
}

/* Bytes of a chunk of |all| elements, of which |each| are in a full slot. */
static uint64_t bytes_of(uint32_t all, uint32_t each, unsigned form, uint32_t payload)
{
    const uint32_t slots = ut_quant_slots(all, each);
    return slots ? (uint64_t)(slots - 1) * payload + ut_quant_bytes(form, ut_quant_in_slot(all, each, slots - 1)) : 0;
}

/* Room for a chunk is that of its answers, which take as much as its contributions or more. */
void ut_quant_cut(ut_quant *q, ut_schedule *s, uint32_t payload)
{
    uint64_t given[UT_HOSTS_MAX];
    memcpy(q->from, s->from, (s->chunks + 1) * sizeof *q->from);
    for (uint32_t c = 0; c < s->chunks; c++) {
        const uint32_t all = ut_quant_in_chunk(q, c);
        const uint64_t answered = bytes_of(all, q->part, q->answer, payload);
        given[c] = bytes_of(all, q->each, q->form, payload);
        assert(given[c] <= answered);
        s->from[c + 1] = s->from[c] + answered;
    }
    for (uint32_t i = 0; i < s->steps; i++) {
        ut_step *x = &s->step[i];
        x->offset = s->from[x->chunk];
        x->bytes = x->stage == 1 ? given[x->chunk] : s->from[x->chunk + 1] - s->from[x->chunk];
    }
    if (s->own != UT_CHUNK_NONE)
        ut_schedule_own(s, s->own);
}

/* In the finest form, and the smallest packets, a slot holds a third of what it would of float32, and more: with what
 * is left over in the last slot of each chunk. */
uint64_t ut_quant_bound(uint64_t bytes, uint32_t payload, uint32_t hosts)
{
    return bytes + ((uint64_t)hosts + 1) * payload;
}

/* The residuals of the ranks here become one, and the others 0: what they hold counts once. */
static float *join_residuals(ut_quant *q, uint64_t at, uint32_t n)
{
    if (!q->residuals)
        return NULL;
    float *first = q->residual[0] + at;
    for (uint32_t i = 1; i < q->residuals; i++)
        for (uint32_t k = 0; k < n; k++) {
            first[k] += q->residual[i][at + k];
            q->residual[i][at + k] = 0;
        }
    return first;
}

/* As ut_quant_give, of a weighted op: y = share * (x + residual) travels, and the residual becomes what is lost of it
 * by share. What has no weight travels as zeros, and its residual stays. */
static uint32_t give_weighted(const ut_quant *q, const float *x, float *residual, uint32_t n, uint8_t *slot,
                              const ut_quant_rounding *r, ut_quant_told *told)
{
    float y[UT_QUANT_ELEMENTS_MAX], decoded[UT_QUANT_ELEMENTS_MAX];
    const float share = (float)q->share;
    for (uint32_t i = 0; i < n; i++)
        y[i] = !q->share ? 0 : share * (residual ? x[i] + residual[i] : x[i]);
    const uint32_t len = ut_quant_encode(q->form, slot, y, NULL, n, r, told);
    if (residual && q->share) {
        ut_quant_decode(q->form, decoded, slot, n);
        for (uint32_t i = 0; i < n; i++)
            if (decoded[i] == decoded[i])
                residual[i] = (y[i] - decoded[i]) / share;
    }
    return len;
}

uint32_t ut_quant_give(ut_quant *q, uint64_t at, uint32_t n, uint8_t *slot, uint64_t key)
{
    const float *x = (const float *)(const void *)q->own + at;
    ut_quant_told told;
    const ut_quant_rounding r = {.key = key, .nearest = q->nearest, .divisor = 1};
    float *residual = join_residuals(q, at, n);
    const uint32_t len = q->weighted ? give_weighted(q, x, residual, n, slot, &r, &told)
                                     : ut_quant_encode(q->form, slot, x, residual, n, &r, &told);
    q->nonfinite_given += told.nonfinite;
    q->given += told.error;
    return len;
}
