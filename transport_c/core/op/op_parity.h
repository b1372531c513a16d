/* SPDX-License-Identifier: Apache-2.0
 *
 * Parity of an op's packets (core/path/parity.h): which groups have some, and what comes of it.
 */
#ifndef UT_OP_PARITY_H
#define UT_OP_PARITY_H

#include "core/op/op.h"

/* Fresh slots of step |i|, |p|, go from |slot| on. |coverage|: as in their headers. */
void ut_op_parity_sends(ut_job *j, ut_op *op, uint32_t i, const ut_payloads *p, uint32_t slot, unsigned coverage);
/* A burst of parity packets that are due. |j->parity_due| is false once none is. */
bool ut_op_parity_output(ut_job *j, ut_ns now, ut_burst *b);
/* A parity packet from |host| came. */
enum ut_taken ut_op_parity(ut_job *j, uint32_t host, const ut_data *h, ut_ns now);

#endif
