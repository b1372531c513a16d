/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform for AVX-512: sixteen lanes; a register of eight rows' sums and their signs as masks.
 */
#include "hadamard.h"
#include "table.h"

#if UT_KERNELS_X86
#include <immintrin.h>

#define UT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define UT_HADAMARD_TABLE ut_hadamard_avx512
#define AVX512 static inline __attribute__((always_inline)) UT_TARGET
typedef __m512 vf;
typedef __m512i vseen;
enum { LANES = 16 };

AVX512 vf v_load(const uint8_t *p, size_t k)
{
    return k == LANES ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps((__mmask16)((1u << k) - 1), p);
}

AVX512 void v_store(uint8_t *p, vf v, size_t k)
{
    if (k == LANES)
        _mm512_storeu_ps(p, v);
    else
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << k) - 1), v);
}

AVX512 vf v_set(float value)
{
    return _mm512_set1_ps(value);
}

AVX512 vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

AVX512 vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

AVX512 vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

AVX512 vf v_flip(vf v, uint64_t bits)
{
    return _mm512_mask_xor_ps(v, (__mmask16)bits, v, _mm512_set1_ps(-0.0f));
}

/* The greatest magnitude, doubled to shift the sign out. */
AVX512 vseen v_seen_none(void)
{
    return _mm512_setzero_si512();
}

AVX512 void v_see(vseen *seen, vf v)
{
    const __m512i bits = _mm512_castps_si512(v);
    *seen = _mm512_max_epu32(*seen, _mm512_add_epi32(bits, bits));
}

AVX512 bool v_seen_bad(vseen seen)
{
    return _mm512_cmpge_epu32_mask(seen, _mm512_set1_epi32((int)0xff000000)) != 0;
}

#include "hadamard_lanes.h"

#else
typedef int ut_no_hadamard_avx512; /* a file of C must declare something */
#endif
