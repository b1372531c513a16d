/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic on payload. To *fold* is to add a contribution to a sum (or to combine it by min, max or prod), to
 * *finish* is to make a result of a sum, to *place* is to store without adding. The code is chosen at run time for the
 * CPU (AVX-512 or AVX2 on x86-64, NEON on 64-bit ARM, else plain C), so that one wheel serves all CPUs of a kind.
 * Pointers need no alignment. The only state is that choice, which ut_kernels_init makes once.
 *
 * Sums are kept in an *accumulator*: float32 for float16 and bfloat16 (the *halves*), and the dtype itself for all
 * other dtypes.
 */
#ifndef UT_KERNELS_H
#define UT_KERNELS_H

#include "core/base/ut.h"

/* What one kind of CPU has rises by its numbers. Plain C is everywhere. */
enum ut_isa { UT_ISA_PLAIN = 0, UT_ISA_AVX2 = 1, UT_ISA_AVX512 = 2, UT_ISA_NEON = 3, UT_ISA_BEST = UT_ISA_NEON };

/* Picks the best instruction set that the CPU has, but none above |most| (tests ask for a lower one). Returns it. */
enum ut_isa ut_kernels_init(enum ut_isa most);
enum ut_isa ut_kernels_isa(void);

enum ut_fold_how {
    UT_A_IS_INPUT = 1,   /* |a| holds elements of dtype (this host's contribution), not of the accumulator */
    UT_OUT_IS_RESULT = 2 /* |in| is the last contribution: divide by |divisor|, write dtype, count NaN and Inf */
};
/* out[i] = a[i] (op) in[i] for |n| elements. |in| is always of dtype. |out| may be |a|, unless its elements are wider
 * than those of |a| (a half that becomes an accumulator). SUM and AVG add; integer sums wrap (two's complement). MIN
 * and MAX let a NaN through. With UT_OUT_IS_RESULT and AVG the result is the correctly rounded quotient by |divisor|
 * (integers: rounded toward zero), for a |divisor| from 1 to 2^24; in all other cases the divisor is ignored. Halves
 * are rounded once, at the end. Returns the number of NaN or Inf elements written as a result, and 0 if no result is
 * written. All instruction sets give the same bits, except that a NaN may be another NaN. */
size_t ut_fold(unsigned dtype, unsigned redop, unsigned how, void *out, const void *a, const void *in, size_t n,
               uint32_t divisor);
/* dst[i] = a[i] / divisor as a result, for a sum to which nothing more comes. |how| may hold UT_A_IS_INPUT. |dst| may
 * be |a|. Returns the number of NaN or Inf elements. */
size_t ut_finish(unsigned dtype, unsigned redop, unsigned how, void *dst, const void *a, size_t n, uint32_t divisor);
/* dst = src, |n| elements of dtype (which may be UT_BYTES). The two are the same memory or do not overlap. Returns the
 * number of NaN or Inf elements. */
size_t ut_place(unsigned dtype, void *dst, const void *src, size_t n);
/* dst[i] = src[0][i] (op) src[1][i] (op) ... of |k| >= 1 sources of dtype. The halves are added in float32 and rounded
 * once. With AVG and a |divisor| that is not 0 what is rounded is the quotient by it. |dst| may be one of the sources.
 * Returns the number of NaN or Inf elements. */
size_t ut_combine(unsigned dtype, unsigned redop, void *dst, const void *const *src, unsigned k, size_t n,
                  uint32_t divisor);

/* dst[i] = (weight[0] * src[0][i] + weight[1] * src[1][i] + ...) / divisor of |k| sources of a dtype of floats, added
 * in double in this order and rounded once. |dst| may be one of them. */
void ut_weigh(unsigned dtype, void *dst, const void *const *src, const double *weight, unsigned k, size_t n,
              double divisor);
/* The same as contributions come: acc[i] += weight * in[i], of the |first| one acc[i] = weight * in[i], in double and
 * then rounded to the accumulator. What has no weight is not read. |in| may be |acc| where the two are of one type. */
void ut_weigh_in(unsigned dtype, void *acc, const void *in, double weight, bool first, size_t n);
/* Its result: dst[i] = acc[i] / sum, which is not 0. |dst| may be |acc|. Returns the number of NaN or Inf elements. */
size_t ut_weigh_out(unsigned dtype, void *dst, const void *acc, double sum, size_t n);

/* CRC32C (Castagnoli, RFC 3720 B.4): ut_crc32c(0, "123456789", 9) == 0xe3069283. To go on with more data, pass the
 * previous value as |crc|. */
uint32_t ut_crc32c(uint32_t crc, const void *data, size_t len);
/* The CRC32C of a header of 32 bytes, the four words of |header| as they lie in memory, and of |len| bytes behind it
 * whose own is |crc|. A call takes a few nanoseconds while |len| is the same as in the call before. */
uint32_t ut_crc32c_headed(const uint64_t header[4], uint32_t crc, size_t len);
/* Copies |len| bytes, and returns their CRC32C. |dst| and |src| do not overlap. */
uint32_t ut_crc32c_copy(void *dst, const void *src, size_t len);

#endif
