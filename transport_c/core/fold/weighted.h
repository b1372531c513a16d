/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted means. What a host sends is the weighted mean of what its ranks give, as it is, and the sum of their weights
 * (ut_op_fold.share) stands in its record, which an owner has before it takes anything in. An owner multiplies what
 * comes, and divides each slot by the weights in it: so each range of a result is the weighted mean of those that are
 * in it, and a host's own contribution may stand in holes of the result. A sum that weighs nothing is 0.
 */
#ifndef UT_FOLD_WEIGHTED_H
#define UT_FOLD_WEIGHTED_H

#include "core/fold/fold.h"

/* For schedules in which all paths are one hop: where sums are sent on, nobody would know their weight. */
extern const ut_fold_rule ut_fold_weighted;

#endif
