/* SPDX-License-Identifier: Apache-2.0
 *
 * The transform for one instruction set; hadamard_plain.c, hadamard_avx2.c and hadamard_avx512.c include this file once
 * each. The work goes tile by tile: a tile is all rows of some columns, small enough for the L1 cache. A first pass
 * reads the source with butterflies of up to 8 rows into the tile, and a last pass writes the destination from it; 64
 * rows need just these two. Vectors lie along the columns, so no pass shuffles. The only rounding is that of each sum,
 * and that of the scale at the end. No sum has a choice of order, so all instruction sets give the same bits.
 *
 * The includer defines UT_TARGET and UT_HADAMARD_TABLE; vf, LANES; v_load(p, k) and v_store(p, v, k) for the first k
 * lanes; v_set, v_add, v_sub, v_mul; v_flip(v, bits), which negates lane i where bit i is set; and vseen with
 * v_seen_none(), v_see(&seen, v) and v_seen_bad(seen): whether a NaN or Inf was seen.
 */
#include "table.h"

#define UT_LEAF static inline __attribute__((always_inline)) UT_TARGET
#if defined(__clang__)
#define UT_NO_CARRIED_DEPENDENCE _Pragma("clang loop vectorize(assume_safety)")
#else
#define UT_NO_CARRIED_DEPENDENCE _Pragma("GCC ivdep")
#endif

enum { TILE_COLUMNS = 64, TILE_COLUMNS_TALL = 16, TALL = 64, RADIX_BITS = 3 };
/* How many bytes ahead in each row to prefetch. The CPU's own prefetchers give up on 64 rows at once (7 GB/s without
 * this, 11 with it). Behind a row lies the next packet, which is the same row of the next group. */
enum { PREFETCH = 512 };

typedef struct tile {
    uint32_t rows;
    size_t columns; /* of this tile, at most `width` */
    size_t width;   /* floats from one row of `sums` to the next */
    float scale;
    const uint8_t *in[UT_HADAMARD_ROWS_MAX]; /* where each row of the source begins in this tile */
    uint8_t *out;                            /* row 0 of the destination */
    size_t stride;
    uint64_t signs[UT_HADAMARD_ROWS_MAX]; /* of the tile's columns, least bit first */
    float sums[UT_HADAMARD_ROWS_MAX * TILE_COLUMNS_TALL] __attribute__((aligned(64)));
} tile;

static const float zeros[TILE_COLUMNS] __attribute__((aligned(64)));

UT_LEAF void pair(vf *a, vf *b)
{
    const vf sum = v_add(*a, *b);
    *b = v_sub(*a, *b);
    *a = sum;
}

/* H of 2^bits vectors. */
UT_LEAF void butterfly(vf v[8], unsigned bits)
{
    if (bits == 3) {
        pair(&v[0], &v[4]);
        pair(&v[1], &v[5]);
        pair(&v[2], &v[6]);
        pair(&v[3], &v[7]);
    }
    if (bits >= 2) {
        pair(&v[0], &v[2]);
        pair(&v[1], &v[3]);
    }
    if (bits == 3) {
        pair(&v[4], &v[6]);
        pair(&v[5], &v[7]);
    }
    if (bits >= 1)
        pair(&v[0], &v[1]);
    if (bits >= 2)
        pair(&v[2], &v[3]);
    if (bits == 3) {
        pair(&v[4], &v[5]);
        pair(&v[6], &v[7]);
    }
}

enum place { FROM_SOURCE = 1, TO_DESTINATION = 2, FLIP = 4 };

/* |k| columns from |x| of the rows first, first + step, ...: 2^bits of them. */
UT_LEAF void step(tile *t, unsigned how, unsigned bits, uint32_t first, uint32_t apart, size_t x, size_t k, vseen *seen)
{
    vf v[8];
    for (unsigned j = 0; j < 1u << bits; j++) {
        const uint32_t row = first + j * apart;
        if (how & FROM_SOURCE)
            v[j] = v_load(t->in[row] + x * sizeof(float), k);
        else
            v[j] = v_load((const uint8_t *)&t->sums[row * t->width + x], LANES);
        if (how & FROM_SOURCE)
            __builtin_prefetch(t->in[row] + x * sizeof(float) + PREFETCH);
        if ((how & FROM_SOURCE) && (how & FLIP))
            v[j] = v_flip(v[j], t->signs[row] >> x);
    }
    butterfly(v, bits);
    for (unsigned j = 0; j < 1u << bits; j++) {
        const uint32_t row = first + j * apart;
        if (!(how & TO_DESTINATION)) {
            v_store((uint8_t *)&t->sums[row * t->width + x], v[j], LANES);
            continue;
        }
        v[j] = v_mul(v[j], v_set(t->scale));
        if (how & FLIP) {
            v[j] = v_flip(v[j], t->signs[row] >> x);
            v_see(seen, v[j]);
        }
        v_store(t->out + row * t->stride + x * sizeof(float), v[j], k);
    }
}

/* Butterflies of 2^bits rows that are |apart| rows from each other, over the whole tile. */
UT_LEAF void pass(tile *t, unsigned how, unsigned bits, uint32_t apart, vseen *seen)
{
    const size_t whole = t->columns - t->columns % LANES;
    for (uint32_t base = 0; base < t->rows; base += apart << bits)
        for (uint32_t i = base; i < base + apart; i++) {
            UT_NO_CARRIED_DEPENDENCE
            for (size_t x = 0; x < whole; x += LANES)
                step(t, how, bits, i, apart, x, LANES, seen);
            if (LANES > 1 && whole < t->columns)
                step(t, how, bits, i, apart, whole, t->columns - whole, seen);
        }
}

UT_LEAF void pass_of(tile *t, unsigned how, unsigned bits, uint32_t apart, vseen *seen)
{
    switch (bits) {
    case 0:
        pass(t, how, 0, apart, seen);
        break;
    case 1:
        pass(t, how, 1, apart, seen);
        break;
    case 2:
        pass(t, how, 2, apart, seen);
        break;
    default:
        pass(t, how, 3, apart, seen);
        break;
    }
}

/* |flip_in|, |flip_out|: FLIP at that end. */
UT_LEAF void transform_tile(tile *t, unsigned flip_in, unsigned flip_out, vseen *seen)
{
    unsigned bits = (unsigned)__builtin_ctz(t->rows);
    const unsigned first = UT_MIN2(bits, (unsigned)RADIX_BITS);
    bits -= first;
    pass_of(t, FROM_SOURCE | flip_in, first, 1u << bits, seen);
    while (bits > RADIX_BITS) {
        const unsigned middle = UT_MIN2(bits - RADIX_BITS, (unsigned)RADIX_BITS);
        bits -= middle;
        pass_of(t, 0, middle, 1u << bits, seen);
    }
    pass_of(t, TO_DESTINATION | flip_out, bits, 1, seen);
}

static __attribute__((noinline, cold)) UT_TARGET size_t count_bad(const uint8_t *p, size_t stride, size_t rows,
                                                                  size_t columns)
{
    size_t bad = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++) {
            uint32_t bits;
            memcpy(&bits, p + r * stride + c * sizeof bits, sizeof bits);
            bad += (bits & 0x7f800000) == 0x7f800000;
        }
    return bad;
}

UT_LEAF size_t transform(void *dst, const void *src, const ut_hadamard_block *b, const uint64_t *present,
                         unsigned flip_in, unsigned flip_out)
{
    tile t;
    size_t bad = 0;
    t.rows = b->rows;
    t.scale = b->scale;
    t.stride = b->stride;
    t.width = b->rows > TALL ? TILE_COLUMNS_TALL : TILE_COLUMNS;
    for (size_t c = 0; c < b->columns; c += t.width) {
        t.columns = UT_MIN2(b->columns - c, t.width);
        t.out = (uint8_t *)dst + c * sizeof(float);
        for (uint32_t r = 0; r < b->rows; r++) {
            const bool there = !present || (present[r / 64] >> (r % 64) & 1);
            t.in[r] = there ? (const uint8_t *)src + r * b->stride + c * sizeof(float) : (const uint8_t *)zeros;
            t.signs[r] = ut_hadamard_signs(b->key, r, (uint32_t)(c / 64)) >> c % 64;
        }
        vseen seen = v_seen_none();
        transform_tile(&t, flip_in, flip_out, &seen);
        if (flip_out && v_seen_bad(seen))
            bad += count_bad(t.out, b->stride, b->rows, t.columns);
    }
    return bad;
}

static UT_TARGET size_t encode(void *dst, const void *src, const ut_hadamard_block *b, const uint64_t *present)
{
    return transform(dst, src, b, present, FLIP, 0);
}

static UT_TARGET size_t decode(void *dst, const void *src, const ut_hadamard_block *b, const uint64_t *present)
{
    return transform(dst, src, b, present, 0, FLIP);
}

const ut_hadamard_kernels UT_HADAMARD_TABLE = {encode, decode};
