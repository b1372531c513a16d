/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots for AVX-512: two registers of sixteen lanes.
 */
#include "table.h"

#if UT_KERNELS_X86
#include <immintrin.h>

#define UT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define UT_QUANT_TABLE ut_quant_avx512
#define UT_LANE static inline __attribute__((always_inline)) UT_TARGET
typedef __m512 vr;
typedef __m512i vn;
enum { LANES = 16, REGISTERS = 2 };
#define AT(number, ...)                                                                                                \
    {                                                                                                                  \
        enum { j = number };                                                                                           \
        __VA_ARGS__                                                                                                    \
    }
#define EACH(...) {AT(0, __VA_ARGS__) AT(1, __VA_ARGS__)}
#define EACH_HALF(...) AT(0, __VA_ARGS__)

UT_LANE vr r_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

UT_LANE void r_store(float *p, vr v)
{
    _mm512_storeu_ps(p, v);
}

UT_LANE vr r_set(float value)
{
    return _mm512_set1_ps(value);
}

UT_LANE vr r_add(vr a, vr b)
{
    return _mm512_add_ps(a, b);
}

UT_LANE vr r_sub(vr a, vr b)
{
    return _mm512_sub_ps(a, b);
}

UT_LANE vr r_mul(vr a, vr b)
{
    return _mm512_mul_ps(a, b);
}

UT_LANE vr r_div(vr a, vr b)
{
    return _mm512_div_ps(a, b);
}

UT_LANE vr r_of(vn v)
{
    return _mm512_cvtepi32_ps(v);
}

UT_LANE vr r_where_equal(vn a, vn b, vr yes, vr no)
{
    return _mm512_mask_mov_ps(no, _mm512_cmpeq_epi32_mask(a, b), yes);
}

UT_LANE vn n_set(int32_t value)
{
    return _mm512_set1_epi32(value);
}

/* Lane number times 0x9e3779b9. */
UT_LANE vn n_steps(void)
{
    const vn count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mullo_epi32(count, _mm512_set1_epi32((int32_t)0x9e3779b9u));
}

UT_LANE vn n_add(vn a, vn b)
{
    return _mm512_add_epi32(a, b);
}

UT_LANE vn n_times(vn a, vn b)
{
    return _mm512_mullo_epi32(a, b);
}

UT_LANE vn n_xor(vn a, vn b)
{
    return _mm512_xor_si512(a, b);
}

UT_LANE vn n_and(vn a, vn b)
{
    return _mm512_and_si512(a, b);
}

UT_LANE vn n_right(vn v, const int by)
{
    return _mm512_srli_epi32(v, (unsigned)by);
}

UT_LANE vn n_min(vn a, vn b)
{
    return _mm512_min_epi32(a, b);
}

UT_LANE vn n_max(vn a, vn b)
{
    return _mm512_max_epi32(a, b);
}

UT_LANE vn n_rounded(vr v)
{
    return _mm512_cvtps_epi32(v);
}

UT_LANE vn n_magnitude(vr v)
{
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

UT_LANE uint32_t n_most(vn v)
{
    return (uint32_t)_mm512_reduce_max_epi32(v);
}

UT_LANE void n_pack(const unsigned form, uint8_t *codes, const vn *q)
{
    if (form == UT_QUANT_INT16) {
        _mm256_storeu_si256((__m256i *)codes, _mm512_cvtepi32_epi16(q[0]));
        _mm256_storeu_si256((__m256i *)(codes + 32), _mm512_cvtepi32_epi16(q[1]));
    } else if (form == UT_QUANT_INT8) {
        _mm_storeu_si128((__m128i *)codes, _mm512_cvtepi32_epi8(q[0]));
        _mm_storeu_si128((__m128i *)(codes + 16), _mm512_cvtepi32_epi8(q[1]));
    } else {
        const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(q[1]), _mm512_cvtepi32_epi8(q[0]));
        const __m256i nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
        const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001)); /* the first + 16 the second */
        _mm_storeu_si128((__m128i *)codes, _mm256_cvtepi16_epi8(pairs));
    }
}

UT_LANE void n_unpack(const unsigned form, const uint8_t *codes, vn *q)
{
    if (form == UT_QUANT_INT16) {
        q[0] = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)codes));
        q[1] = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(codes + 32)));
    } else if (form == UT_QUANT_INT8) {
        q[0] = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes));
        q[1] = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(codes + 16)));
    } else {
        const __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)codes));
        const __m256i spread = _mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4));
        const __m256i nibbles = _mm256_and_si256(spread, _mm256_set1_epi8(15)), sign = _mm256_set1_epi8(8);
        const __m256i bytes = _mm256_sub_epi8(_mm256_xor_si256(nibbles, sign), sign);
        q[0] = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
        q[1] = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
    }
}

#include "quant_lanes.h"

#else
typedef int ut_no_quant_avx512; /* a file of C must declare something */
#endif
