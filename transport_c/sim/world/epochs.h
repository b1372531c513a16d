/* SPDX-License-Identifier: Apache-2.0
 *
 * The epochs that daemons hand to the core. How daemons agree is not simulated: a world draws what reaches whom and
 * when. As a rule that is what is true, told to all and held until then; while faults last it is late on some hosts,
 * different on others, not told to one, false, or followed by the next at once. The core must be right under all of it:
 * bytes may be missing, and none are wrong.
 */
#ifndef SIM_EPOCHS_H
#define SIM_EPOCHS_H

#include "sim/sim.h"

/* The world begins. */
void sim_epochs_begin(sim_world *w);
/* A daemon has begun to serve the job: |first| is the next op. */
void sim_epochs_open(sim_world *w, sim_host *h, uint32_t job, uint64_t first);
/* Number of the epoch under which host |self| of the job does op |op_seq|, by what it was handed; UINT64_MAX: it is so
 * long ago that nobody knows. */
uint64_t sim_epoch_number_at(const sim_world *w, uint32_t job, uint32_t self, uint64_t op_seq);
/* The options by which host |self| of the job does op |op_seq|, by what it was handed. */
const ut_job_options *sim_options_at(const sim_world *w, uint32_t job, uint32_t self, uint64_t op_seq);
/* The faults have stopped: whoever was not told is told now. */
void sim_epochs_calm(sim_world *w);
void sim_epochs_event(sim_world *w, const sim_event *event); /* SIM_EV_EPOCH */

/* Oracle O17, of a receipt of host |self| of the job about an op that does without hosts: it was cut among the owners
 * of an epoch that this host was handed. Once all hosts that live hold one epoch in which each of them is, ops from
 * then on are cut among its owners, and lack nothing of hosts that are not in it. Returns whether all hosts hold one,
 * and the op was opened under it. */
bool sim_epochs_check(sim_world *w, uint32_t job, uint32_t self, const ut_receipt *r);

#endif
