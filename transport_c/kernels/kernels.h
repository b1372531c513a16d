/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic on payload: fold, finish, place, convert, checksum. Chosen at run time for the CPU (AVX-512, AVX2, plain),
 * so that one wheel runs anywhere. Pointers need no alignment. No state but the choice, which ut_kernels_init makes
 * once.
 *
 * Accumulators: float16 and bfloat16 accumulate in float32; every other dtype accumulates in itself.
 */
#ifndef UT_KERNELS_H
#define UT_KERNELS_H

#include "core/base/ut.h"

enum ut_isa { UT_ISA_PLAIN = 0, UT_ISA_AVX2 = 1, UT_ISA_AVX512 = 2 };

/* Picks the best instruction set that the CPU has, at most |most| (tests pin a lower one). Returns the choice. */
enum ut_isa ut_kernels_init(enum ut_isa most);
enum ut_isa ut_kernels_isa(void);

enum ut_fold_how {
    UT_A_IS_INPUT = 1,   /* |a| holds elements of dtype (our own contribution), not of the accumulator */
    UT_OUT_IS_RESULT = 2 /* the last contribution: divide by |divisor|, write dtype, count what is not finite */
};
/* out[i] = a[i] (op) in[i] for |n| elements. |in| is always of dtype. |out| may be |a|, unless its elements are wider
 * (a half that becomes an accumulator). SUM and AVG add; integer sums wrap (two's complement). MIN and MAX let a NaN
 * through. With UT_OUT_IS_RESULT and AVG the quotient is the correctly rounded out/divisor (integers: toward zero), for
 * a |divisor| from 1 to 2^24; otherwise the divisor is not looked at. Halves are rounded once, at the end. Returns the
 * number of NaN or Inf elements written as a result, else 0. All instruction sets give the same bits (of a NaN: a NaN).
 */
size_t ut_fold(unsigned dtype, unsigned redop, unsigned how, void *out, const void *a, const void *in, size_t n,
               uint32_t divisor);
/* dst[i] = a[i] / divisor as a result, when nothing (more) came. |how| may hold UT_A_IS_INPUT. |dst| may be |a|. Same
 * return. */
size_t ut_finish(unsigned dtype, unsigned redop, unsigned how, void *dst, const void *a, size_t n, uint32_t divisor);
/* dst = src, elements of dtype (UT_BYTES too), the same place or not overlapping; returns how many are NaN or Inf. */
size_t ut_place(unsigned dtype, void *dst, const void *src, size_t n);
/* dst[i] = src[0][i] (op) src[1][i] (op) ...; |k| >= 1 sources of dtype; the halves are added in float32 and rounded
 * once. dst may be a source. */
void ut_combine(unsigned dtype, unsigned redop, void *dst, const void *const *src, unsigned k, size_t n);

/* CRC32C (Castagnoli, RFC 3720 B.4): ut_crc32c(0, "123456789", 9) == 0xe3069283; chain by passing the previous value.
 */
uint32_t ut_crc32c(uint32_t crc, const void *data, size_t len);
/* CRC32C of A and B in a row, from the one of A and the one of B, which has |len| bytes: join(crc(A), crc(B), len) ==
 * crc(AB), and so join(crc(A), crc(AB), len) == crc(B). A few nanoseconds while |len| is that of the call before. */
uint32_t ut_crc32c_join(uint32_t a, uint32_t b, size_t len);

#endif
