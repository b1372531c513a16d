/* SPDX-License-Identifier: Apache-2.0
 *
 * What an op takes from the epoch under which it opens: op_epoch.c.
 */
#ifndef UT_OP_EPOCH_H
#define UT_OP_EPOCH_H

#include "core/op/op.h"

void ut_job_epochs_init(ut_job *j);
/* For ut_engine_job_wishes. */
void ut_job_wishes(const ut_job *j, uint64_t *ret_next_op, uint16_t ret_option[UT_EPOCH_OPTIONS]);
/* The op opens: it takes the epoch that holds, which it keeps. */
void ut_op_epoch_take(ut_job *j, ut_op *op);
/* Names the op's epoch on the wire, once its codec is known. */
void ut_op_epoch_tag(ut_op *op);
/* Whoever sent this record of the op has opened it under the epoch under which it is open here. */
static inline bool ut_op_epoch_is(const ut_op *op, const ut_record *theirs)
{
    return theirs->epoch == op->epoch.id && theirs->view == op->plan.view_tag;
}

#endif
