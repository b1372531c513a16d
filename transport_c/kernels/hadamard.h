/* SPDX-License-Identifier: Apache-2.0
 *
 * The randomized Hadamard transform of a block of rows, column by column: y = scale * H (s o x) along each column,
 * where a row is what one packet carries, x are the values, s the signs, o the product element by element, and H the
 * Hadamard matrix. A lost packet is then a lost row of y: each column loses the same small part of its energy, where
 * without the transform one row would lose all of its values. (Inside one packet the transform would be useless: the
 * whole block is lost with the packet.)
 *
 * Signs come from a key and the element's row and column, so that hosts with the same key have the same signs and
 * H(x) + H(y) = H(x + y). The code is chosen at run time for the CPU, as for all kernels; all instruction sets give the
 * same bits.
 */
#ifndef UT_KERNELS_HADAMARD_H
#define UT_KERNELS_HADAMARD_H

#include "core/base/mix.h"
#include "core/base/ut.h"

enum { UT_HADAMARD_ROWS_MAX = 1024 };

typedef struct ut_hadamard_block {
    uint32_t rows;    /* a power of two, 1 .. UT_HADAMARD_ROWS_MAX */
    uint32_t columns; /* float32 elements of a row; 0 is legal */
    size_t stride;    /* bytes from one row to the next, in the source as in the destination */
    uint64_t key;     /* of the signs: the same on all hosts */
    float scale;      /* 1 / sqrt(rows) makes the transform orthogonal */
} ut_hadamard_block;

/* The 64 signs of row |row|, columns 64 |word| .. 64 |word| + 63, least significant bit first; a set bit is a minus.
 * They are splitmix64 of the key and a counter (docs/papers.md, section 1.7). */
static inline uint64_t ut_hadamard_signs(uint64_t key, uint32_t row, uint32_t word)
{
    return ut_mix(key + (((uint64_t)row << 32 | word) + 1) * UT_MIX_STEP);
}

/* dst = scale * H (s o src). |dst| is |src|, or they do not overlap. No alignment is needed. */
void ut_hadamard_encode(void *dst, const void *src, const ut_hadamard_block *b);
/* dst = s o (scale * H src). This is the inverse of encoding if the two scales multiply to 1 / rows. |present| holds a
 * bit per row: a row whose bit is 0 counts as zero and is not read. NULL means that all rows are there. With k of n
 * rows missing, a scale that is n / (n - k) times as large makes the result unbiased over the keys. Returns the number
 * of NaN or Inf elements of |dst|. */
size_t ut_hadamard_decode(void *dst, const void *src, const ut_hadamard_block *b, const uint64_t *present);

#endif
