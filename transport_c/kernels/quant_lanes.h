/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots, written once over lanes: 32 elements at a time, in REGISTERS vectors of LANES. A file for one
 * instruction set defines those two, UT_TARGET, UT_LANE, UT_QUANT_TABLE, EACH (a statement for each register number j),
 * vr and vn (floats and whole numbers of a register) and the r_ and n_ functions below, then includes this one.
 *
 * The values of a slot are read twice, for the scales and for the codes: the second time from the nearest cache. So
 * they are computed twice rather than stored. A group that is not full goes through buffers on the stack; what pads it
 * is 0, and is coded as 0.
 */
#ifndef UT_QUANT_LANES_H
#define UT_QUANT_LANES_H

#include "quant_slot.h"
#include "table.h"

enum { GROUP = 32 };
typedef struct values {
    vr r[REGISTERS];
} values;
typedef struct codes_of_group {
    vn n[REGISTERS];
} codes_of_group;

/* How the divisor is applied. A product with the reciprocal of a power of two has the same bits, and is far quicker. */
typedef struct scaling {
    vr by;
    bool divide, multiply;
} scaling;

UT_LANE scaling scaling_of(float divisor)
{
    const bool exact = (ut_float_bits(divisor) & 0x7fffff) == 0;
    return (scaling){r_set(exact ? 1 / divisor : divisor), !exact, exact && ut_float_bits(divisor) != 0x3f800000};
}

UT_LANE values values_at(const float *x, const float *residual, const scaling *s)
{
    values y;
    EACH(y.r[j] = r_load(x + j * LANES);)
    if (s->divide)
        EACH(y.r[j] = r_div(y.r[j], s->by);)
    else if (s->multiply)
        EACH(y.r[j] = r_mul(y.r[j], s->by);)
    if (residual)
        EACH(y.r[j] = r_add(y.r[j], r_load(residual + j * LANES));)
    return y;
}

/* What is added to 32 elements before they are rounded: see quant_word. */
UT_LANE values draws_of(uint64_t key, uint32_t i)
{
    const vn low = n_set((int32_t)(uint32_t)key), high = n_set((int32_t)(uint32_t)(key >> 32));
    vn words[REGISTERS / 2];
    EACH_HALF({
        const uint32_t first = (i / 2 + j * LANES + 1) * 0x9e3779b9u;
        vn z = n_add(n_add(n_set((int32_t)first), n_steps()), low);
        z = n_times(n_xor(z, n_right(z, 16)), n_set(0x7feb352d));
        z = n_xor(z, high);
        z = n_times(n_xor(z, n_right(z, 15)), n_set((int32_t)0x846ca68bu));
        words[j] = n_xor(z, n_right(z, 16));
    })
    const vr middle = r_set(32767.5f), unit = r_set(0x1p-16f);
    values d;
    EACH({
        const vn word = words[j % (REGISTERS / 2)];
        const vn half = j < REGISTERS / 2 ? n_and(word, n_set(0xffff)) : n_right(word, 16);
        d.r[j] = r_mul(r_sub(r_of(half), middle), unit);
    })
    return d;
}

UT_LANE codes_of_group codes_at(const unsigned form, const bool nearest, values y, float inverse, uint64_t key,
                                uint32_t i)
{
    const vn most = n_set(quant_levels(form)), least = n_set(-quant_levels(form));
    const vr by = r_set(inverse);
    codes_of_group q;
    EACH(y.r[j] = r_mul(y.r[j], by);)
    if (!nearest) {
        const values d = draws_of(key, i);
        EACH(y.r[j] = r_add(y.r[j], d.r[j]);)
    }
    EACH(q.n[j] = n_min(n_max(n_rounded(y.r[j]), least), most);)
    return q;
}

/* The bits of the largest magnitude of each block. Returns whether all of them are finite. */
UT_LANE bool largest(const unsigned form, uint32_t *most, const float *x, const float *residual, const float *last_x,
                     const float *last_residual, uint32_t n, const scaling *s)
{
    const uint32_t size = quant_block(form);
    uint32_t all = 0;
    for (uint32_t b = 0, i = 0; i < n; b++) {
        vn m = n_set(0);
        for (const uint32_t end = i + size; i < end && i < n; i += GROUP) {
            const bool whole = i + GROUP <= n;
            const values y = values_at(whole ? x + i : last_x,
                                       !residual ? NULL
                                       : whole   ? residual + i
                                                 : last_residual,
                                       s);
            EACH(m = n_max(m, n_magnitude(y.r[j]));)
        }
        most[b] = n_most(m);
        all = UT_MAX2(all, most[b]);
    }
    return all < 0x7f800000;
}

/* One group; |residual| is NULL without feedback. A scale of 0 says that all of the block is coded as zeros. */
UT_LANE void encode_group(const unsigned form, const bool nearest, uint8_t *codes, const float *x, float *residual,
                          uint32_t i, float scale, float inverse, uint64_t key, const scaling *s)
{
    codes_of_group q;
    values left;
    if (scale > 0) {
        const values y = values_at(x, residual, s);
        const vr by = r_set(scale);
        q = codes_at(form, nearest, y, inverse, key, i);
        EACH(left.r[j] = r_sub(y.r[j], r_mul(r_of(q.n[j]), by));)
    } else {
        EACH({
            q.n[j] = n_set(0);
            left.r[j] = r_set(0);
        })
    }
    n_pack(form, codes, q.n);
    if (residual)
        EACH(r_store(residual + j * LANES, left.r[j]);)
}

UT_LANE uint32_t encode_as(const unsigned form, const bool nearest, const bool feedback, uint8_t *out, const float *x,
                           float *residual, uint32_t n, const ut_quant_rounding *r, ut_quant_told *told)
{
    const uint32_t size = quant_block(form), blocks = quant_blocks(form, n), whole = n / GROUP * GROUP;
    const scaling s = scaling_of(r->divisor);
    float last_x[GROUP] = {0}, last_residual[GROUP] = {0};
    uint8_t last_codes[2 * GROUP];
    uint32_t most[QUANT_BLOCKS_MAX];
    quant_scales scales;
    memcpy(last_x, x + whole, (n - whole) * sizeof *x);
    if (feedback)
        memcpy(last_residual, residual + whole, (n - whole) * sizeof *residual);
    if (!largest(form, most, x, feedback ? residual : NULL, last_x, last_residual, n, &s))
        return ut_quant_plain.encode(form, out, x, residual, n, r, told);
    told->nonfinite = 0;
    told->error = quant_choose_scales(form, out, most, n, false, &scales);
    uint8_t *const codes = out + UT_QUANT_HEADER + blocks;
    for (uint32_t i = 0; i < whole; i += GROUP)
        encode_group(form, nearest, codes + quant_code_bytes(form, i), x + i, feedback ? residual + i : NULL, i,
                     scales.scale[i / size], scales.inverse[i / size], r->key, &s);
    if (whole < n) {
        encode_group(form, nearest, last_codes, last_x, feedback ? last_residual : NULL, whole,
                     scales.scale[whole / size], scales.inverse[whole / size], r->key, &s);
        memcpy(codes + quant_code_bytes(form, whole), last_codes, quant_code_bytes(form, n - whole));
        if (feedback)
            memcpy(residual + whole, last_residual, (n - whole) * sizeof *residual);
    }
    return UT_QUANT_HEADER + blocks + quant_code_bytes(form, n);
}

UT_LANE void decode_group(const unsigned form, const bool add, float *out, const uint8_t *codes, float scale, bool nans)
{
    codes_of_group q;
    values v;
    const vr by = r_set(scale);
    n_unpack(form, codes, q.n);
    EACH(v.r[j] = r_mul(r_of(q.n[j]), by);)
    if (nans) {
        const vn lowest = n_set(-quant_levels(form) - 1);
        const vr nan = r_set(ut_float_of_bits(0x7fc00000));
        EACH(v.r[j] = r_where_equal(q.n[j], lowest, nan, v.r[j]);)
    }
    if (add)
        EACH(v.r[j] = r_add(r_load(out + j * LANES), v.r[j]);)
    EACH(r_store(out + j * LANES, v.r[j]);)
}

UT_LANE void decode_as(const unsigned form, const bool add, float *out, const uint8_t *slot, uint32_t n)
{
    const uint32_t size = quant_block(form), whole = n / GROUP * GROUP;
    const uint8_t *const codes = slot + UT_QUANT_HEADER + quant_blocks(form, n);
    const bool nans = slot[0] & UT_QUANT_NAN;
    for (uint32_t i = 0; i < whole; i += GROUP)
        decode_group(form, add, out + i, codes + quant_code_bytes(form, i), quant_scale_at(slot, i / size), nans);
    if (whole < n) {
        uint8_t last_codes[2 * GROUP] = {0};
        float last[GROUP] = {0};
        memcpy(last_codes, codes + quant_code_bytes(form, whole), quant_code_bytes(form, n - whole));
        memcpy(last, out + whole, add ? (n - whole) * sizeof *out : 0);
        decode_group(form, add, last, last_codes, quant_scale_at(slot, whole / size), nans);
        memcpy(out + whole, last, (n - whole) * sizeof *out);
    }
}

/* Each form, rounding and use has code of its own. */
#define ENCODE_AS(name, form, nearest)                                                                                 \
    static UT_TARGET uint32_t encode_##name(uint8_t *out, const float *x, float *residual, uint32_t n,                 \
                                            const ut_quant_rounding *r, ut_quant_told *told)                           \
    {                                                                                                                  \
        if (residual)                                                                                                  \
            return encode_as(form, nearest, true, out, x, residual, n, r, told);                                       \
        return encode_as(form, nearest, false, out, x, NULL, n, r, told);                                              \
    }
ENCODE_AS(int16_random, UT_QUANT_INT16, false)
ENCODE_AS(int16_nearest, UT_QUANT_INT16, true)
ENCODE_AS(int8_random, UT_QUANT_INT8, false)
ENCODE_AS(int8_nearest, UT_QUANT_INT8, true)
ENCODE_AS(int4_random, UT_QUANT_INT4, false)
ENCODE_AS(int4_nearest, UT_QUANT_INT4, true)

static uint32_t encode(unsigned form, uint8_t *out, const float *x, float *residual, uint32_t n,
                       const ut_quant_rounding *r, ut_quant_told *told)
{
    if (form == UT_QUANT_INT16)
        return (r->nearest ? encode_int16_nearest : encode_int16_random)(out, x, residual, n, r, told);
    if (form == UT_QUANT_INT8)
        return (r->nearest ? encode_int8_nearest : encode_int8_random)(out, x, residual, n, r, told);
    return (r->nearest ? encode_int4_nearest : encode_int4_random)(out, x, residual, n, r, told);
}

static UT_TARGET void decode(unsigned form, float *out, const uint8_t *slot, uint32_t n, bool add)
{
    if (form == UT_QUANT_INT16)
        add ? decode_as(UT_QUANT_INT16, true, out, slot, n) : decode_as(UT_QUANT_INT16, false, out, slot, n);
    else if (form == UT_QUANT_INT8)
        add ? decode_as(UT_QUANT_INT8, true, out, slot, n) : decode_as(UT_QUANT_INT8, false, out, slot, n);
    else
        add ? decode_as(UT_QUANT_INT4, true, out, slot, n) : decode_as(UT_QUANT_INT4, false, out, slot, n);
}

const ut_quant_kernels UT_QUANT_TABLE = {encode, decode};

#endif
