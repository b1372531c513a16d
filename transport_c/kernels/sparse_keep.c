/* SPDX-License-Identifier: Apache-2.0
 *
 * What selection needs beside ut_keep, and what undoes it: bound by memory or by one element at a time, so that plain C
 * serves all CPUs.
 */
#include "half.h"
#include "sparse.h"

void ut_magnitudes(const float *p, size_t n, uint32_t prefix, unsigned shift, unsigned bits, uint64_t *counts)
{
    /* Neighbours often fall into one bin, and would wait for each other's sum. */
    enum { WAYS = 4, BINS = 1 << 11 };
    uint32_t ways[WAYS][BINS];
    const uint32_t mask = (1u << bits) - 1;
    const unsigned above = shift + bits;
    assert(bits > 0 && bits <= 11 && above <= 31);
    for (size_t from = 0; from < n; from += UINT32_MAX) {
        const size_t end = from + UT_MIN2(n - from, (size_t)UINT32_MAX);
        memset(ways, 0, sizeof ways);
        for (size_t i = from; i < end; i++) {
            const uint32_t mine = ut_float_bits(p[i]) & 0x7fffffff;
            if (mine >> above == prefix)
                ways[i % WAYS][mine >> shift & mask]++;
        }
        for (unsigned way = 0; way < WAYS; way++)
            for (uint32_t b = 0; b <= mask; b++)
                counts[b] += ways[way][b];
    }
}

size_t ut_scatter_add(float *out, size_t end, const uint32_t *x, const float *v, size_t n)
{
    size_t i = 0;
    for (; i < n && x[i] < end; i++)
        out[x[i]] += v[i];
    return i;
}
