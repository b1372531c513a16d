/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs whose hosts come and go. An index of the job is a seat: a host has it while it is in, and another one may have
 * it afterwards, which is another life of the same simulated host here. An epoch's world are its members.
 *
 * So that a result tells which of the hosts of one seat is in it, a rank's values are those of its *sign*: its index
 * for the first host of its seat, and another rank's that there is not for the next. Hosts of a seat take turns with
 * its signs: of two that follow each other they differ.
 */
#ifndef SIM_SEATS_H
#define SIM_SEATS_H

#include "sim/sim.h"

enum { SIM_SEAT_SIGNS = 2, SIM_SEATS = SIM_RANKS / SIM_SEAT_SIGNS };

/* Makes a job one with seats; it has one rank on each host. */
void sim_seats_make(sim_job *job);
/* The sign of the rank that seat |self| has in this life of its host; in other jobs that of the host's first rank. */
uint32_t sim_seats_sign(const sim_world *w, uint32_t job, uint32_t self, uint32_t life);
/* The seats of |signs|, as ranks; in other jobs |signs|. */
uint64_t sim_seats_of(const sim_job *job, uint64_t signs);

/* An epoch was decided: notes who is in it. */
void sim_seats_decided(sim_world *w, uint32_t job);
/* A seat of the newest epoch has another host by now. */
bool sim_seats_differ(const sim_world *w, uint32_t job);
/* Item |index| of the plan is due, a host that leaves: true if the others are only asked now to go on without it. */
bool sim_seats_leave(sim_world *w, uint32_t index);
/* Who was about to leave stays. */
void sim_seats_stay(sim_world *w);

#endif
