/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted sums and means of an instruction set, after fold_loops.h, whose table of them is at its end. All arithmetic
 * is in double, an element at a time and in the order of the sources, so every instruction set gives the same bits: the
 * vectors of fold_lanes.h turn halves into float32 and back, and the loops between have fixed ends, of which the
 * compiler makes vectors.
 */

enum { WEIGH_BLOCK = 64 };
_Static_assert(WEIGH_BLOCK % LANES == 0, "a block is whole vectors");

/* |n| elements, a block at most, and zeros behind them. */
UT_LEAF void weigh_load(unsigned dtype, double x[WEIGH_BLOCK], const uint8_t *from, size_t n)
{
    float single[WEIGH_BLOCK] = {0};
    if (dtype == UT_FLOAT64) {
        memset(x, 0, n < WEIGH_BLOCK ? WEIGH_BLOCK * sizeof *x : 0);
        memcpy(x, from, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i += LANES)
        v_store((uint8_t *)(single + i), v_load(dtype, from + i * float_bytes(dtype), UT_MIN2(n - i, (size_t)LANES)),
                LANES);
    for (unsigned i = 0; i < WEIGH_BLOCK; i++)
        x[i] = (double)single[i];
}

UT_LEAF void weigh_store(unsigned dtype, uint8_t *to, const double x[WEIGH_BLOCK], size_t n)
{
    float single[WEIGH_BLOCK];
    vseen seen = v_seen_none();
    if (dtype == UT_FLOAT64) {
        memcpy(to, x, n * sizeof *x);
        return;
    }
    for (unsigned i = 0; i < WEIGH_BLOCK; i++)
        single[i] = (float)x[i];
    for (size_t i = 0; i < n; i += LANES)
        v_result(dtype, to + i * float_bytes(dtype), v_load(UT_FLOAT32, (const uint8_t *)(single + i), LANES),
                 UT_MIN2(n - i, (size_t)LANES), &seen);
}

UT_LEAF void weigh_add(double sum[WEIGH_BLOCK], const double x[WEIGH_BLOCK], double weight)
{
    for (unsigned i = 0; i < WEIGH_BLOCK; i++)
        sum[i] += weight * x[i];
}

UT_LEAF void weigh(unsigned dtype, size_t element, uint8_t *dst, const void *const *src, const double *weight,
                   unsigned k, size_t n, double divisor)
{
    for (size_t at = 0; at < n; at += WEIGH_BLOCK) {
        double sum[WEIGH_BLOCK] = {0}, x[WEIGH_BLOCK];
        const size_t some = UT_MIN2(n - at, (size_t)WEIGH_BLOCK);
        for (unsigned j = 0; j < k; j++) {
            weigh_load(dtype, x, (const uint8_t *)src[j] + at * element, some);
            weigh_add(sum, x, weight[j]);
        }
        for (unsigned i = 0; i < WEIGH_BLOCK && divisor != 1; i++)
            sum[i] /= divisor;
        weigh_store(dtype, dst + at * element, sum, some);
    }
}

/* |kept| is the dtype of accumulators, of |wide| bytes. */
UT_LEAF void weigh_in(unsigned dtype, unsigned kept, size_t element, size_t wide, uint8_t *acc, const uint8_t *in,
                      double weight, bool first, size_t n)
{
    for (size_t at = 0; at < n; at += WEIGH_BLOCK) {
        double sum[WEIGH_BLOCK] = {0}, x[WEIGH_BLOCK] = {0};
        const size_t some = UT_MIN2(n - at, (size_t)WEIGH_BLOCK);
        if (!first)
            weigh_load(kept, sum, acc + at * wide, some);
        if (weight != 0) /* else NaN would be in it */
            weigh_load(dtype, x, in + at * element, some);
        weigh_add(sum, x, weight);
        weigh_store(kept, acc + at * wide, sum, some);
    }
}

UT_LEAF void weigh_out(unsigned dtype, unsigned kept, size_t element, size_t wide, uint8_t *dst, const uint8_t *acc,
                       double sum, size_t n)
{
    for (size_t at = 0; at < n; at += WEIGH_BLOCK) {
        double x[WEIGH_BLOCK];
        const size_t some = UT_MIN2(n - at, (size_t)WEIGH_BLOCK);
        weigh_load(kept, x, acc + at * wide, some);
        for (unsigned i = 0; i < WEIGH_BLOCK; i++)
            x[i] /= sum;
        weigh_store(dtype, dst + at * element, x, some);
    }
}

#define WEIGH_OF(D, DTYPE, KEPT, ELEMENT, WIDE)                                                                        \
    static UT_TARGET void weigh_##D(void *dst, const void *const *src, const double *weight, unsigned k, size_t n,     \
                                    double divisor)                                                                    \
    {                                                                                                                  \
        weigh(DTYPE, ELEMENT, dst, src, weight, k, n, divisor);                                                        \
    }                                                                                                                  \
    static UT_TARGET void weigh_in_##D(void *acc, const void *in, double weight, bool first, size_t n)                 \
    {                                                                                                                  \
        weigh_in(DTYPE, KEPT, ELEMENT, WIDE, acc, in, weight, first, n);                                               \
    }                                                                                                                  \
    static UT_TARGET void weigh_out_##D(void *dst, const void *acc, double sum, size_t n)                              \
    {                                                                                                                  \
        weigh_out(DTYPE, KEPT, ELEMENT, WIDE, dst, acc, sum, n);                                                       \
    }
WEIGH_OF(f32, UT_FLOAT32, UT_FLOAT32, 4, 4)
WEIGH_OF(f64, UT_FLOAT64, UT_FLOAT64, 8, 8)
WEIGH_OF(f16, UT_FLOAT16, UT_FLOAT32, 2, 4)
WEIGH_OF(bf16, UT_BFLOAT16, UT_FLOAT32, 2, 4)

const ut_weigh_kernels UT_WEIGH_TABLE = {
    .weigh = {[UT_FLOAT32] = weigh_f32, [UT_FLOAT64] = weigh_f64, [UT_FLOAT16] = weigh_f16, [UT_BFLOAT16] = weigh_bf16},
    .in = {[UT_FLOAT32] = weigh_in_f32,
           [UT_FLOAT64] = weigh_in_f64,
           [UT_FLOAT16] = weigh_in_f16,
           [UT_BFLOAT16] = weigh_in_bf16},
    .out = {[UT_FLOAT32] = weigh_out_f32,
            [UT_FLOAT64] = weigh_out_f64,
            [UT_FLOAT16] = weigh_out_f16,
            [UT_BFLOAT16] = weigh_out_bf16},
};
