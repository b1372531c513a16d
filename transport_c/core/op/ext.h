/* SPDX-License-Identifier: Apache-2.0
 *
 * The extensions that are linked with the core. The core includes no file of theirs: it calls them by tables whose
 * types stand in its own rooms. ../ext/ext.c names the tables; a program that leaves a member NULL refuses the calls
 * and jobs that need it.
 */
#ifndef UT_EXT_H
#define UT_EXT_H

#include "core/op/variant.h"

struct ut_intake; /* core/partial/intake.h */

enum { UT_VARIANT_SPARSE, UT_VARIANT_QUANT, UT_VARIANTS_END };
_Static_assert((int)UT_VARIANTS_END == (int)UT_VARIANTS, "an op has memory of each");

typedef struct ut_extensions {
    const ut_variant *variant[UT_VARIANTS]; /* they run UT_ALLREDUCE_SPARSE and UT_ALLREDUCE_QUANT */
    const struct ut_intake *coded;          /* of jobs with UT_POLICY_CODED */
} ut_extensions;

/* Defined outside of the core. */
extern const ut_extensions ut_extensions_linked;

/* The place in these tables of the variant that |collective| (enum ut_collective) is; UT_VARIANTS: it is none. */
static inline unsigned ut_variant_place(unsigned collective)
{
    return collective == UT_ALLREDUCE_SPARSE  ? UT_VARIANT_SPARSE
           : collective == UT_ALLREDUCE_QUANT ? UT_VARIANT_QUANT
                                              : UT_VARIANTS;
}

/* The variant itself; NULL: none. */
static inline const ut_variant *ut_variant_of(unsigned collective)
{
    unsigned place = ut_variant_place(collective);
    return place < UT_VARIANTS ? ut_extensions_linked.variant[place] : NULL;
}

#endif
