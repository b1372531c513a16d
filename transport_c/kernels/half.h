/* SPDX-License-Identifier: Apache-2.0
 *
 * float16 and bfloat16 by integer arithmetic, one element at a time: the definition that the vector code must match bit
 * for bit, and the code that runs where there is no F16C. All rounding is to nearest, ties to even; subnormals are
 * kept.
 */
#ifndef UT_HALF_H
#define UT_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t ut_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float ut_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float ut_float_of_bf16(uint16_t half)
{
    return ut_float_of_bits((uint32_t)half << 16);
}

/* Adding just under half a unit of the last kept bit carries into the kept bits exactly when rounding up is right; the
 * last kept bit breaks ties. */
static inline uint16_t ut_bf16_of_float(float value)
{
    const uint32_t bits = ut_float_bits(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40; /* a NaN whose low bits go must not become Inf */
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

/* A product with 2^112 moves the exponent, and also makes subnormals normal; for Inf and NaN the exponent is set. */
static inline float ut_float_of_f16(uint16_t half)
{
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t finite = ut_float_bits(ut_float_of_bits(magnitude) * 0x1p112f);
    const uint32_t bits = magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : finite;
    return ut_float_of_bits(sign | bits);
}

static inline uint16_t ut_f16_of_float(float value)
{
    const uint32_t bits = ut_float_bits(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t sign = bits >> 16 & 0x8000;
    /* Normal: re-bias (127 - 15 = 112), then round away 13 bits; a carry out of the mantissa is the right exponent, Inf
     * included. */
    const uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    /* Below 2^-14: one unit is 2^-24, which is the last bit of 0.5f; the adder rounds. */
    const uint32_t subnormal = ut_float_bits(ut_float_of_bits(magnitude) + 0.5f) - 0x3f000000;
    uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x47800000 ? 0x7c00 : half; /* 2^16 and up, Inf */
    half = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x1ff) : half;
    return (uint16_t)(sign | half);
}

/* Rounds to odd: an inexact result gets its last bit set. Rounding that result once more, to a format at least two bits
 * shorter, gives the same as rounding |value| directly. So a quotient reaches a half type with a single rounding. */
static inline float ut_float_odd_of_double(double value)
{
    const float nearest = (float)value;
    const double back = (double)nearest;
    const uint32_t outward = __builtin_fabs(back) > __builtin_fabs(value); /* step back to the truncated value */
    const uint32_t inexact = (back < value) | (back > value);              /* false for NaN */
    return ut_float_of_bits((ut_float_bits(nearest) - outward) | inexact);
}

#endif
