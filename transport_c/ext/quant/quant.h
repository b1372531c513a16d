/* SPDX-License-Identifier: Apache-2.0
 *
 * How the bucket of a quantised allreduce is cut. Its chunks begin at the elements at which those of a dense op begin.
 * A slot holds as many elements as a packet has room for in the form in which it travels (kernels/quant.h), so offsets
 * on the wire are those of the encoded bucket, in which each chunk has room for its slots.
 *
 * Contributions and answers may travel in two forms. Answers are then the finer ones, for what an owner rounds no rank
 * can mend. A slot of contributions has the elements of `parts` answers, so that each answer holds one set of ranks.
 */
#ifndef UT_QUANT_H
#define UT_QUANT_H

#include "core/plan/plan.h"

#include "kernels/quant.h"

typedef struct ut_quant {
    /* Given by the op. */
    uint8_t form, answer; /* of contributions and of answers, UT_QUANT_... */
    bool nearest;         /* contributions are rounded to the nearest; else at random, as answers always are */
    bool weighted;        /* contributions travel multiplied by `share`, and so their sums are exact, too */
    uint32_t share;       /* the weight of what the ranks of this host give (core/fold/weighted.h) */

    /* By its plan. */
    uint32_t parts;                  /* answers to one full slot of contributions */
    uint32_t each, part;             /* elements in a full slot of contributions, and of answers: parts * part */
    uint64_t from[UT_HOSTS_MAX + 1]; /* elements: chunk c is [from[c], from[c + 1]) */
    const uint8_t *own;              /* what is encoded: what the ranks of this host give, added up, or its mean */
    uint8_t *bucket;                 /* where the result goes, perhaps `own`; NULL: nobody wants it any more */
    float *residual[UT_LOCAL_MAX];   /* those that the ranks of this host brought; the first keeps what is left over */
    uint32_t residuals;

    /* As it goes on. */
    float *sums;              /* of the own chunk */
    uint64_t nonfinite_given; /* elements of the own contribution that are NaN or infinite */
    double given, answered;   /* the errors of slots (ut_quant_told.error), added up; of answers, those that came */
    uint64_t answers;         /* elements in the latter */
} ut_quant;

static inline uint8_t ut_quant_form_of(uint8_t forms)
{
    return forms & 15;
}
static inline uint8_t ut_quant_answer_of(uint8_t forms)
{
    return forms >> 4;
}
/* Both are forms, and answers are not the coarser ones. */
bool ut_quant_forms_valid(uint8_t forms);

static inline uint32_t ut_quant_in_chunk(const ut_quant *q, uint32_t chunk)
{
    return (uint32_t)(q->from[chunk + 1] - q->from[chunk]);
}
/* Elements of |slot| of a chunk of |all|, |each| in a full one; and how many slots that are. */
static inline uint32_t ut_quant_in_slot(uint32_t all, uint32_t each, uint32_t slot)
{
    return UT_MIN2(all - slot * each, each);
}
static inline uint32_t ut_quant_slots(uint32_t all, uint32_t each)
{
    return all / each + (all % each != 0);
}

/* Cuts slots by the op's forms. */
void ut_quant_divide(ut_quant *q, uint32_t payload);
/* |s| was built for elements of a byte each: makes it the schedule of their slots. */
void ut_quant_cut(ut_quant *q, ut_schedule *s, uint32_t payload);
/* Bytes that are set aside for the slots of a bucket of |bytes|. */
uint64_t ut_quant_bound(uint64_t bytes, uint32_t payload, uint32_t hosts);

/* Rounds |n| elements of the own contribution, |at| elements into the bucket, into |slot|, whose draws follow from
 * |key|. Returns its bytes. */
uint32_t ut_quant_give(ut_quant *q, uint64_t at, uint32_t n, uint8_t *slot, uint64_t key);

#endif
