/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots for AVX2: four registers of eight lanes. Its packing works within halves of a register, so halves are
 * put in order afterwards.
 */
#include "table.h"

#if UT_KERNELS_X86
#include <immintrin.h>

#define UT_TARGET __attribute__((target("avx2")))
#define UT_QUANT_TABLE ut_quant_avx2
#define UT_LANE static inline __attribute__((always_inline)) UT_TARGET
typedef __m256 vr;
typedef __m256i vn;
enum { LANES = 8, REGISTERS = 4 };
#define AT(number, ...)                                                                                                \
    {                                                                                                                  \
        enum { j = number };                                                                                           \
        __VA_ARGS__                                                                                                    \
    }
#define EACH(...) {AT(0, __VA_ARGS__) AT(1, __VA_ARGS__) AT(2, __VA_ARGS__) AT(3, __VA_ARGS__)}
#define EACH_HALF(...) {AT(0, __VA_ARGS__) AT(1, __VA_ARGS__)}

UT_LANE vr r_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

UT_LANE void r_store(float *p, vr v)
{
    _mm256_storeu_ps(p, v);
}

UT_LANE vr r_set(float value)
{
    return _mm256_set1_ps(value);
}

UT_LANE vr r_add(vr a, vr b)
{
    return _mm256_add_ps(a, b);
}

UT_LANE vr r_sub(vr a, vr b)
{
    return _mm256_sub_ps(a, b);
}

UT_LANE vr r_mul(vr a, vr b)
{
    return _mm256_mul_ps(a, b);
}

UT_LANE vr r_div(vr a, vr b)
{
    return _mm256_div_ps(a, b);
}

UT_LANE vr r_of(vn v)
{
    return _mm256_cvtepi32_ps(v);
}

UT_LANE vr r_where_equal(vn a, vn b, vr yes, vr no)
{
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)));
}

UT_LANE vn n_set(int32_t value)
{
    return _mm256_set1_epi32(value);
}

/* Lane number times 0x9e3779b9. */
UT_LANE vn n_steps(void)
{
    const vn count = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_mullo_epi32(count, _mm256_set1_epi32((int32_t)0x9e3779b9u));
}

UT_LANE vn n_add(vn a, vn b)
{
    return _mm256_add_epi32(a, b);
}

UT_LANE vn n_times(vn a, vn b)
{
    return _mm256_mullo_epi32(a, b);
}

UT_LANE vn n_xor(vn a, vn b)
{
    return _mm256_xor_si256(a, b);
}

UT_LANE vn n_and(vn a, vn b)
{
    return _mm256_and_si256(a, b);
}

UT_LANE vn n_right(vn v, const int by)
{
    return _mm256_srli_epi32(v, by);
}

UT_LANE vn n_min(vn a, vn b)
{
    return _mm256_min_epi32(a, b);
}

UT_LANE vn n_max(vn a, vn b)
{
    return _mm256_max_epi32(a, b);
}

UT_LANE vn n_rounded(vr v)
{
    return _mm256_cvtps_epi32(v);
}

UT_LANE vn n_magnitude(vr v)
{
    return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}

UT_LANE uint32_t n_most(vn v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

UT_LANE void n_pack(const unsigned form, uint8_t *codes, const vn *q)
{
    const __m256i low = _mm256_packs_epi32(q[0], q[1]), high = _mm256_packs_epi32(q[2], q[3]);
    if (form == UT_QUANT_INT16) {
        _mm256_storeu_si256((__m256i *)codes, _mm256_permute4x64_epi64(low, 0xd8));
        _mm256_storeu_si256((__m256i *)(codes + 32), _mm256_permute4x64_epi64(high, 0xd8));
        return;
    }
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    if (form == UT_QUANT_INT8) {
        _mm256_storeu_si256((__m256i *)codes, bytes);
        return;
    }
    const __m256i nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001)); /* the first + 16 the second */
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128((__m128i *)codes, _mm256_castsi256_si128(halves));
}

UT_LANE void n_unpack(const unsigned form, const uint8_t *codes, vn *q)
{
    if (form == UT_QUANT_INT16) {
        EACH(q[j] = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(codes + 16 * j)));)
    } else if (form == UT_QUANT_INT8) {
        EACH(q[j] = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(codes + 8 * j)));)
    } else {
        const __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0); /* each nibble to the top, then down again */
        EACH({
            int32_t eight;
            memcpy(&eight, codes + 4 * j, sizeof eight);
            q[j] = _mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(eight), up), 28);
        })
    }
}

#include "quant_lanes.h"

#else
typedef int ut_no_quant_avx2; /* a file of C must declare something */
#endif
