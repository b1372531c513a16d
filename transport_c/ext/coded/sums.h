/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded sums by groups (fractional repetition): the hosts of a group compute the same part of the data, so a slot takes
 * one contribution of each group, whoever's comes first, and has enough when all groups are in it. What comes again
 * from another host of the group is redundant. The own contribution may come while the op runs (ut_fold_join).
 *
 * With a linear code each host is a group by itself, and any n - s of them are enough. What came is kept, host by host,
 * until there is enough of a slot; then it is added with the coefficients that the set of hosts asks for.
 *
 * In a star each owner of a shard adds up what all hosts gave. In a tree a host adds up what those below it sent, which
 * are its children; to that it adds its own contribution, and sends a slot on when both are there. The root, host 0,
 * has none: what its rank gives is left out.
 */
#ifndef UT_FOLD_CODED_H
#define UT_FOLD_CODED_H

#include "core/fold/fold.h"
#include "ext/coded/code.h"

typedef struct ut_coded_sums {
    /* Given once. */
    uint32_t children; /* of a host in a tree, at most 63; 0: a star */
    uint32_t replicas; /* hosts of a group */
    uint32_t self;
    uint64_t all;    /* bit per group */
    uint32_t need;   /* groups that are enough */
    uint64_t *parts; /* per slot of the chunk that is summed here: the groups that were folded into it */
    ut_linear *code; /* NULL: none, groups are repeated */
    uint8_t *kept;   /* of a linear code: the contributions of each child to that chunk */
    uint64_t stride; /* bytes in `kept` from one child's to the next */

    /* From ut_fold_open on. */
    uint64_t used;      /* hosts of which something was folded */
    uint64_t redundant; /* bytes that came though what they hold was there, of slots that had not enough yet */
    uint64_t lacking;   /* groups that are missing from some slot that was finished */
} ut_coded_sums;

/* The place of |host| among those that share the data of one parent. Not of the root of a tree. */
static inline uint32_t ut_coded_place(const ut_coded_sums *c, uint32_t host)
{
    return c->children ? (host - 1) % c->children : host;
}

/* The rule of such sums; its memory is a ut_coded_sums. It finishes slots that lack groups only after
 * ut_op_fold.forced; what is there then stands for all. */
extern const ut_fold_rule ut_fold_coded;
/* Of |never|, groups of which nothing more comes: those without which some slot of the own chunk cannot have enough.
 * For owners. */
uint64_t ut_coded_lacking(const ut_op_fold *f, uint64_t never);

#endif
