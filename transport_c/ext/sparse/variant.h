/* SPDX-License-Identifier: Apache-2.0
 *
 * The sparse allreduce, as the core sees it (core/op/variant.h): variant.c has the table, op_sparse.c what the ranks of
 * this host bring, sparse.h how the tensor is cut, sparse_codec.c how it travels, blocks.h how it is added up.
 */
#ifndef UT_SPARSE_VARIANT_H
#define UT_SPARSE_VARIANT_H

#include "core/op/op.h"

#include "ext/sparse/sparse.h"

/* The plan of |op|, which is a sparse allreduce. */
static inline ut_sparse *ut_op_sparse(const ut_op *op)
{
    return op->variant_memory;
}

/* For ut_variant. */
extern const ut_variant ut_variant_sparse;
extern const ut_codec ut_codec_sparse;
bool ut_op_sparse_combine(ut_job *j, ut_op *op);
bool ut_op_sparse_return(ut_job *j, ut_op *op); /* see UT_SUBMIT_RETURN */
bool ut_sparse_own(ut_work *turn, ut_waiting *w);

/* Granules of which blocks travel; 0 if none do. */
uint32_t ut_op_sparse_granules(const ut_job *j, const ut_op *op);

#endif
