/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for AVX2 with F16C and FMA: eight lanes. What is left over goes through a small buffer, as AVX2 has no
 * masks for it.
 */
#include "half.h"
#include "table.h"

#if UT_KERNELS_X86
#include <immintrin.h>

#define UT_TARGET __attribute__((target("avx2,f16c,fma")))
#define UT_TABLE ut_kernels_avx2
#define UT_WEIGH_TABLE ut_weigh_avx2
#define AVX2 static inline __attribute__((always_inline)) UT_TARGET
typedef __m256 vf;
enum { LANES = 8, HEAD = 0, TAIL = 0 };

/* |k| elements of |bytes| each, k < LANES; between the buffer of a whole vector and memory that holds no more than k.
 */
AVX2 void copy_part(void *to, const void *from, size_t k, size_t bytes)
{
    for (size_t i = 0; i < k * bytes; i += bytes)
        memcpy((uint8_t *)to + i, (const uint8_t *)from + i, bytes);
}

AVX2 vf v_load(unsigned type, const uint8_t *p, size_t k)
{
    uint8_t part[sizeof(vf)] = {0};
    if (k != LANES) {
        copy_part(part, p, k, type == UT_FLOAT32 ? 4 : 2);
        p = part;
    }
    if (type == UT_FLOAT32)
        return _mm256_loadu_ps((const float *)p);
    const __m128i half = _mm_loadu_si128((const __m128i *)p);
    if (type == UT_FLOAT16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

AVX2 void v_store(uint8_t *p, vf v, size_t k)
{
    uint8_t part[sizeof(vf)];
    _mm256_storeu_ps((float *)(k == LANES ? p : part), v);
    if (k != LANES)
        copy_part(p, part, k, 4);
}

/* As ut_bf16_of_float. */
AVX2 __m128i bf16_of_lanes(vf v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i kept = _mm256_srli_epi32(bits, 16);
    const __m256i tie = _mm256_and_si256(kept, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), tie);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i rounded =
        _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_or_si256(kept, _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

/* The greatest magnitude, doubled to shift the sign out: of 32-bit lanes for float32, of 16-bit lanes for the halves.
 * Lanes beyond |k| hold what came of zeros, which is finite. */
typedef __m256i vseen;

AVX2 vseen v_seen_none(void)
{
    return _mm256_setzero_si256();
}

/* x >= limit as max(x, limit) == x: there is no unsigned compare. */
AVX2 bool v_seen_bad(unsigned type, vseen seen)
{
    const __m256i limit_32 = _mm256_set1_epi32((int)0xff000000);
    const __m256i limit_16 = _mm256_set1_epi16((short)(type == UT_FLOAT16 ? 0xf800 : 0xff00));
    const __m256i bad = type == UT_FLOAT32 ? _mm256_cmpeq_epi32(_mm256_max_epu32(seen, limit_32), seen)
                                           : _mm256_cmpeq_epi16(_mm256_max_epu16(seen, limit_16), seen);
    return !_mm256_testz_si256(bad, bad);
}

AVX2 void v_result(unsigned type, uint8_t *p, vf v, size_t k, vseen *seen)
{
    if (type == UT_FLOAT32) {
        const __m256i bits = _mm256_castps_si256(v);
        *seen = _mm256_max_epu32(*seen, _mm256_add_epi32(bits, bits));
        v_store(p, v, k);
        return;
    }
    const __m128i half =
        type == UT_FLOAT16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : bf16_of_lanes(v);
    uint8_t part[sizeof half];
    *seen = _mm256_max_epu16(*seen, _mm256_zextsi128_si256(_mm_add_epi16(half, half)));
    _mm_storeu_si128((__m128i *)(k == LANES ? p : part), half);
    if (k != LANES)
        copy_part(p, part, k, 2);
}

AVX2 vf v_set(float value)
{
    return _mm256_set1_ps(value);
}

AVX2 vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

AVX2 vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

AVX2 vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

/* minps and maxps give b where either is NaN. */
AVX2 vf v_min(vf a, vf b)
{
    return _mm256_blendv_ps(_mm256_min_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

AVX2 vf v_max(vf a, vf b)
{
    return _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}

/* The even 32-bit halves of two masks of four doubles: one mask of eight floats. */
AVX2 __m256i narrow_mask(__m256d low, __m256d high)
{
    const __m256 mixed = _mm256_shuffle_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high), 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(mixed), 0xd8);
}

/* As ut_float_odd_of_double: round to nearest, take a step outward back, set the last bit of what was not exact. */
AVX2 vf quotient_by_double(vf v, bool divide, double by)
{
    const __m256d d = _mm256_set1_pd(by), sign = _mm256_set1_pd(-0.0);
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    low = divide ? _mm256_div_pd(low, d) : _mm256_mul_pd(low, d);
    high = divide ? _mm256_div_pd(high, d) : _mm256_mul_pd(high, d);
    const __m128 near_low = _mm256_cvtpd_ps(low), near_high = _mm256_cvtpd_ps(high);
    const __m256d back_low = _mm256_cvtps_pd(near_low), back_high = _mm256_cvtps_pd(near_high);
    const __m256i outward =
        narrow_mask(_mm256_cmp_pd(_mm256_andnot_pd(sign, back_low), _mm256_andnot_pd(sign, low), _CMP_GT_OQ),
                    _mm256_cmp_pd(_mm256_andnot_pd(sign, back_high), _mm256_andnot_pd(sign, high), _CMP_GT_OQ));
    const __m256i inexact =
        narrow_mask(_mm256_cmp_pd(back_low, low, _CMP_NEQ_OQ), _mm256_cmp_pd(back_high, high, _CMP_NEQ_OQ));
    const __m256i bits = _mm256_castps_si256(_mm256_insertf128_ps(_mm256_castps128_ps256(near_low), near_high, 1));
    const __m256i odd = _mm256_and_si256(inexact, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_add_epi32(bits, outward), odd)); /* a mask is -1 */
}

/* The quotient rounded to odd, by the exact remainder v - q * by: where its sign is not that of v, q went outward.
 * Below 2^-100 the remainder may not be exact (nor the product of a power of two): bfloat16 reaches down there, float16
 * is zero long before. */
AVX2 vf v_quotient(unsigned type, vf v, bool divide, double by)
{
    if (type == UT_BFLOAT16) {
        const vf magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
        const vf tiny = _mm256_and_ps(_mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-100f), _CMP_LT_OQ),
                                      _mm256_cmp_ps(magnitude, _mm256_setzero_ps(), _CMP_GT_OQ));
        if (__builtin_expect(_mm256_movemask_ps(tiny) != 0, 0))
            return quotient_by_double(v, divide, by);
    }
    const vf d = _mm256_set1_ps((float)by);
    if (!divide)
        return _mm256_mul_ps(v, d);
    const vf q = _mm256_div_ps(v, d), remainder = _mm256_fnmadd_ps(q, d, v);
    const __m256i inexact = _mm256_castps_si256(_mm256_cmp_ps(remainder, _mm256_setzero_ps(), _CMP_NEQ_OQ));
    const __m256i outward = _mm256_srai_epi32(_mm256_castps_si256(_mm256_xor_ps(remainder, v)), 31);
    const __m256i back =
        _mm256_add_epi32(_mm256_castps_si256(q), _mm256_and_si256(inexact, outward)); /* a mask is -1 */
    return _mm256_castsi256_ps(_mm256_or_si256(back, _mm256_and_si256(inexact, _mm256_set1_epi32(1))));
}

#include "fold_lanes.h"
#include "fold_loops.h"
#include "weigh_loops.h"

#else
typedef int ut_no_avx2; /* a file of C must declare something */
#endif
