/* SPDX-License-Identifier: Apache-2.0
 *
 * What a collective computes. Every host must say the same of an op; otherwise the op fails as a desync.
 */
#ifndef UT_WHAT_H
#define UT_WHAT_H

#include "core/base/ut.h"

#define UT_TIMED_APART (UINT64_C(1) << 62)

/* Set by the first call of a local rank (op.c). */
typedef struct ut_op_what {
    uint8_t dtype, redop, mode;
    uint8_t collective; /* enum ut_collective; of a variant (core/op/variant.h) that of which it is one */
    uint8_t told;       /* enum ut_collective as it was called, and is told to others */
    uint8_t root;       /* of a broadcast */
    uint8_t agree;      /* 1: UT_SUBMIT_AGREE */
    uint8_t by_world;   /* 1: UT_SUBMIT_WORLD */
    uint8_t portion;    /* of a call that is split (core/base/portion.h) */
    uint8_t form;       /* sparse: enum ut_value_form */
    uint16_t group;     /* sparse: elements that share an index; 0 in all other ops */
    uint32_t hint;      /* sparse: entries that a rank is expected to give */
    uint32_t step;      /* coded jobs: the trainers' number of the step that the op is for; else 0 */
    uint64_t count;     /* elements of the bucket */
    uint64_t bytes;
    uint64_t timed; /* what ops of like durations have alike: the bytes, or UT_TIMED_APART and what is expected */
    size_t element, acc_element; /* bytes */
} ut_op_what;

/* Whether the ranks' contributions are folded, as `redop` says; if not, they are only moved. */
static inline bool ut_op_reduces(unsigned collective)
{
    return collective == UT_ALLREDUCE || collective == UT_REDUCE_SCATTER || collective == UT_ALLREDUCE_SPARSE;
}

#endif
