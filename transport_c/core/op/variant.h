/* SPDX-License-Identifier: Apache-2.0
 *
 * Variants of the allreduce: collectives that are allreduces to all others, but whose ranks bring something else than a
 * bucket, so that something else travels. All that differs is in this table. The core names no variant: ../ext/ has
 * them, and ext.h says which there are. An op keeps its variant in ut_op.variant, which is NULL in all other ops.
 */
#ifndef UT_VARIANT_H
#define UT_VARIANT_H

#include "core/base/calls.h"
#include "core/base/carve.h"
#include "core/op/parts.h"

struct ut_job;

typedef struct ut_variant {
    /* The codec in which its contributions travel, if it fits; else they travel plainly. */
    const ut_codec *codec;

    /* ---- a job is laid out ---- */
    /* Carves the memory of one op (ut_op.of_variant), or only counts it. NULL, and nothing is carved, where no op
     * of such a job can be of this variant. */
    void *(*lay_out)(ut_carver *c, const ut_job_config *config);
    /* Returns how many bytes the encoded contributions of an op take at most; 0 where there can be no such op. */
    uint64_t (*encoded)(const ut_job_config *config, uint32_t payload);

    /* ---- a rank calls ---- */
    /* What a submission may get wrong beyond the common (core/face/submit.c): an error, or UT_OK. The rank's arena has
     * |arena| bytes. */
    int (*check)(const struct ut_job *j, uint64_t arena, const ut_submission *s);
    /* Makes the result of a call what its rank alone would get; NULL: as in a plain allreduce. False if the turn does
     * not allow all of it: the function is then called again, and goes on where it stopped. */
    bool (*own)(ut_work *turn, ut_waiting *w);

    /* ---- an op opens ---- */
    /* |s| is the first call of the op here: sets what `what` has for this variant alone, and `what.timed`. */
    void (*gather)(ut_op *op, const ut_submission *s);
    /* Looks at what ranks of this host bring, and adds it up if they are several; NULL: as in a plain allreduce. False
     * as above. */
    bool (*combine)(struct ut_job *j, ut_op *op);
    /* Makes the schedule of what travels. False: the schedule is that of the plain bucket. */
    bool (*plan)(struct ut_job *j, ut_op *op);
    /* On a host that is alone its codec makes the bucket the result: nothing divides it again. */
    bool result_alone;
    /* Returns where the bucket of the result lies. */
    uint8_t *(*bucket)(const ut_op *op);

    /* ---- it runs, and ends ---- */
    /* A rank has gone; the op goes on for others. */
    void (*gone)(ut_op *op);
    /* Gives back to its ranks what the result lacks of their contributions; NULL: nothing. False as above. */
    bool (*give_back)(struct ut_job *j, ut_op *op);
    /* Adds to the op's receipt what no other part of the op knows. */
    void (*account)(const ut_op *op, ut_receipt *r);
} ut_variant;

#endif
