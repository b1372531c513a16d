/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds in which a host's addresses change while it works, as behind a NAT that forgets; and worlds with a thief, who
 * sees what a host sends, has it there earlier from a place of his own, and keeps what is sent to that place.
 */
#ifndef SIM_MOVING_H
#define SIM_MOVING_H

#include "sim/sim.h"

/* Makes an ordinary plan such a world, if it can be one: draws from a generator of its own. */
void sim_plan_draw_moving(sim_plan *plan, uint64_t seed);
void sim_moving_start(sim_world *w);
void sim_moving_event(sim_world *w, const sim_event *e);
/* The thief's copy of a packet that is sent; NULL: he makes none. */
sim_packet *sim_thief_sees(sim_world *w, const sim_packet *packet);
/* A packet has arrived; false if nobody is at the place that it is for. The thief hands on what may be a challenge. */
bool sim_moving_arrives(sim_world *w, sim_packet *packet);
/* O19 path: |h| says that it follows |host| of the job to |place|. */
void sim_moving_followed(sim_world *w, const sim_host *h, const ut_event *event);

#endif
