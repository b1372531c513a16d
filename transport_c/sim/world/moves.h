/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives besides allreduce: how their buffers lie, and what they must hold (moves.c).
 */
#ifndef SIM_MOVES_H
#define SIM_MOVES_H

#include "sim/sim.h"

typedef struct sim_layout {
    uint64_t src_from, src_bytes, dst_from, dst_bytes; /* in the op's bucket */
    bool in_place, apart;                              /* must be; must not be */
} sim_layout;
sim_layout sim_layout_of(const sim_job *job, uint32_t self, const sim_op *op);
/* Each host's result is another one. */
bool sim_results_differ(const sim_op *op);
/* A COMPLETE receipt of such a collective. */
void sim_check_moved(sim_world *w, const sim_rank *rank, const sim_ask *ask, const ut_receipt *r,
                     const uint8_t *result);

#endif
