/* SPDX-License-Identifier: Apache-2.0
 *
 * The sparse kernels for NEON: eight lanes in two registers.
 */
#include "table.h"

#if UT_KERNELS_ARM
#include "neon.h"

#include <arm_neon.h>

#define UT_TARGET
#define UT_SPARSE_TABLE ut_sparse_neon
#define UT_LANE NEON
typedef struct vu {
    uint32x4_t low, high;
} vu;
typedef struct v_divisor {
    uint32_t m;
    float64x2_t inverse;
} v_divisor;
enum { LANES = 8 };

UT_LANE vu u_load(const float *p)
{
    const uint8_t *const bytes = (const uint8_t *)p;
    return (vu){vreinterpretq_u32_u8(vld1q_u8(bytes)), vreinterpretq_u32_u8(vld1q_u8(bytes + 16))};
}

UT_LANE void u_store(float *p, vu v)
{
    uint8_t *const bytes = (uint8_t *)p;
    vst1q_u8(bytes, vreinterpretq_u8_u32(v.low));
    vst1q_u8(bytes + 16, vreinterpretq_u8_u32(v.high));
}

UT_LANE uint32x4_t add_four(uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_f32(vaddq_f32(vreinterpretq_f32_u32(a), vreinterpretq_f32_u32(b)));
}

UT_LANE vu f_add(vu a, vu b)
{
    return (vu){add_four(a.low, b.low), add_four(a.high, b.high)};
}

UT_LANE vu u_set(uint32_t value)
{
    return (vu){vdupq_n_u32(value), vdupq_n_u32(value)};
}

UT_LANE vu u_count(void)
{
    return (vu){{0, 1, 2, 3}, {4, 5, 6, 7}};
}

UT_LANE vu u_add(vu a, vu b)
{
    return (vu){vaddq_u32(a.low, b.low), vaddq_u32(a.high, b.high)};
}

UT_LANE vu u_times(vu a, vu b)
{
    return (vu){vmulq_u32(a.low, b.low), vmulq_u32(a.high, b.high)};
}

UT_LANE vu u_xor(vu a, vu b)
{
    return (vu){veorq_u32(a.low, b.low), veorq_u32(a.high, b.high)};
}

UT_LANE vu u_or(vu a, vu b)
{
    return (vu){vorrq_u32(a.low, b.low), vorrq_u32(a.high, b.high)};
}

UT_LANE vu u_left(vu v, int by)
{
    return (vu){v.low << by, v.high << by};
}

UT_LANE vu u_right(vu v, int by)
{
    return (vu){v.low >> by, v.high >> by};
}

UT_LANE vu u_magnitude(vu v)
{
    return (vu){vbicq_u32(v.low, vdupq_n_u32(0x80000000)), vbicq_u32(v.high, vdupq_n_u32(0x80000000))};
}

/* A bit for each lane whose mask is set. */
UT_LANE uint32_t u_mask(uint32x4_t low, uint32x4_t high)
{
    const uint16x8_t both = vuzp1q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
    return vaddvq_u16(vandq_u16(both, (uint16x8_t){1, 2, 4, 8, 16, 32, 64, 128}));
}

UT_LANE uint32_t u_above(vu a, vu b)
{
    return u_mask(vcgtq_u32(a.low, b.low), vcgtq_u32(a.high, b.high));
}

UT_LANE v_divisor u_divisor(uint32_t m)
{
    return (v_divisor){m, vdupq_n_f64(1.0 / (double)m)};
}

/* The quotient of two numbers, rounded down; one too small at most (where the division leaves no rest). */
UT_LANE uint64x2_t quotient(uint64x2_t v, float64x2_t inverse)
{
    return vcvtq_u64_f64(vmulq_f64(vcvtq_f64_u64(v), inverse));
}

/* The rest is below 2 m, and the lesser of itself and itself less m: below m the difference wraps. */
UT_LANE uint32x4_t mod_four(uint32x4_t v, v_divisor by)
{
    const uint64x2_t low = quotient(vmovl_u32(vget_low_u32(v)), by.inverse);
    const uint64x2_t high = quotient(vmovl_high_u32(v), by.inverse);
    const uint32x4_t q = vuzp1q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high)), m = vdupq_n_u32(by.m);
    const uint32x4_t rest = vmlsq_u32(v, q, m);
    return vminq_u32(rest, vsubq_u32(rest, m));
}

UT_LANE vu u_mod(vu v, v_divisor by)
{
    return (vu){mod_four(v.low, by), mod_four(v.high, by)};
}

/* Each lane's byte is fetched by itself: NEON has no loads from many places. */
UT_LANE uint32_t u_test(const uint8_t *bits, vu at)
{
    const uint32x4_t low = vshrq_n_u32(at.low, 3), high = vshrq_n_u32(at.high, 3);
    uint8x8_t bytes = vdup_n_u8(0);
    bytes = vset_lane_u8(bits[vgetq_lane_u32(low, 0)], bytes, 0);
    bytes = vset_lane_u8(bits[vgetq_lane_u32(low, 1)], bytes, 1);
    bytes = vset_lane_u8(bits[vgetq_lane_u32(low, 2)], bytes, 2);
    bytes = vset_lane_u8(bits[vgetq_lane_u32(low, 3)], bytes, 3);
    bytes = vset_lane_u8(bits[vgetq_lane_u32(high, 0)], bytes, 4);
    bytes = vset_lane_u8(bits[vgetq_lane_u32(high, 1)], bytes, 5);
    bytes = vset_lane_u8(bits[vgetq_lane_u32(high, 2)], bytes, 6);
    bytes = vset_lane_u8(bits[vgetq_lane_u32(high, 3)], bytes, 7);
    const uint16x8_t number = vuzp1q_u16(vreinterpretq_u16_u32(at.low), vreinterpretq_u16_u32(at.high));
    const int8x8_t down = vneg_s8(vreinterpret_s8_u8(vand_u8(vmovn_u16(number), vdup_n_u8(7))));
    const uint8x8_t bit = vand_u8(vshl_u8(bytes, down), vdup_n_u8(1));
    return vaddv_u8(vshl_u8(bit, (int8x8_t){0, 1, 2, 3, 4, 5, 6, 7}));
}

/* Lanes that are hit move to the front by a table: for each mask of four the numbers of its lanes' bytes. */
#define BEFORE(m, i) __builtin_popcount((m) & ((1u << (i)) - 1))
#define LANE(m, i) (((m) >> (i) & 1u) * (UINT64_C(0x03020100) + (i) * UINT64_C(0x04040404)))
#define PLACED(m, i, half) (BEFORE(m, i) / 2 == (half) ? LANE(m, i) << 32 * (BEFORE(m, i) % 2) : 0)
#define HALF(m, half) (PLACED(m, 0, half) | PLACED(m, 1, half) | PLACED(m, 2, half) | PLACED(m, 3, half))
#define FRONT(m) {HALF(m, 0), HALF(m, 1)}
#define FRONT_4(m) FRONT(m), FRONT((m) + 1), FRONT((m) + 2), FRONT((m) + 3)
static const uint64_t front_of[16][2] = {FRONT_4(0u), FRONT_4(4u), FRONT_4(8u), FRONT_4(12u)};

UT_LANE void store_front(uint32_t *to, uint32x4_t v, uint8x16_t front)
{
    vst1q_u8((uint8_t *)to, vqtbl1q_u8(vreinterpretq_u8_u32(v), front));
}

UT_LANE uint32x4_t missed(uint32x4_t v, uint32_t hits)
{
    return vbicq_u32(v, vtstq_u32(vdupq_n_u32(hits), (uint32x4_t){1, 2, 4, 8}));
}

#define UT_SPARSE_COMPRESS 1
UT_LANE void take_lanes(float *kept, vu p, uint32_t hits, uint32_t first, uint32_t *indices, float *values)
{
    const unsigned some = (unsigned)__builtin_popcount(hits & 15);
    const uint8x16_t low = vreinterpretq_u8_u64(vld1q_u64(front_of[hits & 15]));
    const uint8x16_t high = vreinterpretq_u8_u64(vld1q_u64(front_of[hits >> 4]));
    const vu at = u_add(u_set(first), u_count());
    store_front(indices, at.low, low);
    store_front(indices + some, at.high, high);
    store_front((uint32_t *)values, p.low, low);
    store_front((uint32_t *)values + some, p.high, high);
    u_store(kept, (vu){missed(p.low, hits), missed(p.high, hits >> 4)});
}

#include "sparse_lanes.h"

#else
typedef int ut_no_sparse_neon; /* a file of C must declare something */
#endif
