/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C by a CPU's own instruction for it, in three interleaved streams, with carry-less products beside them.
 * crc32c.c (SSE4.2) and crc32c_arm.c include this file once each. The polynomial arithmetic is told in crc32c.c.
 *
 * The includer defines
 * - UT_TARGET, an attribute of every function, and UT_CRC32C_TABLE, the name of the table;
 * - crc_1, crc_4, crc_8: |crc| over that many bytes more;
 * - v128, sixteen bytes; load128(p); set128(high, low); low_of(v), high_of(v); v_xor(a, b);
 * - product(a, b) of two numbers of 32 bits, and product_low, product_high: of two lower or two upper halves.
 */
#include "table.h"

#define UT_LEAF static inline __attribute__((always_inline)) UT_TARGET

UT_LEAF uint64_t load64(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* One stream. |crc| is the inner, not inverted, value here and below. */
UT_LEAF uint32_t crc_serial(uint32_t crc, const uint8_t *p, size_t len)
{
    for (; len >= 8; p += 8, len -= 8)
        crc = (uint32_t)crc_8(crc, load64(p));
    if (len & 4) {
        uint32_t word;
        memcpy(&word, p, sizeof word);
        crc = crc_4(crc, word);
        p += 4;
    }
    for (len &= 3; len > 0; p++, len--)
        crc = crc_1(crc, *p);
    return crc;
}

/* crc * x^(8 * bytes) for factor = x^(8 * bytes - 33) mod P; as a message of 64 bits, whose own checksum multiplies by
 * x^32. */
UT_LEAF uint64_t crc_moved(uint32_t crc, uint32_t factor)
{
    return product(crc, factor);
}

/* Three streams of |bytes| each, a multiple of 8: the instruction takes three cycles, but a new one starts in each. */
UT_LEAF uint32_t crc_streams(uint32_t crc, const uint8_t *p, size_t bytes, uint32_t over_one, uint32_t over_two)
{
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < bytes; i += 8) {
        a = crc_8(a, load64(p + i));
        b = crc_8(b, load64(p + bytes + i));
        c = crc_8(c, load64(p + 2 * bytes + i));
    }
    return (uint32_t)(c ^ crc_8(0, crc_moved((uint32_t)a, over_two) ^ crc_moved((uint32_t)b, over_one)));
}

static UT_TARGET uint32_t times_by_streams(uint32_t a, uint32_t b)
{
    return (uint32_t)crc_8(0, crc_moved(a, b));
}

static UT_TARGET uint32_t times_header_by_streams(const uint64_t header[4], uint32_t b)
{
    uint64_t crc = UINT32_MAX;
    for (unsigned i = 0; i < 4; i++)
        crc = crc_8(crc, header[i]);
    return (uint32_t)crc_8(0, crc_moved(~(uint32_t)crc, b));
}

/* What moves 16 bytes over |d| bits: the first eight bytes by x^(d + 63), the last eight by x^(d - 1), mod P and
 * reversed. */
#define OVER(first, last) (int64_t)((uint64_t)(last) << 32), (int64_t)((uint64_t)(first) << 32)
#define OVER_256 OVER(0xe9a5d8be, 0x1426a815)
#define OVER_192 OVER(0x7ccbbbf2, 0x31c94608)
#define OVER_128 OVER(0x6577b245, 0x7417153f)
#define OVER_64 OVER(0x1c19243b, 0x75bba45b)
#define OVER_48 OVER(0xa46ef4aa, 0x6051243f)
#define OVER_32 OVER(0x33ccbbbc, 0xa2158b34)
#define OVER_16 OVER(0x3743f7bd, 0x3171d430)

/* |v| moved, plus |plus|. */
UT_LEAF v128 fold128(v128 v, v128 over, v128 plus)
{
    return v_xor(v_xor(product_low(v, over), product_high(v, over)), plus);
}

/* Products and instructions side by side, for they are different parts of the CPU: 64 bytes and ROUNDS times 64 by
 * products in four registers, and behind those three streams of ROUNDS times 32. */
enum { ROUNDS = 8, STREAM = 32 * ROUNDS, MIXED = 64 + 64 * ROUNDS + 3 * STREAM }; /* 1344: most of a full packet */

UT_LEAF uint32_t crc_mixed(uint32_t crc, const uint8_t *p)
{
    const v128 over_64 = set128(OVER_64);
    const uint8_t *q = p + 64 + 64 * ROUNDS;
    v128 v = v_xor(load128(p), set128(0, crc));
    v128 w = load128(p + 16), x = load128(p + 32), y = load128(p + 48);
    uint64_t a = 0, b = 0, c = 0;
#define THREE(at)                                                                                                      \
    a = crc_8(a, load64(q + (at)));                                                                                    \
    b = crc_8(b, load64(q + STREAM + (at)));                                                                           \
    c = crc_8(c, load64(q + 2 * STREAM + (at)))
    for (size_t i = 0; i < ROUNDS; i++, q += 32) {
        p += 64;
        THREE(0);
        v = fold128(v, over_64, load128(p));
        THREE(8);
        w = fold128(w, over_64, load128(p + 16));
        THREE(16);
        x = fold128(x, over_64, load128(p + 32));
        THREE(24);
        y = fold128(y, over_64, load128(p + 48));
    }
#undef THREE
    v = fold128(v, set128(OVER_48), fold128(w, set128(OVER_32), fold128(x, set128(OVER_16), y)));
    uint64_t head = crc_8(0, low_of(v));
    head = crc_8(head, high_of(v));
    /* The three that others follow, by x^(8 * 768), x^(8 * 512) and x^(8 * 256). */
    const uint64_t moved =
        crc_moved((uint32_t)head, 0xd7a4825c) ^ crc_moved((uint32_t)a, 0xdd7e3b0c) ^ crc_moved((uint32_t)b, 0xb9e02b86);
    return (uint32_t)(c ^ crc_8(0, moved));
}

static UT_TARGET uint32_t of_by_streams(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (; len >= MIXED; p += MIXED, len -= MIXED)
        crc = crc_mixed(crc, p);
    for (; len >= 3 * 256; p += 3 * 256, len -= 3 * 256)
        crc = crc_streams(crc, p, 256, 0xb9e02b86, 0xdd7e3b0c);
    if (len >= 3 * 128) {
        crc = crc_streams(crc, p, 128, 0x0d3b6092, 0xb9e02b86);
        p += 3 * 128;
        len -= 3 * 128;
    }
    if (len >= 3 * 64) {
        crc = crc_streams(crc, p, 64, 0x9e4addf8, 0x0d3b6092);
        p += 3 * 64;
        len -= 3 * 64;
    }
    if (len >= 3 * 32) {
        crc = crc_streams(crc, p, 32, 0xba4fc28e, 0x9e4addf8);
        p += 3 * 32;
        len -= 3 * 32;
    }
    return ~crc_serial(crc, p, len);
}

/* In two passes: the second finds all in the first-level cache. */
static uint32_t copy_by_streams(void *dst, const void *src, size_t len)
{
    const uint32_t crc = of_by_streams(0, src, len);
    memcpy(dst, src, len);
    return crc;
}

const ut_crc32c_kernels UT_CRC32C_TABLE = {of_by_streams, copy_by_streams, times_by_streams, times_header_by_streams};
