/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear codes: how n children share the data of one parent, so that any n - s of them are enough (docs/papers.md,
 * section 4.1). With g_k the sum over part k of the data, child i sends the sum over k of B[i, k] g_k. From those that
 * came the parent finds coefficients a with a B = (1, ..., 1), and the sum of a_i times what i sent is that over all
 * parts.
 *
 * ultima.coded says the same for trainers, who send by it; a test compares the two. All arithmetic is in double, by the
 * basic operations alone, so that all hosts have the same numbers.
 */
#ifndef UT_CODE_H
#define UT_CODE_H

#include "core/base/ut.h"

enum { UT_CODE_CACHED = 64 /* sets of children whose coefficients are remembered */ };
/* The worst that is allowed: the largest sum over i of |a_i| |B[i, k]|, by which the rounding of what is sent grows. */
#define UT_CODE_AMPLIFICATION_MAX 1000.0

typedef struct ut_linear {
    uint32_t children, late;
    double *encoding;    /* B, row after row */
    uint64_t *came;      /* UT_CODE_CACHED sets of children; 0: none yet */
    double *coefficient; /* for each of them `children` numbers; of one that does not decode the first is NaN */
} ut_linear;

/* B for |children| of which |late| < |children| may be late; |ret| has room for its children * children numbers. */
void ut_code_encoding(uint32_t children, uint32_t late, double *ret);
/* False if the amplification of such a code is known to be too large: with some run of neighbours late. */
bool ut_code_bears(uint32_t children, uint32_t late);
/* The three arrays are the caller's, and last as long as the code does. */
void ut_code_init(ut_linear *c, uint32_t children, uint32_t late, double *encoding, uint64_t *came,
                  double *coefficient);
/* The coefficient of each child, 0 for those not in |came|, of which there are children - late. NULL if these do not
 * decode within the amplification allowed. It holds until the next call. */
const double *ut_code_decoding(ut_linear *c, uint64_t came);

#endif
