/* SPDX-License-Identifier: Apache-2.0
 *
 * One value of a block, as it travels and back; see block.h for the forms. Where |form| is a constant, the compiler
 * makes a loop of one instruction set of it.
 */
#ifndef UT_BLOCK_FORM_H
#define UT_BLOCK_FORM_H

#include "block.h"

#include "core/base/mix.h"

#include "half.h"

/* Rounds to the nearest, ties to even; what is too large becomes 448, and what is not finite NaN. */
static inline uint8_t ut_f8_of_float(float value)
{
    const uint32_t bits = ut_float_bits(value), magnitude = bits & 0x7fffffff;
    const uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (magnitude >= 0x7f800000)
        return sign | 0x7f;
    /* Below 2^-6 one unit is 2^-9, the last bit of 2^14: the adder rounds. */
    uint32_t small = ut_float_bits(ut_float_of_bits(magnitude) + 0x1p14f) - 0x46800000;
    uint32_t normal = (magnitude - (120u << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    uint32_t f8 = magnitude < 0x3c800000 ? small : normal;
    return (uint8_t)(sign | UT_MIN2(f8, 0x7e));
}

static inline float ut_float_of_f8(uint8_t f8)
{
    const uint32_t sign = (uint32_t)(f8 & 0x80) << 24, magnitude = f8 & 0x7f;
    if (magnitude == 0x7f)
        return ut_float_of_bits(sign | 0x7fc00000);
    const float value = magnitude < 8 ? (float)magnitude * 0x1p-9f : ut_float_of_bits((magnitude << 20) + (120u << 23));
    return ut_float_of_bits(sign | ut_float_bits(value));
}

static inline void ut_value_store(uint8_t *out, float x, unsigned form, float inverse)
{
    uint16_t half = form == UT_VALUE_FLOAT16 ? ut_f16_of_float(x) : ut_bf16_of_float(x);
    if (form == UT_VALUE_FLOAT32)
        memcpy(out, &x, 4);
    else if (form == UT_VALUE_FLOAT8)
        *out = ut_f8_of_float(x * inverse);
    else
        memcpy(out, &half, 2);
}

static inline float ut_value_load(const uint8_t *in, unsigned form, float scale)
{
    float x;
    uint16_t half;
    if (form == UT_VALUE_FLOAT8)
        return ut_float_of_f8(*in) * scale;
    if (form == UT_VALUE_FLOAT32) {
        memcpy(&x, in, 4);
        return x;
    }
    memcpy(&half, in, 2);
    return form == UT_VALUE_FLOAT16 ? ut_float_of_f16(half) : ut_float_of_bf16(half);
}

/* The number of one element in a digest; 0 for 0 and -0. */
static inline uint64_t ut_sparse_digest_part(uint32_t bits, uint64_t element)
{
    return bits << 1 ? ut_mix((uint64_t)bits << 32 | (uint32_t)element) : 0;
}

/* Bytes of an index: nothing for a dense block, a bit for each unit, or Elias-Fano with |low| bits of each apart. */
size_t ut_block_index_bytes(unsigned index, uint32_t entries, uint32_t units, unsigned low);
/* Bits of an Elias-Fano index's high part: a one for each entry, and room for the steps between. */
static inline uint64_t ut_block_high_bits(uint32_t entries, uint32_t units, unsigned low)
{
    return entries ? (uint64_t)entries + ((units - 1) >> low) : 0;
}
/* Bytes before what says who is in a block, and bytes of that. */
static inline size_t ut_block_head(unsigned form)
{
    return UT_BLOCK_HEADER + (form == UT_VALUE_FLOAT8 ? sizeof(float) : 0);
}
static inline size_t ut_block_who_bytes(uint32_t runs)
{
    return runs ? 2 + (size_t)runs * UT_BLOCK_RUN : 0;
}

#endif
