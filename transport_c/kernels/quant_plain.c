/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots in portable C, an element at a time: the definition, which the other instruction sets match to the
 * bit, and what they call for slots with elements that are not finite.
 */
#include "quant_slot.h"
#include "table.h"

/* To nearest, ties to even, for |t| below 2^22: the unit of 1.5 * 2^23 is one. */
static int32_t rounded(float t)
{
    return (int32_t)((t + 12582912.0f) - 12582912.0f);
}

static float draw(uint64_t key, uint32_t i)
{
    const uint32_t word = quant_word(key, i), half = i & 16 ? word >> 16 : word & 0xffff;
    return ((float)half - 32767.5f) * 0x1p-16f;
}

static bool is_finite(float y)
{
    return (ut_float_bits(y) & 0x7f800000) != 0x7f800000;
}

static void put_code(unsigned form, uint8_t *codes, uint32_t i, int32_t q)
{
    if (form == UT_QUANT_INT16) {
        codes[2 * i] = (uint8_t)q;
        codes[2 * i + 1] = (uint8_t)(q >> 8);
    } else if (form == UT_QUANT_INT8) {
        codes[i] = (uint8_t)q;
    } else if (i % 2) {
        codes[i / 2] |= (uint8_t)((q & 15) << 4);
    } else {
        codes[i / 2] = (uint8_t)(q & 15);
    }
}

static int32_t code_at(unsigned form, const uint8_t *codes, uint32_t i)
{
    if (form == UT_QUANT_INT16)
        return (int16_t)(uint16_t)(codes[2 * i] | codes[2 * i + 1] << 8);
    if (form == UT_QUANT_INT8)
        return (int8_t)codes[i];
    return ((codes[i / 2] >> 4 * (i % 2) & 15) ^ 8) - 8;
}

static uint32_t encode(unsigned form, uint8_t *out, const float *x, float *residual, uint32_t n,
                       const ut_quant_rounding *r, ut_quant_told *told)
{
    const uint32_t size = quant_block(form), blocks = quant_blocks(form, n);
    const int32_t levels = quant_levels(form);
    uint32_t most[QUANT_BLOCKS_MAX];
    quant_scales s;
    memset(most, 0, blocks * sizeof *most);
    told->nonfinite = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float y = residual ? x[i] / r->divisor + residual[i] : x[i] / r->divisor;
        const uint32_t magnitude = ut_float_bits(y) & 0x7fffffff;
        if (!is_finite(y))
            told->nonfinite++;
        else
            most[i / size] = UT_MAX2(most[i / size], magnitude);
    }
    told->error = quant_choose_scales(form, out, most, n, told->nonfinite > 0, &s);
    uint8_t *const codes = out + UT_QUANT_HEADER + blocks;
    for (uint32_t i = 0; i < n; i++) {
        const float y = residual ? x[i] / r->divisor + residual[i] : x[i] / r->divisor;
        const float scale = s.scale[i / size], t = y * s.inverse[i / size];
        int32_t q = -levels - 1;
        if (is_finite(y)) {
            q = rounded(r->nearest ? t : t + draw(r->key, i));
            q = q > levels ? levels : q < -levels ? -levels : q;
            if (residual)
                residual[i] = scale > 0 ? y - (float)q * scale : 0;
        }
        put_code(form, codes, i, q);
    }
    return UT_QUANT_HEADER + blocks + quant_code_bytes(form, n);
}

static void decode(unsigned form, float *out, const uint8_t *slot, uint32_t n, bool add)
{
    const uint8_t *const codes = slot + UT_QUANT_HEADER + quant_blocks(form, n);
    const int32_t lowest = -quant_levels(form) - 1;
    for (uint32_t i = 0; i < n; i++) {
        const int32_t q = code_at(form, codes, i);
        const float nan = ut_float_of_bits(0x7fc00000);
        const float v =
            slot[0] & UT_QUANT_NAN && q == lowest ? nan : (float)q * quant_scale_at(slot, i / quant_block(form));
        out[i] = add ? out[i] + v : v;
    }
}

const ut_quant_kernels ut_quant_plain = {encode, decode};
