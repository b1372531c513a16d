/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums with coefficients. The loops have fixed ends, so that compilers make vectors of them.
 */
#include "kernels/kernels.h"

enum { BLOCK = 64 };

static void add_floats(double *sum, double weight, const uint8_t *src)
{
    float x[BLOCK];
    memcpy(x, src, sizeof x);
    for (unsigned i = 0; i < BLOCK; i++)
        sum[i] += weight * (double)x[i];
}

static void add_doubles(double *sum, double weight, const uint8_t *src)
{
    double x[BLOCK];
    memcpy(x, src, sizeof x);
    for (unsigned i = 0; i < BLOCK; i++)
        sum[i] += weight * x[i];
}

void ut_weigh(unsigned dtype, void *dst, const void *const *src, const double *weight, unsigned k, size_t n)
{
    size_t element = dtype == UT_FLOAT32 ? sizeof(float) : sizeof(double);
    uint8_t *out = dst;
    for (size_t at = 0; at < n; at += BLOCK) {
        double sum[BLOCK] = {0};
        float single[BLOCK];
        uint8_t rest[BLOCK * sizeof(double)] = {0};
        size_t some = UT_MIN2(n - at, (size_t)BLOCK);
        for (unsigned j = 0; j < k; j++) {
            const uint8_t *from = (const uint8_t *)src[j] + at * element;
            if (some < BLOCK)
                from = memcpy(rest, from, some * element);
            if (dtype == UT_FLOAT32)
                add_floats(sum, weight[j], from);
            else
                add_doubles(sum, weight[j], from);
        }
        for (unsigned i = 0; i < BLOCK; i++)
            single[i] = (float)sum[i];
        memcpy(out + at * element, dtype == UT_FLOAT32 ? (void *)single : (void *)sum, some * element);
    }
}
