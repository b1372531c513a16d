/* SPDX-License-Identifier: Apache-2.0
 *
 * Which ranks of each host are in an op of an ordinary job.
 */
#ifndef UT_RANKS_H
#define UT_RANKS_H

#include "core/op/op.h"

/* Says in the record which ranks of this host are in the op, and which have a trainer. */
void ut_op_ranks_tell(const ut_job *j, const ut_op *op, ut_record *r);
/* Fills in `fresh`, `gone` and `late` of the rows, as far as that is known. */
void ut_op_ranks_account(const ut_job *j, const ut_op *op, ut_receipt *ret);
/* Makes the first host of which ranks are gone, or else late, the culprit. */
void ut_op_ranks_blame(ut_receipt *ret);

#endif
