/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels should compute, one element at a time, written differently: quotients and roundings go through
 * double, whose 53 bits leave no doubt (a quotient of two 24-bit numbers is never nearer to the middle between two
 * results than double can tell), halves through the compiler's _Float16 and a search for the nearest bfloat16, integers
 * through 128 bits.
 */
#ifndef UT_KERNELS_MODEL_H
#define UT_KERNELS_MODEL_H

#include "check.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#if defined(__FLT16_MANT_DIG__)
#define MODEL_HAS_FLOAT16 1
#endif

/* An element of any dtype, as bits in the low bytes. */
typedef uint64_t element;

static inline element element_at(unsigned dtype, const void *base, size_t i)
{
    element bits = 0;
    memcpy(&bits, (const uint8_t *)base + i * ut_dtype_bytes(dtype), ut_dtype_bytes(dtype)); /* little-endian */
    return bits;
}

static inline void element_put(unsigned dtype, void *base, size_t i, element bits)
{
    memcpy((uint8_t *)base + i * ut_dtype_bytes(dtype), &bits, ut_dtype_bytes(dtype));
}

static inline double double_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline bool is_float(unsigned dtype)
{
    return dtype != UT_INT32 && dtype != UT_INT64;
}

static inline bool is_half(unsigned dtype)
{
    return dtype == UT_FLOAT16 || dtype == UT_BFLOAT16;
}

/* The accumulator's dtype. */
static inline unsigned acc_of(unsigned dtype)
{
    return is_half(dtype) ? UT_FLOAT32 : dtype;
}

/* The value of a float element; exact. */
static inline double model_value(unsigned dtype, element bits)
{
    switch (dtype) {
    case UT_FLOAT64:
        return double_of_bits(bits);
    case UT_FLOAT32:
        return (double)ut_float_of_bits((uint32_t)bits);
    case UT_BFLOAT16:
        return (double)ut_float_of_bits((uint32_t)bits << 16);
    default: {
        const uint16_t half = (uint16_t)bits;
#if MODEL_HAS_FLOAT16
        _Float16 value;
        memcpy(&value, &half, sizeof value);
        return (double)value;
#else
        return (double)ut_float_of_f16(half);
#endif
    }
    }
}

/* The bfloat16 nearest to |value|, by looking at three neighbours. */
static inline uint16_t model_bf16(double value)
{
    if (value != value)
        return 0x7fc0;
    const double magnitude = __builtin_fabs(value);
    const uint16_t sign = (uint16_t)(bits_of_double(value) >> 63 << 15);
    const uint16_t guess = (uint16_t)(ut_float_bits((float)magnitude) >> 16);
    if (guess == 0x7f80)
        return sign | guess;
    uint16_t best = 0;
    double best_off = 0;
    for (uint16_t c = guess > 0 ? guess - 1 : 0; c <= guess + 1; c++) {
        const double at = c == 0x7f80 ? 0x1p128 : (double)ut_float_of_bits((uint32_t)c << 16);
        const double off = __builtin_fabs(at - magnitude); /* exact near the best */
        if (c == (guess > 0 ? guess - 1 : 0) || off < best_off || (off == best_off && c % 2 == 0)) {
            best = c;
            best_off = off;
        }
    }
    return sign | best;
}

/* |value| rounded once to |dtype|. */
static inline element model_round(unsigned dtype, double value)
{
    switch (dtype) {
    case UT_FLOAT64:
        return bits_of_double(value);
    case UT_FLOAT32:
        return ut_float_bits((float)value);
    case UT_BFLOAT16:
        return model_bf16(value);
    default: {
#if MODEL_HAS_FLOAT16
        const _Float16 half = (_Float16)value;
        uint16_t bits;
        memcpy(&bits, &half, sizeof bits);
        return bits;
#else
        return ut_f16_of_float(ut_float_odd_of_double(value));
#endif
    }
    }
}

static inline bool model_is_bad(unsigned dtype, element bits)
{
    return is_float(dtype) && !__builtin_isfinite(model_value(dtype, bits));
}

static inline element model_apply_float(unsigned acc, unsigned redop, double a, double b)
{
    if (redop == UT_MIN || redop == UT_MAX) {
        const bool first = a != a || (b == b && (redop == UT_MIN ? a < b : a > b));
        return model_round(acc, first ? a : b);
    }
    if (acc == UT_FLOAT64)
        return bits_of_double(redop == UT_PROD ? a * b : a + b);
    /* Sum and product of two floats: exact or innocently rounded in double. */
    return model_round(acc, redop == UT_PROD ? a * b : a + b);
}

static inline element model_apply_int(unsigned dtype, unsigned redop, element a, element b)
{
    const __int128 x = dtype == UT_INT32 ? (int32_t)a : (int64_t)a, y = dtype == UT_INT32 ? (int32_t)b : (int64_t)b;
    __int128 r = x + y;
    if (redop == UT_MIN)
        r = x < y ? x : y;
    else if (redop == UT_MAX)
        r = x > y ? x : y;
    else if (redop == UT_PROD)
        r = x * y;
    return dtype == UT_INT32 ? (element)(uint32_t)r : (element)r;
}

/* One contribution of |dtype| onto an accumulator, which comes and goes as bits of acc_of(dtype). */
static inline element model_fold(unsigned dtype, unsigned redop, element acc, element in)
{
    if (!is_float(dtype))
        return model_apply_int(dtype, redop, acc, in);
    return model_apply_float(acc_of(dtype), redop, model_value(acc_of(dtype), acc), model_value(dtype, in));
}

/* An element of dtype as its accumulator. */
static inline element model_widen(unsigned dtype, element in)
{
    return is_half(dtype) ? model_round(UT_FLOAT32, model_value(dtype, in)) : in;
}

static inline element model_finish(unsigned dtype, unsigned redop, element acc, uint32_t divisor)
{
    if (!is_float(dtype)) {
        if (redop != UT_AVG)
            return acc;
        const int64_t whole = dtype == UT_INT32 ? (int32_t)acc : (int64_t)acc;
        const __int128 q = (__int128)whole / (__int128)divisor;
        return dtype == UT_INT32 ? (element)(uint32_t)q : (element)q;
    }
    const double value = model_value(acc_of(dtype), acc);
    return model_round(dtype, redop == UT_AVG ? value / (double)divisor : value);
}

/* Equal, where one NaN is as good as another. */
static inline bool model_same(unsigned dtype, element a, element b)
{
    if (a == b)
        return true;
    if (!is_float(dtype))
        return false;
    const double x = model_value(dtype, a), y = model_value(dtype, b);
    return x != x && y != y;
}

#endif
