/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers as each dtype holds them. The simulator has conversions of its own, so that it does not judge the core's
 * kernels by themselves.
 */
#include "sim/sim.h"

static uint16_t half_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude >= 0x7f800000)
        return (uint16_t)(sign | 0x7c00 | (magnitude > 0x7f800000 ? 0x200 : 0));
    if (magnitude < 0x38800000) { /* below 2^-14: a multiple of 2^-24 */
        float scaled = (sign ? -x : x) * 16777216.0f;
        uint32_t n = (uint32_t)scaled;
        float rest = scaled - (float)n;
        n += rest > 0.5f || (rest == 0.5f && (n & 1));
        return (uint16_t)(sign | n);
    }
    uint32_t n = (magnitude - 0x38000000) >> 13, rest = magnitude & 0x1fff;
    n += rest > 0x1000 || (rest == 0x1000 && (n & 1));
    return (uint16_t)(sign | UT_MIN2(n, 0x7c00u));
}

static uint16_t brain_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t n = u >> 16, rest = u & 0xffff;
    if ((u & 0x7fffffff) < 0x7f800000)
        n += rest > 0x8000 || (rest == 0x8000 && (n & 1));
    return (uint16_t)n;
}

void sim_code_put(unsigned dtype, int64_t numerator, int64_t divisor, void *out)
{
    float single = (float)numerator / (float)divisor;
    double twice = (double)numerator / (double)divisor;
    int64_t whole = numerator / divisor;
    int32_t narrow = (int32_t)whole;
    uint16_t half;
    switch (dtype) {
    case UT_FLOAT32:
        memcpy(out, &single, 4);
        break;
    case UT_FLOAT64:
        memcpy(out, &twice, 8);
        break;
    case UT_FLOAT16:
        half = half_bits(single);
        memcpy(out, &half, 2);
        break;
    case UT_BFLOAT16:
        half = brain_bits(single);
        memcpy(out, &half, 2);
        break;
    case UT_INT32:
        memcpy(out, &narrow, 4);
        break;
    default:
        memcpy(out, &whole, 8);
    }
}

void sim_code_put_infinite(unsigned dtype, void *out)
{
    static const float f32 = __builtin_inff();
    static const double f64 = __builtin_inf();
    static const uint16_t f16 = 0x7c00, b16 = 0x7f80;
    const void *from = dtype == UT_FLOAT32 ? (const void *)&f32 : dtype == UT_FLOAT64 ? (const void *)&f64 : &f16;
    memcpy(out, dtype == UT_BFLOAT16 ? &b16 : from, ut_dtype_bytes(dtype));
}

static float half_value(uint16_t h)
{
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    float x;
    if (exponent == 0) {
        x = (float)mantissa / 16777216.0f;
    } else {
        uint32_t u = (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13;
        memcpy(&x, &u, 4);
    }
    return h & 0x8000 ? -x : x;
}

double sim_code_real(unsigned dtype, const void *value)
{
    float single;
    double x;
    uint16_t half;
    uint32_t u;
    int32_t narrow;
    int64_t whole;
    switch (dtype) {
    case UT_INT64:
        memcpy(&whole, value, 8);
        return (double)whole;
    case UT_INT32:
        memcpy(&narrow, value, 4);
        return narrow;
    case UT_FLOAT64:
        memcpy(&x, value, 8);
        return x;
    case UT_FLOAT32:
        memcpy(&single, value, 4);
        return single;
    case UT_FLOAT16:
        memcpy(&half, value, 2);
        return half_value(half);
    default:
        memcpy(&half, value, 2);
        u = (uint32_t)half << 16;
        memcpy(&single, &u, 4);
        return single;
    }
}

bool sim_code_whole(unsigned dtype, const void *value, int64_t *ret)
{
    if (dtype == UT_INT64) {
        memcpy(ret, value, 8);
        return true;
    }
    double x = sim_code_real(dtype, value);
    if (!(x > -9.0e15 && x < 9.0e15))
        return false;
    *ret = (int64_t)x;
    return (double)*ret == x;
}
