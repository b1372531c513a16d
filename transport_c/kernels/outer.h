/* SPDX-License-Identifier: Apache-2.0
 *
 * What a round of local SGD does to long vectors (client/local), in one pass each, because memory is what they wait
 * for. The data of a round lies in rows: |range| elements, and from the beginning of one row to that of the next |row|
 * elements, as each rank's marks lie between them (client/local/vector.py).
 *
 * Each operation is rounded by itself, in float32, so all CPUs get the same bits. No function allocates.
 */
#ifndef UT_KERNELS_OUTER_H
#define UT_KERNELS_OUTER_H

#include "core/base/ut.h"

typedef struct ut_outer_rows {
    float *data; /* the first element of the first row */
    size_t range, row;
    size_t n; /* elements in all rows; the last one may be shorter */
} ut_outer_rows;

/* How much may be given: |most| of any element; of the |near| first ones of row k bounds[k], and of the |near| last
 * ones of a whole row bounds[k + 1]. */
typedef struct ut_outer_bounds {
    const float *bounds;
    size_t near;
    float most;
} ut_outer_bounds;

/* Puts weight * (theta - sent) into the rows, of which no element is larger than |b| allows, if |b| is not NULL. Where
 * one would be, |sent| becomes what was given for: theta minus the bounded difference. */
void ut_outer_give(const ut_outer_rows *r, const float *theta, float *sent, float weight, const ut_outer_bounds *b);

typedef struct ut_outer_rule {
    float divisor, lr, momentum;
    size_t plain_from; /* elements from here on are averaged, without lr and momentum */
} ut_outer_rule;

/* One outer step (client/local/rules.py) by the sums in the rows. */
void ut_outer_step(const ut_outer_rows *r, float *theta, float *momentum, const ut_outer_rule *rule);

/* Elements |from| on of a rank's own parameters, |n| of them, follow theta, which was |before|: all four begin there.
 * In the k-th |range| of the whole, if mine[k] is set, what they did since |sent|, times |keep|, is added to theta;
 * else they move as theta did. |sent| may be NULL: then no mine[k] counts. */
void ut_outer_follow(float *local, const float *sent, const float *before, const float *theta, size_t n, size_t range,
                     size_t from, const bool *mine, float keep);

/* squares[k] = the sum of the squares of the k-th |range| of |n| elements, in float64. */
void ut_outer_squares(const float *x, size_t n, size_t range, double *squares);

/* The index of the first element that is NaN or infinite, n if there is none. */
size_t ut_outer_nonfinite(const float *x, size_t n);

#endif
