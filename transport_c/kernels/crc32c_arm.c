/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C on 64-bit ARM, where the CPU has the instruction: with carry-less products (PMULL) in three streams and beside
 * products, as on x86; without them in one stream. Both are optional in ARMv8.0, so dispatch.c asks for each.
 */
#include "table.h"

#if UT_KERNELS_ARM
#include <arm_acle.h>
#include <arm_neon.h>

#define UT_TARGET __attribute__((target("+crc+crypto")))
#define UT_CRC32C_TABLE ut_crc32c_pmull
#define ARM static inline __attribute__((always_inline)) UT_TARGET
typedef uint64x2_t v128;

ARM uint32_t crc_1(uint32_t crc, uint8_t byte)
{
    return __crc32cb(crc, byte);
}

ARM uint32_t crc_4(uint32_t crc, uint32_t word)
{
    return __crc32cw(crc, word);
}

ARM uint64_t crc_8(uint64_t crc, uint64_t word)
{
    return __crc32cd((uint32_t)crc, word);
}

ARM v128 load128(const uint8_t *p)
{
    return vreinterpretq_u64_u8(vld1q_u8(p));
}

ARM v128 set128(uint64_t high, uint64_t low)
{
    return (v128){low, high};
}

ARM uint64_t low_of(v128 v)
{
    return v[0];
}

ARM uint64_t high_of(v128 v)
{
    return v[1];
}

ARM v128 v_xor(v128 a, v128 b)
{
    return veorq_u64(a, b);
}

ARM uint64_t product(uint32_t a, uint32_t b)
{
    return vreinterpretq_u64_p128(vmull_p64(a, b))[0];
}

ARM v128 product_low(v128 a, v128 b)
{
    return vreinterpretq_u64_p128(vmull_p64(a[0], b[0]));
}

ARM v128 product_high(v128 a, v128 b)
{
    return vreinterpretq_u64_p128(vmull_high_p64(vreinterpretq_p64_u64(a), vreinterpretq_p64_u64(b)));
}

#include "crc32c_streams.h"

/* ---- without products ---- */

static UT_TARGET uint32_t of_serial(uint32_t crc, const void *data, size_t len)
{
    return ~crc_serial(~crc, data, len);
}

static uint32_t copy_serial(void *dst, const void *src, size_t len)
{
    const uint32_t crc = of_serial(0, src, len);
    memcpy(dst, src, len);
    return crc;
}

static uint32_t times_serial(uint32_t a, uint32_t b)
{
    return ut_crc32c_plain.times(a, b);
}

static uint32_t times_header_serial(const uint64_t header[4], uint32_t b)
{
    return times_serial(of_serial(0, header, 4 * sizeof *header), b);
}

const ut_crc32c_kernels ut_crc32c_arm = {of_serial, copy_serial, times_serial, times_header_serial};

#else
typedef int ut_no_crc32c_arm; /* a file of C must declare something */
#endif
