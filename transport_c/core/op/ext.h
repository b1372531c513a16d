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

typedef struct ut_extensions {
    const ut_variant *sparse;      /* runs UT_ALLREDUCE_SPARSE */
    const struct ut_intake *coded; /* of jobs with UT_POLICY_CODED */
} ut_extensions;

/* Defined outside of the core. */
extern const ut_extensions ut_extensions_linked;

/* The variant that |collective| (enum ut_collective) is; NULL: none. */
static inline const ut_variant *ut_variant_of(unsigned collective)
{
    return collective == UT_ALLREDUCE_SPARSE ? ut_extensions_linked.sparse : NULL;
}

#endif
