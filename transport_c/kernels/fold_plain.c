/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels in portable C, for any CPU: one lane, which the compiler may vectorize with what the platform guarantees.
 */
#include "half.h"
#include "table.h"

#define UT_TARGET
#define UT_TABLE ut_kernels_plain
#define UT_WEIGH_TABLE ut_weigh_plain
#define PLAIN static inline __attribute__((always_inline))
typedef float vf;
enum { LANES = 1, HEAD = 0, TAIL = 0 };

PLAIN vf v_load(unsigned type, const uint8_t *p, size_t k)
{
    uint16_t half;
    vf v;
    (void)k;
    if (type == UT_FLOAT32) {
        memcpy(&v, p, sizeof v);
        return v;
    }
    memcpy(&half, p, sizeof half);
    return type == UT_FLOAT16 ? ut_float_of_f16(half) : ut_float_of_bf16(half);
}

PLAIN void v_store(uint8_t *p, vf v, size_t k)
{
    (void)k;
    memcpy(p, &v, sizeof v);
}

/* The magnitude plus one unit of the exponent, ORed: the top bit is set once an exponent was all ones. */
typedef uint32_t vseen;

PLAIN vseen v_seen_none(void)
{
    return 0;
}

PLAIN bool v_seen_bad(unsigned type, vseen seen)
{
    return seen >> (type == UT_FLOAT32 ? 31 : 15) != 0;
}

PLAIN void v_result(unsigned type, uint8_t *p, vf v, size_t k, vseen *seen)
{
    if (type == UT_FLOAT32) {
        v_store(p, v, k);
        *seen |= (ut_float_bits(v) & 0x7fffffff) + 0x00800000;
        return;
    }
    const uint16_t half = type == UT_FLOAT16 ? ut_f16_of_float(v) : ut_bf16_of_float(v);
    memcpy(p, &half, sizeof half);
    *seen |= (half & 0x7fffu) + (type == UT_FLOAT16 ? 0x0400u : 0x0080u);
}

PLAIN vf v_set(float value)
{
    return value;
}

PLAIN vf v_add(vf a, vf b)
{
    return a + b;
}

PLAIN vf v_mul(vf a, vf b)
{
    return a * b;
}

PLAIN vf v_div(vf a, vf b)
{
    return a / b;
}

PLAIN vf v_min(vf a, vf b)
{
    return a != a ? a : a < b ? a : b;
}

PLAIN vf v_max(vf a, vf b)
{
    return a != a ? a : a > b ? a : b;
}

PLAIN vf v_quotient(unsigned type, vf v, bool divide, double by)
{
    if (type == UT_FLOAT16 && !divide) /* inexact only where float16 is zero anyway */
        return v * (float)by;
    return ut_float_odd_of_double(divide ? (double)v / by : (double)v * by);
}

#include "fold_lanes.h"
#include "fold_loops.h"
#include "weigh_loops.h"
