/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds whose hosts are far apart: milliseconds between them, packets lost on the way at random, others late. There
 * parity is sent, and packets are made of it.
 */
#ifndef SIM_FAR_H
#define SIM_FAR_H

#include "sim/sim.h"

#include "core/wire/packets.h"

/* Makes a plan of any kind such a world, if it can be one: draws from a generator of its own. */
void sim_plan_draw_far(sim_plan *plan, uint64_t seed);
/* A life of a host ends with these counters. */
void sim_far_account(sim_world *w, const ut_stats *stats);
/* The hostile host changes a parity packet of its own; |payload|: bytes of a slot. */
void sim_lie_of_parity(sim_world *w, ut_data *h, size_t payload);

#endif
