/* SPDX-License-Identifier: Apache-2.0
 *
 * The sparse kernels that are chosen for the CPU, written once over lanes. A file for one instruction set defines
 * LANES, UT_TARGET, UT_SPARSE_TABLE, UT_LANE and the u_ and f_ functions below, then includes this one. What does not
 * fill all lanes goes element by element.
 *
 * Nothing here may add to a product that was rounded: compilers fuse the two where the CPU can, and the bits would
 * differ between instruction sets. Products are exact, or nothing is added to them.
 */
#ifndef UT_SPARSE_LANES_H
#define UT_SPARSE_LANES_H

#include "half.h"
#include "murmur3.h"
#include "table.h"

static inline uint32_t magnitude(float value)
{
    return ut_float_bits(value) & 0x7fffffff;
}

/* Takes entry |i| out of |kept|, if |s| selects it. */
static inline void take(float *kept, size_t i, const ut_selection *s, size_t *ties, size_t *taken)
{
    const uint32_t mine = magnitude(kept[i]);
    if (mine < s->above || *taken == s->room || (mine == s->above && *ties == 0))
        return;
    *ties -= mine == s->above;
    s->indices[*taken] = (uint32_t)i;
    s->values[*taken] = kept[i];
    kept[i] = 0;
    (*taken)++;
}

UT_TARGET static size_t keep(float *kept, const float *add, size_t n, const ut_selection *s)
{
    size_t i = 0, taken = 0, ties = s->ties;
    /* With ties to take, what equals counts as above here; |take| looks again. Nothing is above UINT32_MAX. */
    vu limit = u_set(s->ties > 0 && s->above > 0 ? s->above - 1 : s->above);
    bool all = s->ties > 0 && s->above == 0;
#ifdef UT_SPARSE_COMPRESS
    /* Four at a time: at a density of a tenth, whether one of them has a hit can be foretold, and of each alone not. */
    for (; s->ties == 0 && i + 4 * LANES <= n && s->room - taken >= 4 * LANES; i += 4 * LANES) {
        vu p[4];
        uint32_t hits[4], any = 0;
        for (unsigned k = 0; k < 4; k++) {
            p[k] = u_load(kept + i + k * LANES);
            if (add) {
                p[k] = f_add(p[k], u_load(add + i + k * LANES));
                u_store(kept + i + k * LANES, p[k]);
            }
            any |= hits[k] = u_above(u_magnitude(p[k]), limit);
        }
        for (unsigned k = 0; k < 4 && any; k++) {
            size_t at = i + k * LANES;
            take_lanes(kept + at, p[k], hits[k], (uint32_t)at, s->indices + taken, s->values + taken);
            taken += (unsigned)__builtin_popcount(hits[k]);
        }
    }
#endif
    for (; i + LANES <= n; i += LANES) {
        vu p = u_load(kept + i);
        if (add) {
            p = f_add(p, u_load(add + i));
            u_store(kept + i, p);
        }
        uint32_t hits = all ? (uint32_t)((1ULL << LANES) - 1) : u_above(u_magnitude(p), limit);
#ifdef UT_SPARSE_COMPRESS
        if (hits && ties == 0 && s->room - taken >= LANES) {
            take_lanes(kept + i, p, hits, (uint32_t)i, s->indices + taken, s->values + taken);
            taken += (unsigned)__builtin_popcount(hits);
            hits = 0;
        }
#endif
        for (; hits; hits &= hits - 1)
            take(kept, i + (unsigned)__builtin_ctz(hits), s, &ties, &taken);
        if (s->ties > 0 && ties == 0) { /* the last one: from here on what equals stays */
            limit = u_set(s->above);
            all = false;
        }
    }
    for (; i < n; i++) {
        if (add)
            kept[i] += add[i];
        take(kept, i, s, &ties, &taken);
    }
    return taken;
}

/* The product of two floats is exact in double, so it does not matter whether the compiler fuses it with the sum. */
UT_TARGET static void blend(float *restrict kept, float *restrict velocity, const float *restrict add, float momentum,
                            size_t n)
{
    for (size_t i = 0; i < n; i++) {
        velocity[i] = (float)((double)momentum * (double)velocity[i] + (double)add[i]);
        kept[i] += velocity[i];
    }
}

UT_TARGET static size_t bloom_members(const uint8_t *bits, uint32_t m, uint32_t k, uint64_t end, uint32_t *out,
                                      size_t room)
{
    size_t n = 0;
    uint64_t x = 0;
    const v_divisor by = u_divisor(m);
    for (; x + LANES <= end; x += LANES) {
        const vu block = murmur3_block(u_add(u_set((uint32_t)x), u_count()));
        uint32_t alive = (uint32_t)((1ULL << LANES) - 1);
        for (uint32_t i = 0; i < k && alive; i++)
            alive &= u_test(bits, u_mod(murmur3_end(block, i), by));
        for (; alive; alive &= alive - 1, n++)
            if (n < room)
                out[n] = (uint32_t)x + (unsigned)__builtin_ctz(alive);
    }
    for (; x < end; x++) {
        uint32_t i = 0;
        for (uint32_t b; i < k; i++) {
            b = ut_murmur3_of((uint32_t)x, i) % m;
            if (!(bits[b >> 3] >> (b & 7) & 1))
                break;
        }
        if (i == k && n++ < room)
            out[n - 1] = (uint32_t)x;
    }
    return n;
}

/* Sixteen sums, whatever the width of the CPU: the same order of additions everywhere. Squares are exact in double. */
UT_TARGET static float norm_of(const float *v, size_t n)
{
    double sums[16] = {0}, all = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (unsigned j = 0; j < 16; j++)
            sums[j] += (double)v[i + j] * (double)v[i + j];
    for (; i < n; i++)
        sums[i % 16] += (double)v[i] * (double)v[i];
    for (unsigned j = 0; j < 16; j++)
        all += sums[j];
    return (float)__builtin_sqrt(all);
}

UT_TARGET static uint64_t nonzero(const float *x, size_t n)
{
    uint64_t mask = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        mask |= (uint64_t)u_above(u_magnitude(u_load(x + i)), u_set(0)) << i;
    for (; i < n; i++)
        mask |= (uint64_t)(magnitude(x[i]) > 0) << i;
    return mask;
}

UT_TARGET static void qsgd_encode(float *norms, uint32_t *codes, const float *values, size_t n, size_t bucket,
                                  unsigned bits, uint32_t seed)
{
    const float most = (float)((1u << (bits - 1)) - 1);
    for (size_t from = 0; from < n; from += bucket) {
        const size_t count = UT_MIN2(bucket, n - from);
        const float norm = norm_of(values + from, count), unit = norm / most;
        *norms++ = norm;
        if (unit == 0) { /* nothing, or too little to be told apart */
            memset(codes + from, 0, count * sizeof *codes);
            continue;
        }
        for (size_t i = from; i < from + count; i++) {
            const uint32_t raw = ut_float_bits(values[i]);
            const float chance = (float)(int32_t)(ut_murmur3_of((uint32_t)i, seed) >> 8) * 0x1p-24f;
            const float level = ut_float_of_bits(raw & 0x7fffffff) / unit + chance;
            codes[i] = (raw >> 31 << (bits - 1)) | (uint32_t)(int32_t)(level < most ? level : most);
        }
    }
}

UT_TARGET static void qsgd_decode(float *values, const float *norms, const uint32_t *codes, size_t n, size_t bucket,
                                  unsigned bits)
{
    const uint32_t levels = (1u << (bits - 1)) - 1;
    for (size_t from = 0; from < n; from += bucket) {
        const size_t count = UT_MIN2(bucket, n - from);
        const float unit = *norms++ / (float)levels;
        for (size_t i = from; i < from + count; i++) {
            const float level = (float)(int32_t)(codes[i] & levels) * unit;
            values[i] = ut_float_of_bits(ut_float_bits(level) | (codes[i] >> (bits - 1) & 1) << 31);
        }
    }
}

const ut_sparse_kernels UT_SPARSE_TABLE = {keep, blend, nonzero, bloom_members, qsgd_encode, qsgd_decode};

#endif
