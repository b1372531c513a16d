/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform for AVX2: eight lanes, masked moves for the last columns.
 */
#include "hadamard.h"
#include "table.h"

#if UT_KERNELS_X86
#include <immintrin.h>

#define UT_TARGET __attribute__((target("avx2")))
#define UT_HADAMARD_TABLE ut_hadamard_avx2
#define AVX2 static inline __attribute__((always_inline)) UT_TARGET
typedef __m256 vf;
typedef __m256i vseen;
enum { LANES = 8 };

AVX2 __m256i first_lanes(size_t k)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)k), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

AVX2 vf v_load(const uint8_t *p, size_t k)
{
    return k == LANES ? _mm256_loadu_ps((const float *)p) : _mm256_maskload_ps((const float *)p, first_lanes(k));
}

AVX2 void v_store(uint8_t *p, vf v, size_t k)
{
    if (k == LANES)
        _mm256_storeu_ps((float *)p, v);
    else
        _mm256_maskstore_ps((float *)p, first_lanes(k), v);
}

AVX2 vf v_set(float value)
{
    return _mm256_set1_ps(value);
}

AVX2 vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

AVX2 vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

AVX2 vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

/* Each lane shifts its own bit to the top. */
AVX2 vf v_flip(vf v, uint64_t bits)
{
    const __m256i up = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    const __m256i spread = _mm256_sllv_epi32(_mm256_set1_epi32((int)(uint32_t)bits), up);
    return _mm256_xor_ps(v, _mm256_and_ps(_mm256_castsi256_ps(spread), _mm256_set1_ps(-0.0f)));
}

/* The greatest magnitude, doubled to shift the sign out. */
AVX2 vseen v_seen_none(void)
{
    return _mm256_setzero_si256();
}

AVX2 void v_see(vseen *seen, vf v)
{
    const __m256i bits = _mm256_castps_si256(v);
    *seen = _mm256_max_epu32(*seen, _mm256_add_epi32(bits, bits));
}

/* x >= limit as max(x, limit) == x: there is no unsigned compare. */
AVX2 bool v_seen_bad(vseen seen)
{
    const __m256i limit = _mm256_set1_epi32((int)0xff000000);
    const __m256i bad = _mm256_cmpeq_epi32(_mm256_max_epu32(seen, limit), seen);
    return !_mm256_testz_si256(bad, bad);
}

#include "hadamard_lanes.h"

#else
typedef int ut_no_hadamard_avx2; /* a file of C must declare something */
#endif
