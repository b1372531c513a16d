/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the menu that plan_later.c draws.
 */
#ifndef SIM_PLAN_LATER_H
#define SIM_PLAN_LATER_H

#include "sim/sim.h"

void sim_plan_draw_hadamard(sim_plan *plan, uint64_t seed);
void sim_plan_draw_later(sim_plan *plan, uint64_t seed, sim_rng *rng);
/* Gives |j|, of at most SIM_OPS_FEW ops, a calm of |ops|. */
void sim_plan_lengthen_calm(sim_job_plan *j, uint32_t ops);

#endif
