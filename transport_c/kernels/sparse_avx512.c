/* SPDX-License-Identifier: Apache-2.0
 *
 * The sparse kernels for AVX-512: sixteen lanes.
 */
#include "table.h"

#if UT_KERNELS_X86
#include <immintrin.h>

#define UT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define UT_SPARSE_TABLE ut_sparse_avx512
#define UT_LANE static inline __attribute__((always_inline)) UT_TARGET
typedef __m512i vu;
typedef struct v_divisor {
    uint32_t m;
    __m512d inverse;
} v_divisor;
enum { LANES = 16 };

UT_LANE vu u_load(const float *p)
{
    return _mm512_loadu_si512(p);
}

UT_LANE void u_store(float *p, vu v)
{
    _mm512_storeu_si512(p, v);
}

UT_LANE vu f_add(vu a, vu b)
{
    return _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
}

UT_LANE vu u_set(uint32_t value)
{
    return _mm512_set1_epi32((int)value);
}

UT_LANE vu u_count(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

UT_LANE vu u_add(vu a, vu b)
{
    return _mm512_add_epi32(a, b);
}

UT_LANE vu u_times(vu a, vu b)
{
    return _mm512_mullo_epi32(a, b);
}

UT_LANE vu u_xor(vu a, vu b)
{
    return _mm512_xor_si512(a, b);
}

UT_LANE vu u_or(vu a, vu b)
{
    return _mm512_or_si512(a, b);
}

UT_LANE vu u_left(vu v, int by)
{
    return _mm512_slli_epi32(v, (unsigned)by);
}

UT_LANE vu u_right(vu v, int by)
{
    return _mm512_srli_epi32(v, (unsigned)by);
}

UT_LANE vu u_magnitude(vu v)
{
    return _mm512_and_si512(v, _mm512_set1_epi32(0x7fffffff));
}

UT_LANE uint32_t u_above(vu a, vu b)
{
    return _mm512_cmpgt_epu32_mask(a, b);
}

UT_LANE v_divisor u_divisor(uint32_t m)
{
    return (v_divisor){m, _mm512_set1_pd(1.0 / (double)m)};
}

/* The quotient of eight numbers, rounded down; one too small at most (where the division leaves no rest). */
UT_LANE __m256i quotient(__m256i v, __m512d inverse)
{
    return _mm512_cvttpd_epu32(_mm512_mul_pd(_mm512_cvtepu32_pd(v), inverse));
}

/* The rest is below 2 m, and the lesser of itself and itself less m: below m the difference wraps. */
UT_LANE vu u_mod(vu v, v_divisor by)
{
    const __m256i low = quotient(_mm512_castsi512_si256(v), by.inverse);
    const __m256i high = quotient(_mm512_extracti64x4_epi64(v, 1), by.inverse);
    const vu q = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), m = _mm512_set1_epi32((int)by.m);
    const vu rest = _mm512_sub_epi32(v, _mm512_mullo_epi32(q, m));
    return _mm512_min_epu32(rest, _mm512_sub_epi32(rest, m));
}

UT_LANE uint32_t u_test(const uint8_t *bits, vu at)
{
    const vu words = _mm512_i32gather_epi32(_mm512_srli_epi32(at, 5), bits, 4);
    const vu bit = _mm512_and_si512(at, _mm512_set1_epi32(31));
    return _mm512_test_epi32_mask(_mm512_srlv_epi32(words, bit), _mm512_set1_epi32(1));
}

/* Compressed in registers and stored whole: compressing stores take many times as long on some CPUs. */
#define UT_SPARSE_COMPRESS 1
UT_LANE void take_lanes(float *kept, vu p, uint32_t hits, uint32_t first, uint32_t *indices, float *values)
{
    const __mmask16 mask = (__mmask16)hits;
    _mm512_storeu_si512(indices, _mm512_maskz_compress_epi32(mask, u_add(u_set(first), u_count())));
    _mm512_storeu_si512(values, _mm512_maskz_compress_epi32(mask, p));
    u_store(kept, _mm512_maskz_mov_epi32((__mmask16)~mask, p));
}

#include "sparse_lanes.h"

#else
typedef int ut_no_sparse_avx512; /* a file of C must declare something */
#endif
