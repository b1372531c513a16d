/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform for NEON: eight lanes in two registers, so that the eight rows of a butterfly fill half of the
 * 32 registers.
 */
#include "hadamard.h"
#include "table.h"

#if UT_KERNELS_ARM
#include "neon.h"

#include <arm_neon.h>

#define UT_TARGET
#define UT_HADAMARD_TABLE ut_hadamard_neon
typedef struct vf {
    float32x4_t low, high;
} vf;
typedef uint32x4_t vseen;
enum { LANES = 8 };

NEON vf v_load(const uint8_t *p, size_t k)
{
    uint8_t part[sizeof(vf)] = {0};
    if (k != LANES) {
        neon_copy_part(part, p, k * sizeof(float));
        p = part;
    }
    return (vf){vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))};
}

NEON void v_store(uint8_t *p, vf v, size_t k)
{
    uint8_t part[sizeof(vf)];
    uint8_t *const to = k == LANES ? p : part;
    vst1q_u8(to, vreinterpretq_u8_f32(v.low));
    vst1q_u8(to + 16, vreinterpretq_u8_f32(v.high));
    if (k != LANES)
        neon_copy_part(p, part, k * sizeof(float));
}

NEON vf v_set(float value)
{
    return (vf){vdupq_n_f32(value), vdupq_n_f32(value)};
}

NEON vf v_add(vf a, vf b)
{
    return (vf){vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}

NEON vf v_sub(vf a, vf b)
{
    return (vf){vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
}

NEON vf v_mul(vf a, vf b)
{
    return (vf){vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}

/* Each lane shifts its own bit to the top. */
NEON float32x4_t flip_four(float32x4_t v, uint32x4_t bits, int32x4_t up)
{
    const uint32x4_t minus = vandq_u32(vshlq_u32(bits, up), vdupq_n_u32(0x80000000));
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v), minus));
}

NEON vf v_flip(vf v, uint64_t bits)
{
    const uint32x4_t all = vdupq_n_u32((uint32_t)bits);
    return (vf){flip_four(v.low, all, (int32x4_t){31, 30, 29, 28}),
                flip_four(v.high, all, (int32x4_t){27, 26, 25, 24})};
}

/* The greatest magnitude, doubled to shift the sign out. */
NEON vseen v_seen_none(void)
{
    return vdupq_n_u32(0);
}

NEON void v_see(vseen *seen, vf v)
{
    const uint32x4_t low = vreinterpretq_u32_f32(v.low), high = vreinterpretq_u32_f32(v.high);
    *seen = vmaxq_u32(*seen, vmaxq_u32(vaddq_u32(low, low), vaddq_u32(high, high)));
}

NEON bool v_seen_bad(vseen seen)
{
    return vmaxvq_u32(seen) >= 0xff000000;
}

#include "hadamard_lanes.h"

#else
typedef int ut_no_hadamard_neon; /* a file of C must declare something */
#endif
