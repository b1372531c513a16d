/* SPDX-License-Identifier: Apache-2.0
 *
 * Where slots lie, and by what they are divided, for slots.c, keep.c, ordered.c and weighted.c alone.
 */
#ifndef UT_SLOTS_IMPL_H
#define UT_SLOTS_IMPL_H

#include "core/fold/fold.h"

enum { UT_SLOT_FOLDS = 0x3f }; /* bits of ut_op_fold.state: contributions folded */

static inline uint32_t slots_of(const ut_op_fold *f, uint32_t chunk)
{
    return f->first[chunk + 1] - f->first[chunk];
}

static inline uint64_t offset_of(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    return f->plan->schedule.from[chunk] + (uint64_t)slot * f->payload;
}

static inline size_t elements_of(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    return UT_MIN2(f->plan->schedule.from[chunk + 1] - offset_of(f, chunk, slot), f->payload) / f->what->element;
}

/* This host's contribution, and its result, of what lies |at| bytes into the bucket. */
static inline const uint8_t *src_at(const ut_op_fold *f, uint64_t at)
{
    return f->memory->src + (at - f->memory->src_from);
}

static inline uint8_t *dst_at(const ut_op_fold *f, uint64_t at)
{
    return f->memory->dst + (at - f->memory->dst_from);
}

/* The accumulator of what lies |at| bytes into the bucket. */
static inline uint8_t *acc_at(const ut_op_fold *f, uint64_t at)
{
    uint64_t into = at - f->memory->held_from;
    return f->memory->acc + (f->what->acc_element == f->what->element ? into : 2 * into);
}

#endif
