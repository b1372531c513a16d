/* SPDX-License-Identifier: Apache-2.0
 *
 * What a collective computes. Every host must say the same of an op; otherwise the op fails as a desync.
 */
#ifndef UT_WHAT_H
#define UT_WHAT_H

#include "core/base/ut.h"

#define UT_TIMED_APART (UINT64_C(1) << 62)

/* What calls of one collective say beyond those of others. All ranks must say it alike. The collective says which
 * member holds; where it has none, `all` is 0. */
typedef union ut_alike {
    uint64_t all;
    uint64_t note; /* BARRIER: any number */
    uint32_t root; /* BROADCAST: the host that the bucket comes from */
    struct {
        uint32_t hint;  /* entries that a rank is expected to give */
        uint16_t group; /* elements that share an index */
        uint8_t form;   /* of values: enum ut_value_form */
        uint8_t down;   /* of answers: 0, as `form` says, or UT_VALUE_INT8 */
    } sparse;           /* ALLREDUCE_SPARSE */
    struct {
        uint8_t zero[6]; /* 0 */
        uint8_t forms;   /* low half: that of contributions; high half: that of answers (kernels/quant.h) */
        uint8_t none;    /* 0 */
    } quant;             /* ALLREDUCE_QUANT */
} ut_alike;
_Static_assert(sizeof(ut_alike) == 8, "it lies in shared memory");

/* Set by the first call of a local rank (op.c). */
typedef struct ut_op_what {
    uint8_t dtype, redop, mode;
    uint8_t collective; /* enum ut_collective; of a variant (core/op/variant.h) that of which it is one */
    uint8_t told;       /* enum ut_collective as it was called, and is told to others */
    uint8_t agree;      /* 1: UT_SUBMIT_AGREE */
    uint8_t by_world;   /* 1: UT_SUBMIT_WORLD */
    uint8_t portion;    /* of a call that is split (core/base/portion.h) */
    uint8_t weighted;   /* 1: UT_SUBMIT_WEIGHTED of another allreduce than a sparse one */
    uint32_t step;      /* coded jobs: the trainers' number of the step that the op is for; else 0 */
    ut_alike alike;
    uint64_t count; /* elements of the bucket */
    uint64_t bytes;
    uint64_t timed; /* what ops of like durations have alike: the bytes, or UT_TIMED_APART and what is expected */
    size_t element, acc_element; /* bytes */
} ut_op_what;

/* `count` as it was called, and is told to others: a barrier has none. */
static inline uint64_t ut_op_told_count(const ut_op_what *what)
{
    return what->told == UT_BARRIER ? 0 : what->count;
}

/* Whether the ranks' contributions are folded, as `redop` says; if not, they are only moved. */
static inline bool ut_op_reduces(unsigned collective)
{
    return collective == UT_ALLREDUCE || collective == UT_REDUCE_SCATTER || collective == UT_ALLREDUCE_SPARSE ||
           collective == UT_ALLREDUCE_QUANT;
}

#endif
