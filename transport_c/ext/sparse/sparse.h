/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a sparse allreduce. Its tensor is cut among the owners by granules (kernels/block.h). What travels of a
 * chunk are blocks, one in each slot, as many as its entries need; the steps of the schedule say where there would be
 * room for the most of them. How many there are is known to the sender, and to a receiver when the last one has come.
 */
#ifndef UT_SPARSE_PLAN_H
#define UT_SPARSE_PLAN_H

#include "core/plan/schedule.h"
#include "core/plan/transfer.h"

#include "kernels/block.h"

typedef struct ut_sparse {
    uint16_t group;
    uint8_t form, down; /* of contributions; of answers, 0: as `form` says */
    uint64_t seq;       /* the op's number, and this host's: draws of int8 answers follow from them */
    uint8_t self;
    uint32_t units;                  /* of the tensor */
    float scale;                     /* of this host's contribution */
    uint32_t from[UT_HOSTS_MAX + 1]; /* granules: chunk c is [from[c], from[c + 1]) */
    uint32_t blocks[UT_HOSTS_MAX];   /* per chunk: blocks that this host's contribution takes */
    uint32_t tail[UT_HOSTS_MAX];     /* per chunk: bytes of the last of them */
    uint64_t values;                 /* of all that this host's ranks give */
    uint64_t measured;               /* of the call that is looked at: values that were, */
    float most, together;            /* and their largest magnitude; those of the calls before it, added up */
    uint32_t begins[UT_HOSTS_MAX];   /* per chunk, if `listed`: the first of its entries */
    bool listed;                     /* the contribution is `given`; else it lies scattered in `dense` */
    ut_entries given;                /* the one rank's entries, where its trainer has them */
    uint8_t *dense;                  /* the tensor: results, and of several ranks what they give. NULL: nobody waits */
    uint8_t *sums;                   /* the own chunk; in `dense`, but not where that is a trainer's */
    uint64_t *granules;              /* memory for the bitmaps of granules that came; given at job_add */
    uint64_t *without;               /* a bit for each granule of the tensor whose result came and lacks this host */
    bool lacks;                      /* one is set */
    double answered;                 /* what rounding did to int8 answers that came, and the own one (ut_block_error) */
    uint32_t finished, told, made;   /* of the own chunk: granules that are results, and that are in blocks; blocks */
    ut_block block;                  /* the packet that is being taken in */
} ut_sparse;

/* The form in which results travel: as int8 if |down| says so; sums of float8 as float16. */
static inline uint8_t ut_sparse_answer(uint8_t form, uint8_t down)
{
    return down ? down : form == UT_VALUE_FLOAT8 ? UT_VALUE_FLOAT16 : form;
}

/* Chunk |c| as blocks of stage 1 or 2 see it, its first unit, and where its elements lie. */
ut_block_shape ut_sparse_shape(const ut_sparse *p, uint32_t c, unsigned stage);
static inline uint32_t ut_sparse_base(const ut_sparse *p, uint32_t c)
{
    return (uint32_t)UT_MIN2((uint64_t)p->from[c] * ut_granule_units(p->group), p->units);
}
static inline float *ut_sparse_chunk(const ut_sparse *p, uint32_t c)
{
    return (float *)(void *)p->dense + (size_t)ut_sparse_base(p, c) * p->group;
}
/* And where this host adds up its own chunk. */
static inline float *ut_sparse_sums(const ut_sparse *p)
{
    return (float *)(void *)p->sums;
}
/* Bytes of the chunk's elements in granules [|first|, |end|). */
uint64_t ut_sparse_bytes(const ut_sparse *p, uint32_t c, uint32_t first, uint32_t end);

/* Granules of a tensor of |units|; 0 if its blocks have no place in |payload| bytes, or in |room| bytes for all of
 * |hosts|. */
uint32_t ut_sparse_granules(uint32_t units, uint32_t group, uint8_t form, uint8_t down, uint32_t payload,
                            uint32_t hosts, uint64_t room);
/* Bytes that are set aside for the blocks of a bucket of |bytes|; groups of more than half a packet may need more. */
uint64_t ut_sparse_bound(uint64_t bytes, uint32_t payload, uint32_t hosts);
/* Words of the bitmaps of granules that come of such a bucket. */
size_t ut_sparse_words(uint64_t bytes, uint32_t hosts);

/* |s| was built for granules of a byte each: makes it the schedule of their blocks. */
void ut_sparse_cut(ut_sparse *p, ut_schedule *s, uint32_t payload);
/* The transfers were initialized: they begin to count blocks, and receives granules. */
void ut_sparse_transfers(ut_sparse *p, const ut_schedule *s, ut_transfer *t);

/* Whether a bit of [|first|, |end|) is set; sets them. */
bool ut_sparse_any(const uint64_t *bits, uint32_t first, uint32_t end);
void ut_sparse_set(uint64_t *bits, uint32_t first, uint32_t end);
/* How many bits from |first| on, below |end|, are as that one is. */
uint32_t ut_sparse_run(const uint64_t *bits, uint32_t first, uint32_t end);

#endif
