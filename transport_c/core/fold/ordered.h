/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums in the order of hosts. Addition of floats does not associate: a sum in the order in which contributions come has
 * other last bits from run to run. Here an owner keeps what comes, and folds a slot once: when all have come or will
 * not, from host 0 on, its own contribution in its place. So the same contributions make the same bits, whatever came
 * first, and whichever host owns the slot.
 *
 * The price is memory for what is kept, about a bucket an op (ut_ordered_bytes), and one more pass over it. Sums of two
 * hosts need no rule, for a + b is b + a; nor do rings, in which each host adds what its left one sends, once.
 */
#ifndef UT_FOLD_ORDERED_H
#define UT_FOLD_ORDERED_H

#include "core/base/options.h"
#include "core/fold/fold.h"

typedef struct ut_ordered {
    /* Given once. */
    uint8_t *kept; /* the contributions of other hosts to the own chunk, one behind the other; NULL: nothing is kept */
    uint64_t room; /* bytes of it */

    /* From ut_fold_open on. */
    uint64_t stride;             /* bytes in `kept` from one host's contribution to the next */
    uint32_t step[UT_HOSTS_MAX]; /* by host: the step that brings its contribution; UINT32_MAX: none does */
    uint32_t at[UT_HOSTS_MAX];   /* by host: its place in `kept` */
} ut_ordered;

/* Bytes of `kept` for one op of a job of |config|; 0 where its sums need no rule. */
uint64_t ut_ordered_bytes(const ut_job_config *config);
/* Whether the rule is for |s|, and what |s| brings to the own chunk has room in |o|. It has, unless several hosts have
 * come back of late that do not own a shard yet: then less than all hosts sum what all bring. */
bool ut_ordered_fits(const ut_ordered *o, const ut_schedule *s);

/* The rule of such sums; its memory is a ut_ordered. For schedules in which all paths are one hop: where sums are sent
 * on, a sum of sums comes. */
extern const ut_fold_rule ut_fold_ordered;

#endif
