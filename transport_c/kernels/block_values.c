/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done to values of sparse tensors outside of blocks: rounding, entries as trainers give them, sums that become
 * results. See block.h.
 */
#include "block_form.h"
#include "kernels.h"
#include "quant.h"
#include "sparse.h"

size_t ut_value_bytes(unsigned form)
{
    static const uint8_t bytes[UT_VALUE_ALL_END] = {4, 2, 2, 1, [UT_VALUE_INT8] = 1};
    return bytes[form];
}

size_t ut_values_bytes(unsigned form, size_t n)
{
    if (form != UT_VALUE_INT8)
        return n * ut_value_bytes(form);
    return n ? ut_quant_bytes(UT_QUANT_INT8, (uint32_t)n) : 0;
}

float ut_float8_scale(float most)
{
    const uint32_t bits = ut_float_bits(most) & 0x7fffffff;
    int exponent = (int)(bits >> 23) - 127 - 8 + ((bits & 0x7fffff) > 0x600000); /* 448 is 1.75 * 2^8 */
    return ut_float_of_bits((uint32_t)(UT_MAX2(exponent, -117) + 127) << 23);
}

float ut_largest_finite(const float *x, size_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        most = bits < 0x7f800000 && bits > most ? bits : most;
    }
    return ut_float_of_bits(most);
}

float ut_value_rounded(float x, unsigned form, float scale)
{
    uint8_t bytes[4];
    if (form == UT_VALUE_FLOAT32)
        return x;
    ut_value_store(bytes, x, form, 1 / scale);
    return ut_value_load(bytes, form, scale);
}

/* ---- results ---- */

/* What is added to 0 is 0 where it was -0, for no entry is as much; a half becomes a float32 so. */
size_t ut_sparse_finish(float *x, size_t n, uint32_t divisor, unsigned form)
{
    enum { SOME = 1024 }; /* stay in the nearest cache */
    static const float zero[SOME];
    static const uint8_t dtypes[] = {UT_FLOAT32, UT_FLOAT16, UT_BFLOAT16};
    uint16_t half[SOME];
    size_t bad = 0, some;
    assert(form < UT_VALUE_FLOAT8);
    for (size_t i = 0; i < n; i += some) {
        some = UT_MIN2(n - i, (size_t)SOME);
        if (form != UT_VALUE_FLOAT32) {
            bad += ut_finish(dtypes[form], UT_AVG, 0, half, x + i, some, divisor);
            (void)ut_fold(dtypes[form], UT_SUM, 0, x + i, zero, half, some, 1);
            continue;
        }
        if (divisor > 1)
            (void)ut_finish(UT_FLOAT32, UT_AVG, 0, x + i, x + i, some, divisor);
        bad += ut_fold(UT_FLOAT32, UT_SUM, UT_OUT_IS_RESULT, x + i, x + i, zero, some, 1);
    }
    return bad;
}

uint64_t ut_sparse_digest(const float *x, size_t n, uint64_t first)
{
    uint64_t digest = 0;
    for (size_t i = 0; i < n; i += 64)
        for (uint64_t mask = ut_nonzero(x + i, UT_MIN2(n - i, (size_t)64)); mask; mask &= mask - 1) {
            size_t at = i + (unsigned)__builtin_ctzll(mask);
            digest += ut_sparse_digest_part(ut_float_bits(x[at]), first + at);
        }
    return digest;
}

/* ---- entries ---- */

uint32_t ut_entries_skip(ut_entries *e, uint32_t end, uint32_t most)
{
    uint32_t from = e->next, stop = from + UT_MIN2(e->n - from, most);
    while (e->next < stop) {
        uint32_t index = ut_entries_index(e, e->next, e->more, end);
        if (index == UINT32_MAX)
            break;
        e->more = index + 1;
        e->next++;
    }
    return e->next - from;
}

uint32_t ut_entries_add(ut_entries *e, float *out, const ut_block_shape *s, uint32_t base, uint32_t most, float scale)
{
    float row[UT_BLOCK_GROUP_MAX];
    uint32_t from = e->next, stop = from + UT_MIN2(e->n - from, most);
    for (; e->next < stop; e->next++) {
        uint32_t index = ut_entries_index(e, e->next, UT_MAX2(e->more, base), base + s->units);
        if (index == UINT32_MAX)
            break;
        memcpy(row, e->values + 4 * (size_t)e->next * s->group, 4 * s->group);
        for (uint32_t k = 0; k < s->group; k++)
            out[(size_t)(index - base) * s->group + k] += ut_value_rounded(row[k], s->form, scale);
        e->more = index + 1;
    }
    return e->next - from;
}
