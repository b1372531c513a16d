/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C three ways: eight tables for any CPU, the crc32 instruction in three interleaved streams with carry-less
 * products beside them (crc32c_streams.h), and carry-less products in 512-bit registers. ARM's is in crc32c_arm.c.
 *
 * The polynomial arithmetic in short. A checksum without its two inversions is linear: message(x) * x^32 mod P, lowest
 * bit of the first byte first. A piece A that |d| bits follow counts as A * x^d, and x^d mod P has 32 bits; so a piece
 * is moved over any distance by a product with a constant, and pieces that were worked on side by side are moved to one
 * place and XORed. A product of two bit-reversed numbers comes out one bit short, hence the -1 in the exponents below.
 * Each constant is in the way of some length that tests/c/kernels/test_crc32c.c compares with the definition.
 */
#include "table.h"

/* ---- tables ---- */

/* TABLE[k][byte]: the byte with k zero bytes after it. Linear as well: the entry of a byte is the XOR of those of its
 * bits, so eight numbers a table suffice and the preprocessor writes out the rest. */
#define BITS_0(X) X(0xf26b8303, 0xe13b70f7, 0xc79a971f, 0x8ad958cf, 0x105ec76f, 0x20bd8ede, 0x417b1dbc, 0x82f63b78)
#define BITS_1(X) X(0x13a29877, 0x274530ee, 0x4e8a61dc, 0x9d14c3b8, 0x3fc5f181, 0x7f8be302, 0xff17c604, 0xfbc3faf9)
#define BITS_2(X) X(0xa541927e, 0x4f6f520d, 0x9edea41a, 0x38513ec5, 0x70a27d8a, 0xe144fb14, 0xc76580d9, 0x8b277743)
#define BITS_3(X) X(0xdd45aab8, 0xbf672381, 0x7b2231f3, 0xf64463e6, 0xe964b13d, 0xd725148b, 0xaba65fe7, 0x52a0c93f)
#define BITS_4(X) X(0x38116fac, 0x7022df58, 0xe045beb0, 0xc5670b91, 0x8f2261d3, 0x1ba8b557, 0x37516aae, 0x6ea2d55c)
#define BITS_5(X) X(0xef306b19, 0xdb8ca0c3, 0xb2f53777, 0x6006181f, 0xc00c303e, 0x85f4168d, 0x0e045beb, 0x1c08b7d6)
#define BITS_6(X) X(0x68032cc8, 0xd0065990, 0xa5e0c5d1, 0x4e2dfd53, 0x9c5bfaa6, 0x3d5b83bd, 0x7ab7077a, 0xf56e0ef4)
#define BITS_7(X) X(0x493c7d27, 0x9278fa4e, 0x211d826d, 0x423b04da, 0x847609b4, 0x0d006599, 0x1a00cb32, 0x34019664)

/* The 2^8 sums of eight numbers, the last number deciding last. */
#define SUMS_1(s, a) (s), (s) ^ (a)
#define SUMS_2(s, a, b) SUMS_1(s, a), SUMS_1((s) ^ (b), a)
#define SUMS_3(s, a, b, c) SUMS_2(s, a, b), SUMS_2((s) ^ (c), a, b)
#define SUMS_4(s, a, b, c, d) SUMS_3(s, a, b, c), SUMS_3((s) ^ (d), a, b, c)
#define SUMS_5(s, a, b, c, d, e) SUMS_4(s, a, b, c, d), SUMS_4((s) ^ (e), a, b, c, d)
#define SUMS_6(s, a, b, c, d, e, f) SUMS_5(s, a, b, c, d, e), SUMS_5((s) ^ (f), a, b, c, d, e)
#define SUMS_7(s, a, b, c, d, e, f, g) SUMS_6(s, a, b, c, d, e, f), SUMS_6((s) ^ (g), a, b, c, d, e, f)
#define SUMS_8(a, b, c, d, e, f, g, h) {SUMS_7(0, a, b, c, d, e, f, g), SUMS_7(h, a, b, c, d, e, f, g)}

static const uint32_t TABLE[8][256] = {
    BITS_0(SUMS_8), BITS_1(SUMS_8), BITS_2(SUMS_8), BITS_3(SUMS_8),
    BITS_4(SUMS_8), BITS_5(SUMS_8), BITS_6(SUMS_8), BITS_7(SUMS_8),
};

static uint32_t load_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t of_plain(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (; len >= 8; p += 8, len -= 8) {
        const uint32_t low = crc ^ load_le32(p), high = load_le32(p + 4);
        crc = TABLE[7][low & 0xff] ^ TABLE[6][low >> 8 & 0xff] ^ TABLE[5][low >> 16 & 0xff] ^ TABLE[4][low >> 24] ^
              TABLE[3][high & 0xff] ^ TABLE[2][high >> 8 & 0xff] ^ TABLE[1][high >> 16 & 0xff] ^ TABLE[0][high >> 24];
    }
    for (; len > 0; p++, len--)
        crc = crc >> 8 ^ TABLE[0][(crc ^ *p) & 0xff];
    return ~crc;
}

/* |a| * x^31 ... x^0 by the bits of |b|, and then 33 times x. */
static uint32_t times_plain(uint32_t a, uint32_t b)
{
    const uint32_t by_x[2] = {0, 0x82f63b78};
    uint32_t product = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit > 0; bit >>= 1) {
        product ^= b & bit ? a : 0;
        a = a >> 1 ^ by_x[a & 1];
    }
    for (unsigned i = 0; i < 33; i++)
        product = product >> 1 ^ by_x[product & 1];
    return product;
}

static uint32_t copy_plain(void *dst, const void *src, size_t len)
{
    memcpy(dst, src, len);
    return of_plain(0, src, len);
}

static uint32_t times_header_plain(const uint64_t header[4], uint32_t b)
{
    return times_plain(of_plain(0, header, 32), b);
}

const ut_crc32c_kernels ut_crc32c_plain = {of_plain, copy_plain, times_plain, times_header_plain};

#if UT_KERNELS_X86
#include <immintrin.h>

/* ---- the crc32 instruction ---- */

#define SSE42 __attribute__((target("sse4.2,pclmul,avx")))
#define SSE42_LEAF static inline __attribute__((always_inline)) SSE42
typedef __m128i v128;

SSE42_LEAF uint32_t crc_1(uint32_t crc, uint8_t byte)
{
    return _mm_crc32_u8(crc, byte);
}

SSE42_LEAF uint32_t crc_4(uint32_t crc, uint32_t word)
{
    return _mm_crc32_u32(crc, word);
}

SSE42_LEAF uint64_t crc_8(uint64_t crc, uint64_t word)
{
    return _mm_crc32_u64(crc, word);
}

SSE42_LEAF v128 load128(const uint8_t *p)
{
    return _mm_loadu_si128((const void *)p);
}

SSE42_LEAF v128 set128(uint64_t high, uint64_t low)
{
    return _mm_set_epi64x((int64_t)high, (int64_t)low);
}

SSE42_LEAF uint64_t low_of(v128 v)
{
    return (uint64_t)_mm_cvtsi128_si64(v);
}

SSE42_LEAF uint64_t high_of(v128 v)
{
    return (uint64_t)_mm_extract_epi64(v, 1);
}

SSE42_LEAF v128 v_xor(v128 a, v128 b)
{
    return _mm_xor_si128(a, b);
}

SSE42_LEAF uint64_t product(uint32_t a, uint32_t b)
{
    return low_of(_mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0));
}

SSE42_LEAF v128 product_low(v128 a, v128 b)
{
    return _mm_clmulepi64_si128(a, b, 0x00);
}

SSE42_LEAF v128 product_high(v128 a, v128 b)
{
    return _mm_clmulepi64_si128(a, b, 0x11);
}

#define UT_TARGET SSE42
#define UT_CRC32C_TABLE ut_crc32c_sse42
#include "crc32c_streams.h"

/* ---- wide carry-less products ---- */

#define CLMUL __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,vpclmulqdq,pclmul,sse4.2")))
#define CLMUL_LEAF static inline __attribute__((always_inline)) CLMUL

CLMUL_LEAF __m512i in_all_lanes(int64_t last, int64_t first)
{
    return _mm512_set_epi64(last, first, last, first, last, first, last, first);
}

/* |v| moved, each 16-byte lane by its own constant, plus |plus|. */
CLMUL_LEAF __m512i fold(__m512i v, __m512i over, __m512i plus)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(v, over, 0x00), _mm512_clmulepi64_epi128(v, over, 0x11),
                                     plus, 0x96);
}

CLMUL_LEAF __m512i load512(const uint8_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}

/* The 64 bytes at |p|, which are copied to |to| unless it is NULL. */
CLMUL_LEAF __m512i take512(const uint8_t *p, uint8_t *to)
{
    const __m512i v = load512(p);
    if (to)
        _mm512_storeu_si512((void *)to, v);
    return v;
}

/* |state| and the |r| bytes at |p| after it, 0 < r < 64, as one block: its first r bytes move over the other 64. */
CLMUL_LEAF __m512i fold_rest(__m512i state, const uint8_t *p, size_t r, uint8_t *to)
{
    static const uint8_t COUNT[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                      32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                      48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    const __mmask64 rest = ((__mmask64)1 << r) - 1;
    const __m512i from = _mm512_add_epi8(load512(COUNT), _mm512_set1_epi8((char)r));
    const __m512i last = _mm512_maskz_loadu_epi8(rest, p);
    if (to)
        _mm512_mask_storeu_epi8(to, rest, last);
    const __m512i head = _mm512_maskz_permutexvar_epi8(rest << (64 - r), from, state);
    const __m512i tail = _mm512_permutex2var_epi8(state, from, last);
    return fold(head, in_all_lanes(OVER_64), tail);
}

CLMUL_LEAF uint32_t reduce(__m512i state)
{
    const __m512i together = fold(state, _mm512_set_epi64(0, 0, OVER_16, OVER_32, OVER_48), _mm512_setzero_si512());
    const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(together), _mm512_extracti64x4_epi64(together, 1));
    const __m128i lane = _mm_xor_si128(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)),
                                       _mm512_extracti32x4_epi32(state, 3));
    const uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));
    return (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(lane, 1));
}

#define TAKE(at) take512(p + (at), to ? to + (at) : NULL)
#define PASS(bytes) (p += (bytes), to = to ? to + (bytes) : NULL)

/* Products and instructions side by side again: 256 bytes and WIDE_ROUNDS times 256 by products, and behind those three
 * streams of WIDE_STREAM. An instruction takes eight bytes where a product, in about the time of two, takes 64. */
enum { WIDE_ROUNDS = 3, WIDE_STREAM = 128, WIDE_HEAD = 256 + 256 * WIDE_ROUNDS, WIDE = WIDE_HEAD + 3 * WIDE_STREAM };

/* |to|, here and below: where the bytes are copied to, or NULL, as the compiler is to know. */
CLMUL_LEAF uint32_t crc_mixed_wide(uint32_t crc, const uint8_t *p, uint8_t *to)
{
    const __m512i over_64 = in_all_lanes(OVER_64), over_256 = in_all_lanes(OVER_256);
    const uint8_t *q = p + WIDE_HEAD;
    uint8_t *q_to = to ? to + WIDE_HEAD : NULL;
    __m512i a = _mm512_xor_si512(TAKE(0), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = TAKE(64), c = TAKE(128), d = TAKE(192);
    uint64_t x = 0, y = 0, z = 0;
    size_t at = 0;
#define THREE                                                                                                          \
    x = _mm_crc32_u64(x, load64(q + at));                                                                              \
    y = _mm_crc32_u64(y, load64(q + WIDE_STREAM + at));                                                                \
    z = _mm_crc32_u64(z, load64(q + 2 * WIDE_STREAM + at));                                                            \
    at += 8
    for (unsigned round = 0; round < WIDE_ROUNDS; round++) {
        PASS(256);
        a = fold(a, over_256, TAKE(0));
        THREE;
        THREE;
        b = fold(b, over_256, TAKE(64));
        THREE;
        c = fold(c, over_256, TAKE(128));
        THREE;
        d = fold(d, over_256, TAKE(192));
        THREE;
    }
    while (at < WIDE_STREAM) {
        THREE;
    }
#undef THREE
    for (size_t i = 0; q_to && i < 3 * WIDE_STREAM; i += 64)
        (void)take512(q + i, q_to + i);
    a = fold(a, in_all_lanes(OVER_192), fold(b, in_all_lanes(OVER_128), fold(c, over_64, d)));
    /* The three that others follow, by x^(8 * 384), x^(8 * 256) and x^(8 * 128). */
    const uint64_t moved =
        crc_moved(reduce(a), 0xd270f1a2) ^ crc_moved((uint32_t)x, 0xb9e02b86) ^ crc_moved((uint32_t)y, 0x0d3b6092);
    return (uint32_t)(z ^ _mm_crc32_u64(0, moved));
}

CLMUL_LEAF uint32_t crc_wide(uint32_t crc, const uint8_t *p, size_t len, uint8_t *to)
{
    crc = ~crc;
    for (; len >= WIDE; len -= WIDE) {
        crc = crc_mixed_wide(crc, p, to);
        PASS(WIDE);
    }
    if (len < 64) {
        if (to)
            memcpy(to, p, len);
        return ~crc_serial(crc, p, len);
    }
    const __m512i over_64 = in_all_lanes(OVER_64);
    __m512i a = _mm512_xor_si512(TAKE(0), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    PASS(64);
    len -= 64;
    if (len >= 192) {
        const __m512i over_256 = in_all_lanes(OVER_256);
        __m512i b = TAKE(0), c = TAKE(64), d = TAKE(128);
        PASS(192);
        for (len -= 192; len >= 256; len -= 256) {
            a = fold(a, over_256, TAKE(0));
            b = fold(b, over_256, TAKE(64));
            c = fold(c, over_256, TAKE(128));
            d = fold(d, over_256, TAKE(192));
            PASS(256);
        }
        a = fold(a, in_all_lanes(OVER_192), fold(b, in_all_lanes(OVER_128), fold(c, over_64, d)));
    }
    for (; len >= 64; len -= 64) {
        a = fold(a, over_64, TAKE(0));
        PASS(64);
    }
    if (len > 0)
        a = fold_rest(a, p, len, to);
    return ~reduce(a);
}
#undef TAKE
#undef PASS

CLMUL static uint32_t of_avx512(uint32_t crc, const void *data, size_t len)
{
    return crc_wide(crc, data, len, NULL);
}

CLMUL static uint32_t copy_avx512(void *dst, const void *src, size_t len)
{
    return crc_wide(0, src, len, dst);
}

const ut_crc32c_kernels ut_crc32c_avx512 = {of_avx512, copy_avx512, times_by_streams, times_header_by_streams};
#endif
