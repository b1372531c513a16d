/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels for NEON, which every 64-bit ARM CPU has: sixteen lanes in four registers, so that loads and stores come
 * in pairs and the counting of a loop is spread over 64 bytes.
 */
#include "half.h"
#include "table.h"

#if UT_KERNELS_ARM
#include "neon.h"

#include <arm_neon.h>

#define UT_TARGET
#define UT_TABLE ut_kernels_neon
#define UT_WEIGH_TABLE ut_weigh_neon
typedef struct vf {
    float32x4_t q[4];
} vf;
enum { LANES = 16, HEAD = 0, TAIL = 4 };

/* A vector of what |expression| is for each of its registers, numbered |j|. */
#define EACH(expression)                                                                                               \
    __extension__({                                                                                                    \
        vf each_;                                                                                                      \
        EACH_STEP(0, expression)                                                                                       \
        EACH_STEP(1, expression)                                                                                       \
        EACH_STEP(2, expression)                                                                                       \
        EACH_STEP(3, expression)                                                                                       \
        each_;                                                                                                         \
    })
#define EACH_STEP(number, expression)                                                                                  \
    {                                                                                                                  \
        enum { j = number };                                                                                           \
        each_.q[j] = (expression);                                                                                     \
    }

NEON vf v_load(unsigned type, const uint8_t *p, size_t k)
{
    uint8_t part[sizeof(vf)] = {0};
    if (k != LANES) {
        neon_copy_part(part, p, k * (type == UT_FLOAT32 ? 4 : 2));
        p = part;
    }
    if (type == UT_FLOAT32)
        return EACH(vreinterpretq_f32_u8(vld1q_u8(p + 16 * j)));
    const uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(p)), high = vreinterpretq_u16_u8(vld1q_u8(p + 16));
    if (type == UT_FLOAT16) {
        const float16x8_t first = vreinterpretq_f16_u16(low), last = vreinterpretq_f16_u16(high);
        return (vf){{vcvt_f32_f16(vget_low_f16(first)), vcvt_high_f32_f16(first), vcvt_f32_f16(vget_low_f16(last)),
                     vcvt_high_f32_f16(last)}};
    }
    return (vf){{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(low), 16)),
                 vreinterpretq_f32_u32(vshll_high_n_u16(low, 16)),
                 vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(high), 16)),
                 vreinterpretq_f32_u32(vshll_high_n_u16(high, 16))}};
}

NEON void v_store(uint8_t *p, vf v, size_t k)
{
    uint8_t part[sizeof(vf)];
    uint8_t *const to = k == LANES ? p : part;
    for (unsigned j = 0; j < 4; j++)
        vst1q_u8(to + 16 * j, vreinterpretq_u8_f32(v.q[j]));
    if (k != LANES)
        neon_copy_part(p, part, k * 4);
}

NEON uint32x4_t bits_of(float32x4_t v)
{
    return vreinterpretq_u32_f32(v);
}

/* What is added to the bits of a float before its lower half goes, as in ut_bf16_of_float: 0x7fff, and the last bit
 * that is kept. */
NEON uint32x4_t bf16_rounding(uint32x4_t bits)
{
    return vsraq_n_u32(vdupq_n_u32(0x7fff), vshlq_n_u32(bits, 15), 31);
}

/* As ut_bf16_of_float. (The CPU's own conversion is not on all CPUs.) */
NEON uint16x8_t bf16_of_lanes(float32x4_t low, float32x4_t high)
{
    const uint32x4_t a = bits_of(low), b = bits_of(high);
    const uint16x8_t kept = vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
    const uint16x8_t number =
        vuzp1q_u16(vreinterpretq_u16_u32(vceqq_f32(low, low)), vreinterpretq_u16_u32(vceqq_f32(high, high)));
    const uint16x8_t rounded = vaddhn_high_u32(vaddhn_u32(a, bf16_rounding(a)), b, bf16_rounding(b));
    return vbslq_u16(number, rounded, vorrq_u16(kept, vdupq_n_u16(0x40)));
}

NEON uint16x8_t half_of_lanes(unsigned type, float32x4_t low, float32x4_t high)
{
    if (type == UT_FLOAT16)
        return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(low), high));
    return bf16_of_lanes(low, high);
}

/* Of float32: sums of zero times each element, which are NaN once one was NaN or Inf. Of the halves: the greatest
 * magnitude, doubled to shift the sign out. Lanes beyond |k| hold what came of zeros, which is finite. */
typedef struct vseen {
    float32x4_t f[4];
    uint16x8_t h[2];
} vseen;

NEON vseen v_seen_none(void)
{
    const float32x4_t f = vdupq_n_f32(0);
    const uint16x8_t h = vdupq_n_u16(0);
    return (vseen){{f, f, f, f}, {h, h}};
}

NEON bool v_seen_bad(unsigned type, vseen seen)
{
    if (type != UT_FLOAT32)
        return vmaxvq_u16(vmaxq_u16(seen.h[0], seen.h[1])) >= (type == UT_FLOAT16 ? 0xf800 : 0xff00);
    const float32x4_t sum = vaddq_f32(vaddq_f32(seen.f[0], seen.f[1]), vaddq_f32(seen.f[2], seen.f[3]));
    return vminvq_u32(vceqq_f32(sum, sum)) == 0;
}

NEON void v_result(unsigned type, uint8_t *p, vf v, size_t k, vseen *seen)
{
    if (type == UT_FLOAT32) {
        const float32x4_t zero = vdupq_n_f32(0);
        for (unsigned j = 0; j < 4; j++)
            seen->f[j] = vfmaq_f32(seen->f[j], v.q[j], zero);
        v_store(p, v, k);
        return;
    }
    uint8_t part[2 * sizeof(uint16x8_t)];
    uint8_t *const to = k == LANES ? p : part;
    for (unsigned j = 0; j < 2; j++) {
        const uint16x8_t half = half_of_lanes(type, v.q[2 * j], v.q[2 * j + 1]);
        seen->h[j] = vmaxq_u16(seen->h[j], vaddq_u16(half, half));
        vst1q_u8(to + 16 * j, vreinterpretq_u8_u16(half));
    }
    if (k != LANES)
        neon_copy_part(p, part, k * 2);
}

NEON vf v_set(float value)
{
    return EACH(vdupq_n_f32(value));
}

NEON vf v_add(vf a, vf b)
{
    return EACH(vaddq_f32(a.q[j], b.q[j]));
}

NEON vf v_mul(vf a, vf b)
{
    return EACH(vmulq_f32(a.q[j], b.q[j]));
}

NEON vf v_div(vf a, vf b)
{
    return EACH(vdivq_f32(a.q[j], b.q[j]));
}

/* fmin and fmax give a NaN where either is one, as they should, but take -0 for less than 0: of equals b is wanted. */
NEON vf v_min(vf a, vf b)
{
    return EACH(vbslq_f32(vcgeq_f32(a.q[j], b.q[j]), b.q[j], vminq_f32(a.q[j], b.q[j])));
}

NEON vf v_max(vf a, vf b)
{
    return EACH(vbslq_f32(vcleq_f32(a.q[j], b.q[j]), b.q[j], vmaxq_f32(a.q[j], b.q[j])));
}

/* As ut_float_odd_of_double, for which there is an instruction. */
NEON float32x4_t quotient_by_double(float32x4_t v, bool divide, double by)
{
    const float64x2_t d = vdupq_n_f64(by);
    const float64x2_t low = vcvt_f64_f32(vget_low_f32(v)), high = vcvt_high_f64_f32(v);
    if (divide)
        return vcvtx_high_f32_f64(vcvtx_f32_f64(vdivq_f64(low, d)), vdivq_f64(high, d));
    return vcvtx_high_f32_f64(vcvtx_f32_f64(vmulq_f64(low, d)), vmulq_f64(high, d));
}

/* Twice the magnitude, less one: below the limit for numbers below 2^-100 that are not zero. */
NEON uint32x4_t how_tiny(float32x4_t v)
{
    const uint32x4_t bits = bits_of(v);
    return vsubq_u32(vaddq_u32(bits, bits), vdupq_n_u32(1));
}

NEON float32x4_t quotient_by_remainder(float32x4_t v, float32x4_t d)
{
    const float32x4_t q = vdivq_f32(v, d), remainder = vfmsq_f32(v, q, d);
    const uint32x4_t inexact = vcagtq_f32(remainder, vdupq_n_f32(0));
    const uint32x4_t signs = veorq_u32(bits_of(remainder), bits_of(v));
    const uint32x4_t outward = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(signs), 31));
    const uint32x4_t back = vaddq_u32(bits_of(q), vandq_u32(inexact, outward)); /* a mask is -1 */
    return vreinterpretq_f32_u32(vorrq_u32(back, vshrq_n_u32(inexact, 31)));
}

/* The quotient rounded to odd, by the exact remainder v - q * by: where its sign is not that of v, q went outward.
 * Below 2^-100 the remainder may not be exact (nor the product of a power of two): bfloat16 reaches down there, float16
 * is zero long before. */
NEON vf v_quotient(unsigned type, vf v, bool divide, double by)
{
    if (type == UT_BFLOAT16) {
        const uint32x4_t least =
            vminq_u32(vminq_u32(how_tiny(v.q[0]), how_tiny(v.q[1])), vminq_u32(how_tiny(v.q[2]), how_tiny(v.q[3])));
        if (__builtin_expect(vminvq_u32(least) < ((127 - 100) << 24) - 1, 0))
            return EACH(quotient_by_double(v.q[j], divide, by));
    }
    const float32x4_t d = vdupq_n_f32((float)by);
    if (!divide)
        return EACH(vmulq_f32(v.q[j], d));
    return EACH(quotient_by_remainder(v.q[j], d));
}

#include "fold_lanes.h"
#include "fold_loops.h"
#include "weigh_loops.h"

#else
typedef int ut_no_fold_neon; /* a file of C must declare something */
#endif
