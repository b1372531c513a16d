/* SPDX-License-Identifier: Apache-2.0
 *
 * What all instruction sets share of a quantised slot: its parts, the scales of its blocks, and the draws.
 */
#ifndef UT_KERNELS_QUANT_SLOT_H
#define UT_KERNELS_QUANT_SLOT_H

#include "half.h"
#include "quant.h"

#define UT_QUANT_INLINE static inline __attribute__((always_inline))
enum { QUANT_BLOCKS_MAX = UT_QUANT_ELEMENTS_MAX / 32 };

UT_QUANT_INLINE int32_t quant_levels(unsigned form)
{
    return form == UT_QUANT_INT16 ? 32767 : form == UT_QUANT_INT8 ? 127 : 7;
}

UT_QUANT_INLINE uint32_t quant_block(unsigned form)
{
    return form == UT_QUANT_INT4 ? 32 : 64;
}

UT_QUANT_INLINE uint32_t quant_blocks(unsigned form, uint32_t n)
{
    return (n + quant_block(form) - 1) / quant_block(form);
}

UT_QUANT_INLINE uint32_t quant_code_bytes(unsigned form, uint32_t n)
{
    return form == UT_QUANT_INT16 ? 2 * n : form == UT_QUANT_INT8 ? n : (n + 1) / 2;
}

/* The largest w at which L * scale is finite: the scales 2^113, 2^121 and 1.125 * 2^125. */
UT_QUANT_INLINE uint32_t quant_scale_most(unsigned form)
{
    return form == UT_QUANT_INT16 ? 3840 : form == UT_QUANT_INT8 ? 3968 : 4034;
}

UT_QUANT_INLINE float quant_scale(uint32_t u, uint32_t exponent)
{
    return ut_float_of_bits(u ? (u + 16 * exponent) << 19 : 0);
}

UT_QUANT_INLINE float quant_scale_at(const uint8_t *slot, uint32_t block)
{
    return quant_scale(slot[UT_QUANT_HEADER + block], slot[1]);
}

typedef struct quant_scales {
    float scale[QUANT_BLOCKS_MAX], inverse[QUANT_BLOCKS_MAX]; /* both 0 of blocks that are coded as zeros */
} quant_scales;

/* The sum over blocks of elements * scale^2, as four sums of every fourth block: one alone would wait for each
 * addition. */
UT_QUANT_INLINE double quant_error(unsigned form, const float *scale, uint32_t n)
{
    const uint32_t size = quant_block(form), whole = n / size;
    double sums[4] = {0};
    uint32_t b = 0;
    for (; b + 4 <= whole; b += 4)
        for (uint32_t j = 0; j < 4; j++)
            sums[j] += (double)scale[b + j] * (double)scale[b + j];
    for (; b < whole; b++)
        sums[0] += (double)scale[b] * (double)scale[b];
    const double last = n > whole * size ? (double)scale[whole] * (double)scale[whole] : 0;
    return size * ((sums[0] + sums[1]) + (sums[2] + sums[3])) + (n - whole * size) * last;
}

/* Writes the header and the scales of a slot. |most| has the bits of the largest finite magnitude of each block. */
UT_QUANT_INLINE double quant_choose_scales(unsigned form, uint8_t *slot, const uint32_t *most, uint32_t n, bool nan,
                                           quant_scales *s)
{
    const float levels = (float)quant_levels(form);
    const uint32_t limit = quant_scale_most(form), blocks = quant_blocks(form, n);
    const uint32_t least = (127 - 100) << 23; /* 2^-100 */
    uint32_t w[QUANT_BLOCKS_MAX], largest = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        const uint32_t up = (ut_float_bits(ut_float_of_bits(most[b]) / levels) + 0x7ffff) >> 19;
        w[b] = most[b] < least ? 0 : UT_MIN2(up, limit);
        largest = UT_MAX2(largest, w[b]);
    }
    const uint32_t exponent = largest > 255 ? (largest - 255 + 15) / 16 : 0;
    slot[0] = (uint8_t)(form | (nan ? UT_QUANT_NAN : 0));
    slot[1] = (uint8_t)exponent;
    for (uint32_t b = 0; b < blocks; b++) {
        const uint32_t u = w[b] == 0 ? 0 : w[b] > 16 * exponent ? w[b] - 16 * exponent : 1;
        slot[UT_QUANT_HEADER + b] = (uint8_t)u;
        s->scale[b] = quant_scale(u, exponent);
        s->inverse[b] = u ? 1 / s->scale[b] : 0;
    }
    return quant_error(form, s->scale, n);
}

/* 32 random bits. Elements i and i + 16 of each 32 share a word: the one takes its low half, the other its high one. */
UT_QUANT_INLINE uint32_t quant_word(uint64_t key, uint32_t i)
{
    uint32_t z = (uint32_t)key + (i / 32 * 16 + i % 16 + 1) * 0x9e3779b9u;
    z = (z ^ z >> 16) * 0x7feb352du;
    z ^= (uint32_t)(key >> 32);
    z = (z ^ z >> 15) * 0x846ca68bu;
    return z ^ z >> 16;
}

#endif
