/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for AVX-512: sixteen lanes, and masks for what is left, so that no length needs a scalar tail.
 */
#include "half.h"
#include "table.h"

#if UT_KERNELS_X86
#include <immintrin.h>

/* The compiler's own loops (fold_loops.h) get registers of 32 bytes: at the usual alignment these never split a cache
 * line. */
#if defined(__clang__)
#define UT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")))
#else
#define UT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma,prefer-vector-width=256")))
#endif
#define UT_TABLE ut_kernels_avx512
#define UT_WEIGH_TABLE ut_weigh_avx512
#define AVX512 static inline __attribute__((always_inline)) UT_TARGET
typedef __m512 vf;
enum { LANES = 16, HEAD = 8, TAIL = 0 };
enum { FPCLASS_NAN = 0x81 };

AVX512 __mmask16 lanes_mask(size_t k)
{
    return (__mmask16)((1u << k) - 1);
}

/* Packets and accumulators stand at multiples of 32 bytes: a step of eight lanes (HEAD, or a tail of half a vector) is
 * common and needs no mask. */
AVX512 vf v_load(unsigned type, const uint8_t *p, size_t k)
{
    if (type == UT_FLOAT32) {
        if (k == LANES)
            return _mm512_loadu_ps(p);
        if (k == HEAD)
            return _mm512_zextps256_ps512(_mm256_loadu_ps((const float *)p));
        return _mm512_maskz_loadu_ps(lanes_mask(k), p);
    }
    __m256i half;
    if (k == LANES)
        half = _mm256_loadu_si256((const __m256i *)p);
    else if (k == HEAD)
        half = _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)p));
    else
        half = _mm256_maskz_loadu_epi16(lanes_mask(k), p);
    if (type == UT_FLOAT16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

AVX512 void v_store(uint8_t *p, vf v, size_t k)
{
    if (k == LANES)
        _mm512_storeu_ps(p, v);
    else if (k == HEAD)
        _mm256_storeu_ps((float *)p, _mm512_castps512_ps256(v));
    else
        _mm512_mask_storeu_ps(p, lanes_mask(k), v);
}

/* As ut_bf16_of_float. (The CPU's own conversion flushes subnormals, so it will not do.) */
AVX512 __m256i bf16_of_lanes(vf v)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i kept = _mm512_srli_epi32(bits, 16);
    const __m512i tie = _mm512_and_si512(kept, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), tie);
    const __m512i rounded = _mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), _mm512_fpclass_ps_mask(v, FPCLASS_NAN),
                                                 kept, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(rounded);
}

/* The greatest magnitude, doubled to shift the sign out: of 32-bit lanes for float32, of 16-bit lanes for the halves.
 * Lanes beyond |k| hold what came of zeros, which is finite. */
typedef __m512i vseen;

AVX512 vseen v_seen_none(void)
{
    return _mm512_setzero_si512();
}

AVX512 bool v_seen_bad(unsigned type, vseen seen)
{
    if (type == UT_FLOAT32)
        return _mm512_cmpge_epu32_mask(seen, _mm512_set1_epi32((int)0xff000000)) != 0;
    return _mm512_cmpge_epu16_mask(seen, _mm512_set1_epi16((short)(type == UT_FLOAT16 ? 0xf800 : 0xff00))) != 0;
}

AVX512 void v_result(unsigned type, uint8_t *p, vf v, size_t k, vseen *seen)
{
    if (type == UT_FLOAT32) {
        const __m512i bits = _mm512_castps_si512(v);
        *seen = _mm512_max_epu32(*seen, _mm512_add_epi32(bits, bits));
        v_store(p, v, k);
        return;
    }
    const __m256i half =
        type == UT_FLOAT16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : bf16_of_lanes(v);
    *seen = _mm512_max_epu16(*seen, _mm512_zextsi256_si512(_mm256_add_epi16(half, half)));
    if (k == LANES)
        _mm256_storeu_si256((__m256i *)p, half);
    else if (k == HEAD)
        _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(half));
    else
        _mm256_mask_storeu_epi16(p, lanes_mask(k), half);
}

AVX512 vf v_set(float value)
{
    return _mm512_set1_ps(value);
}

AVX512 vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

AVX512 vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

AVX512 vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* minps and maxps give b where either is NaN. */
AVX512 vf v_min(vf a, vf b)
{
    return _mm512_mask_mov_ps(_mm512_min_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}

AVX512 vf v_max(vf a, vf b)
{
    return _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}

/* Truncate, and set the last bit of what was not exact. */
AVX512 __m256 odd_of_double(__m512d v)
{
    const __m256 truncated = _mm512_cvt_roundpd_ps(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(truncated), v, _CMP_NEQ_OQ);
    const __m256i bits = _mm256_castps_si256(truncated);
    return _mm256_castsi256_ps(_mm256_mask_or_epi32(bits, inexact, bits, _mm256_set1_epi32(1)));
}

AVX512 vf quotient_by_double(vf v, bool divide, double by)
{
    const __m512d d = _mm512_set1_pd(by);
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    const __m256 odd_low = odd_of_double(divide ? _mm512_div_pd(low, d) : _mm512_mul_pd(low, d));
    const __m256 odd_high = odd_of_double(divide ? _mm512_div_pd(high, d) : _mm512_mul_pd(high, d));
    return _mm512_insertf32x8(_mm512_castps256_ps512(odd_low), odd_high, 1);
}

/* The quotient rounded to odd, by the exact remainder v - q * by: where its sign is not that of v, q went outward.
 * Below 2^-100 the remainder may not be exact (nor the product of a power of two): bfloat16 reaches down there, float16
 * is zero long before. */
AVX512 vf v_quotient(unsigned type, vf v, bool divide, double by)
{
    const __m512i one = _mm512_set1_epi32(1), bits_v = _mm512_castps_si512(v);
    if (type == UT_BFLOAT16) {
        const __m512i magnitude_less_1 = _mm512_sub_epi32(_mm512_add_epi32(bits_v, bits_v), one);
        const __m512i limit = _mm512_set1_epi32(((127 - 100) << 24) - 1);
        if (__builtin_expect(_mm512_cmplt_epu32_mask(magnitude_less_1, limit) != 0, 0))
            return quotient_by_double(v, divide, by);
    }
    const vf d = _mm512_set1_ps((float)by);
    if (!divide)
        return _mm512_mul_ps(v, d);
    const vf q = _mm512_div_ps(v, d), remainder = _mm512_fnmadd_ps(q, d, v);
    const __mmask16 inexact = _mm512_cmp_ps_mask(remainder, _mm512_setzero_ps(), _CMP_NEQ_OQ);
    const __mmask16 outward = _mm512_mask_test_epi32_mask(
        inexact, _mm512_xor_si512(_mm512_castps_si512(remainder), bits_v), _mm512_set1_epi32((int)0x80000000));
    const __m512i bits = _mm512_castps_si512(q), back = _mm512_mask_sub_epi32(bits, outward, bits, one);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(back, inexact, back, one));
}

#include "fold_lanes.h"
#include "fold_loops.h"
#include "weigh_loops.h"

#else
typedef int ut_no_avx512; /* a file of C must declare something */
#endif
