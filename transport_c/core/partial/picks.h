/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UT_PICKS_H
#define UT_PICKS_H

#include <stdint.h>

/* The |n| different ranks, of |world|, that are drawn for op |op_seq|; n <= world. docs/papers.md, section 2.3, has
 * the draw. */
void ut_picks(uint64_t seed, uint64_t op_seq, uint32_t world, uint32_t n, uint32_t *ret);

#endif
