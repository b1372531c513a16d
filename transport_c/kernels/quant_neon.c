/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots for NEON: eight registers of four lanes.
 */
#include "table.h"

#if UT_KERNELS_ARM
#include <arm_neon.h>

#define UT_TARGET
#define UT_QUANT_TABLE ut_quant_neon
#define UT_LANE static inline __attribute__((always_inline))
typedef float32x4_t vr;
typedef int32x4_t vn;
enum { LANES = 4, REGISTERS = 8 };
#define AT(number, ...)                                                                                                \
    {                                                                                                                  \
        enum { j = number };                                                                                           \
        __VA_ARGS__                                                                                                    \
    }
#define EACH_HALF(...) {AT(0, __VA_ARGS__) AT(1, __VA_ARGS__) AT(2, __VA_ARGS__) AT(3, __VA_ARGS__)}
#define EACH(...)                                                                                                      \
    {AT(0, __VA_ARGS__) AT(1, __VA_ARGS__) AT(2, __VA_ARGS__) AT(3, __VA_ARGS__) AT(4, __VA_ARGS__) AT(5, __VA_ARGS__) \
         AT(6, __VA_ARGS__) AT(7, __VA_ARGS__)}

UT_LANE vr r_load(const float *p)
{
    return vld1q_f32(p);
}

UT_LANE void r_store(float *p, vr v)
{
    vst1q_f32(p, v);
}

UT_LANE vr r_set(float value)
{
    return vdupq_n_f32(value);
}

UT_LANE vr r_add(vr a, vr b)
{
    return vaddq_f32(a, b);
}

UT_LANE vr r_sub(vr a, vr b)
{
    return vsubq_f32(a, b);
}

UT_LANE vr r_mul(vr a, vr b)
{
    return vmulq_f32(a, b);
}

UT_LANE vr r_div(vr a, vr b)
{
    return vdivq_f32(a, b);
}

UT_LANE vr r_of(vn v)
{
    return vcvtq_f32_s32(v);
}

UT_LANE vr r_where_equal(vn a, vn b, vr yes, vr no)
{
    return vbslq_f32(vceqq_s32(a, b), yes, no);
}

UT_LANE vn n_set(int32_t value)
{
    return vdupq_n_s32(value);
}

/* Lane number times 0x9e3779b9. */
UT_LANE vn n_steps(void)
{
    const uint32_t step = 0x9e3779b9u, steps[4] = {0, step, 2 * step, 3 * step};
    return vreinterpretq_s32_u32(vld1q_u32(steps));
}

UT_LANE vn n_add(vn a, vn b)
{
    return vaddq_s32(a, b);
}

UT_LANE vn n_times(vn a, vn b)
{
    return vmulq_s32(a, b);
}

UT_LANE vn n_xor(vn a, vn b)
{
    return veorq_s32(a, b);
}

UT_LANE vn n_and(vn a, vn b)
{
    return vandq_s32(a, b);
}

/* Without a sign; |by| is a constant once this is inlined, but the intrinsic that wants one does not know. */
UT_LANE vn n_right(vn v, const int by)
{
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), vdupq_n_s32(-by)));
}

UT_LANE vn n_min(vn a, vn b)
{
    return vminq_s32(a, b);
}

UT_LANE vn n_max(vn a, vn b)
{
    return vmaxq_s32(a, b);
}

UT_LANE vn n_rounded(vr v)
{
    return vcvtnq_s32_f32(v);
}

UT_LANE vn n_magnitude(vr v)
{
    return vandq_s32(vreinterpretq_s32_f32(v), vdupq_n_s32(0x7fffffff));
}

UT_LANE uint32_t n_most(vn v)
{
    return (uint32_t)vmaxvq_s32(v);
}

UT_LANE int8x16_t bytes_of(const int16x8_t *q)
{
    return vcombine_s8(vmovn_s16(q[0]), vmovn_s16(q[1]));
}

UT_LANE void n_pack(const unsigned form, uint8_t *codes, const vn *q)
{
    int16x8_t words[REGISTERS / 2];
    EACH_HALF(words[j] = vcombine_s16(vmovn_s32(q[2 * j]), vmovn_s32(q[2 * j + 1]));)
    if (form == UT_QUANT_INT16) {
        EACH_HALF(vst1q_u8(codes + 16 * j, vreinterpretq_u8_s16(words[j]));)
        return;
    }
    const uint8x16_t low = vreinterpretq_u8_s8(bytes_of(words)), high = vreinterpretq_u8_s8(bytes_of(words + 2));
    if (form == UT_QUANT_INT8) {
        vst1q_u8(codes, low);
        vst1q_u8(codes + 16, high);
        return;
    }
    const uint8x16_t even = vandq_u8(vuzp1q_u8(low, high), vdupq_n_u8(15));
    vst1q_u8(codes, vorrq_u8(even, vshlq_n_u8(vuzp2q_u8(low, high), 4)));
}

UT_LANE void n_unpack(const unsigned form, const uint8_t *codes, vn *q)
{
    int16x8_t words[REGISTERS / 2];
    if (form == UT_QUANT_INT16) {
        EACH_HALF(words[j] = vreinterpretq_s16_u8(vld1q_u8(codes + 16 * j));)
    } else {
        int8x16_t low = vreinterpretq_s8_u8(vld1q_u8(codes)), high = low;
        if (form == UT_QUANT_INT8) {
            high = vreinterpretq_s8_u8(vld1q_u8(codes + 16));
        } else { /* each nibble to the top, then down again */
            const int8x16_t even = vshrq_n_s8(vshlq_n_s8(low, 4), 4), odd = vshrq_n_s8(low, 4);
            low = vzip1q_s8(even, odd);
            high = vzip2q_s8(even, odd);
        }
        words[0] = vmovl_s8(vget_low_s8(low));
        words[1] = vmovl_high_s8(low);
        words[2] = vmovl_s8(vget_low_s8(high));
        words[3] = vmovl_high_s8(high);
    }
    EACH_HALF({
        q[2 * j] = vmovl_s16(vget_low_s16(words[j]));
        q[2 * j + 1] = vmovl_high_s16(words[j]);
    })
}

#include "quant_lanes.h"

#else
typedef int ut_no_quant_neon; /* a file of C must declare something */
#endif
