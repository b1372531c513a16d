/* SPDX-License-Identifier: Apache-2.0
 *
 * The sparse kernels for AVX2: eight lanes. There are no unsigned conversions to double and back, so numbers move by
 * 2^31 on the way.
 */
#include "table.h"

#if UT_KERNELS_X86
#include <immintrin.h>

#define UT_TARGET __attribute__((target("avx2")))
#define UT_SPARSE_TABLE ut_sparse_avx2
#define UT_LANE static inline __attribute__((always_inline)) UT_TARGET
typedef __m256i vu;
typedef struct v_divisor {
    uint32_t m;
    __m256d inverse;
} v_divisor;
enum { LANES = 8 };

UT_LANE vu u_load(const float *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

UT_LANE void u_store(float *p, vu v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

UT_LANE vu f_add(vu a, vu b)
{
    return _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)));
}

UT_LANE vu u_set(uint32_t value)
{
    return _mm256_set1_epi32((int)value);
}

UT_LANE vu u_count(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}

UT_LANE vu u_add(vu a, vu b)
{
    return _mm256_add_epi32(a, b);
}

UT_LANE vu u_times(vu a, vu b)
{
    return _mm256_mullo_epi32(a, b);
}

UT_LANE vu u_xor(vu a, vu b)
{
    return _mm256_xor_si256(a, b);
}

UT_LANE vu u_or(vu a, vu b)
{
    return _mm256_or_si256(a, b);
}

UT_LANE vu u_left(vu v, int by)
{
    return _mm256_slli_epi32(v, by);
}

UT_LANE vu u_right(vu v, int by)
{
    return _mm256_srli_epi32(v, by);
}

UT_LANE vu u_magnitude(vu v)
{
    return _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff));
}

/* Of magnitudes, and of limits that may have the top bit: nothing is above those. */
UT_LANE uint32_t u_above(vu a, vu b)
{
    const __m256i none = _mm256_srai_epi32(b, 31);
    const __m256i hit = _mm256_andnot_si256(none, _mm256_cmpgt_epi32(a, b));
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(hit));
}

UT_LANE v_divisor u_divisor(uint32_t m)
{
    return (v_divisor){m, _mm256_set1_pd(1.0 / (double)m)};
}

/* The quotient of four numbers, rounded down; one too small at most (where the division leaves no rest). */
UT_LANE __m128i quotient(__m128i v, __m256d inverse)
{
    const __m128i moved = _mm_xor_si128(v, _mm_set1_epi32((int)0x80000000));
    const __m256d wide = _mm256_add_pd(_mm256_cvtepi32_pd(moved), _mm256_set1_pd(0x1p31));
    return _mm256_cvttpd_epi32(_mm256_mul_pd(wide, inverse));
}

/* The rest is below 2 m, and the lesser of itself and itself less m: below m the difference wraps. */
UT_LANE vu u_mod(vu v, v_divisor by)
{
    if (by.m == 1) /* the quotient has no room */
        return _mm256_setzero_si256();
    const __m128i low = quotient(_mm256_castsi256_si128(v), by.inverse);
    const __m128i high = quotient(_mm256_extracti128_si256(v, 1), by.inverse);
    const vu q = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), m = _mm256_set1_epi32((int)by.m);
    const vu rest = _mm256_sub_epi32(v, _mm256_mullo_epi32(q, m));
    return _mm256_min_epu32(rest, _mm256_sub_epi32(rest, m));
}

UT_LANE uint32_t u_test(const uint8_t *bits, vu at)
{
    const vu words = _mm256_i32gather_epi32((const int *)bits, _mm256_srli_epi32(at, 5), 4);
    const vu bit = _mm256_and_si256(at, _mm256_set1_epi32(31));
    const vu top = _mm256_sllv_epi32(words, _mm256_sub_epi32(_mm256_set1_epi32(31), bit));
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(top));
}

/* Lanes that are hit move to the front by a table: for each mask the numbers of its lanes, three bits each. */
#define LANE(m, i) (((m) >> (i) & 1u) * ((uint32_t)(i) << 3 * __builtin_popcount((m) & ((1u << (i)) - 1))))
#define FRONT(m) (LANE(m, 0) | LANE(m, 1) | LANE(m, 2) | LANE(m, 3) | LANE(m, 4) | LANE(m, 5) | LANE(m, 6) | LANE(m, 7))
#define FRONT_4(m) FRONT(m), FRONT((m) + 1), FRONT((m) + 2), FRONT((m) + 3)
#define FRONT_16(m) FRONT_4(m), FRONT_4((m) + 4), FRONT_4((m) + 8), FRONT_4((m) + 12)
#define FRONT_64(m) FRONT_16(m), FRONT_16((m) + 16), FRONT_16((m) + 32), FRONT_16((m) + 48)
static const uint32_t front_of[256] = {FRONT_64(0u), FRONT_64(64u), FRONT_64(128u), FRONT_64(192u)};

#define UT_SPARSE_COMPRESS 1
UT_LANE void take_lanes(float *kept, vu p, uint32_t hits, uint32_t first, uint32_t *indices, float *values)
{
    const vu by = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21), one = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const vu front = _mm256_srlv_epi32(u_set(front_of[hits]), by);
    const vu missed = _mm256_cmpeq_epi32(_mm256_and_si256(u_set(hits), one), _mm256_setzero_si256());
    _mm256_storeu_si256((__m256i *)indices, _mm256_permutevar8x32_epi32(u_add(u_set(first), u_count()), front));
    _mm256_storeu_si256((__m256i *)values, _mm256_permutevar8x32_epi32(p, front));
    u_store(kept, _mm256_and_si256(p, missed));
}

#include "sparse_lanes.h"

#else
typedef int ut_no_sparse_avx2; /* a file of C must declare something */
#endif
