/* SPDX-License-Identifier: Apache-2.0
 *
 * The rule by which blocks of sparse tensors are folded (kernels/block.h, ext/sparse/sparse.h). They are added to a
 * dense sum; what each says of its range counts for the whole range, so a granule is divided by the ranks whose blocks
 * covered it. When no more comes of a chunk, its sum is encoded anew. What slots of the own chunk hold are then the
 * blocks of that, and its owner keeps for itself exactly what they say. Results go straight into the tensor; where no
 * answer came, this host's own entries are put there in the end.
 */
#ifndef UT_FOLD_BLOCKS_H
#define UT_FOLD_BLOCKS_H

#include "core/fold/fold.h"

extern const ut_fold_rule ut_fold_blocks;

#endif
