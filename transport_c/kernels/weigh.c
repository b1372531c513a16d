/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums with coefficients, in double. The loops have fixed ends, so that compilers make vectors of them.
 */
#include "kernels/kernels.h"

#include "half.h"

enum { BLOCK = 64 };

/* |n| elements of |dtype|, a block at most, and zeros behind them. */
static void load(unsigned dtype, double x[BLOCK], const uint8_t *from, size_t n)
{
    uint8_t rest[BLOCK * sizeof(double)] = {0};
    uint16_t half[BLOCK];
    float single[BLOCK];
    if (n < BLOCK)
        from = memcpy(rest, from, n * ut_dtype_bytes(dtype));
    if (dtype == UT_FLOAT64) {
        memcpy(x, from, BLOCK * sizeof *x);
        return;
    }
    if (dtype == UT_FLOAT32) {
        memcpy(single, from, sizeof single);
    } else {
        memcpy(half, from, sizeof half);
        for (unsigned i = 0; i < BLOCK; i++)
            single[i] = dtype == UT_FLOAT16 ? ut_float_of_f16(half[i]) : ut_float_of_bf16(half[i]);
    }
    for (unsigned i = 0; i < BLOCK; i++)
        x[i] = (double)single[i];
}

static void store(unsigned dtype, uint8_t *to, const double x[BLOCK], size_t n)
{
    uint16_t half[BLOCK];
    float single[BLOCK];
    const void *from = dtype == UT_FLOAT64 ? (const void *)x : dtype == UT_FLOAT32 ? (const void *)single : half;
    for (unsigned i = 0; i < BLOCK; i++)
        single[i] = (float)x[i];
    for (unsigned i = 0; i < BLOCK && from == half; i++)
        half[i] = dtype == UT_FLOAT16 ? ut_f16_of_float(single[i]) : ut_bf16_of_float(single[i]);
    memcpy(to, from, n * ut_dtype_bytes(dtype));
}

void ut_weigh(unsigned dtype, void *dst, const void *const *src, const double *weight, unsigned k, size_t n,
              double divisor)
{
    const size_t element = ut_dtype_bytes(dtype);
    for (size_t at = 0; at < n; at += BLOCK) {
        double sum[BLOCK] = {0}, x[BLOCK];
        const size_t some = UT_MIN2(n - at, (size_t)BLOCK);
        for (unsigned j = 0; j < k; j++) {
            load(dtype, x, (const uint8_t *)src[j] + at * element, some);
            for (unsigned i = 0; i < BLOCK; i++)
                sum[i] += weight[j] * x[i];
        }
        for (unsigned i = 0; i < BLOCK && divisor != 1; i++)
            sum[i] /= divisor;
        store(dtype, (uint8_t *)dst + at * element, sum, some);
    }
}

static unsigned accumulator_of(unsigned dtype)
{
    return dtype == UT_FLOAT64 ? UT_FLOAT64 : UT_FLOAT32;
}

void ut_weigh_in(unsigned dtype, void *acc, const void *in, double weight, bool first, size_t n)
{
    const unsigned kept = accumulator_of(dtype);
    const size_t element = ut_dtype_bytes(dtype), wide = ut_dtype_bytes(kept);
    for (size_t at = 0; at < n; at += BLOCK) {
        double sum[BLOCK] = {0}, x[BLOCK] = {0};
        const size_t some = UT_MIN2(n - at, (size_t)BLOCK);
        uint8_t *to = (uint8_t *)acc + at * wide;
        if (!first)
            load(kept, sum, to, some);
        if (weight != 0) /* else NaN would be in it */
            load(dtype, x, (const uint8_t *)in + at * element, some);
        for (unsigned i = 0; i < BLOCK; i++)
            sum[i] += weight * x[i];
        store(kept, to, sum, some);
    }
}

size_t ut_weigh_out(unsigned dtype, void *dst, const void *acc, double sum, size_t n)
{
    const unsigned kept = accumulator_of(dtype);
    const size_t element = ut_dtype_bytes(dtype), wide = ut_dtype_bytes(kept);
    for (size_t at = 0; at < n; at += BLOCK) {
        double x[BLOCK];
        const size_t some = UT_MIN2(n - at, (size_t)BLOCK);
        load(kept, x, (const uint8_t *)acc + at * wide, some);
        for (unsigned i = 0; i < BLOCK; i++)
            x[i] /= sum;
        store(dtype, (uint8_t *)dst + at * element, x, some);
    }
    return ut_place(dtype, dst, dst, n);
}
