/* SPDX-License-Identifier: Apache-2.0
 *
 * What is asked of every world: oracles that judge receipts (check.c, stages.c, agree.c), what hosts hear (hearing.c)
 * and the books (books.c), and what they hold them against (shards.c, idle.c).
 */
#ifndef SIM_ORACLES_H
#define SIM_ORACLES_H

#include "sim/sim.h"

/* check.c */
void sim_check_receipt(sim_world *w, sim_rank *r, const sim_ask *ask, const ut_receipt *receipt, const void *result);
void sim_check_calm(sim_world *w, const sim_rank *r, const sim_ask *ask, const ut_receipt *receipt);

/* stages.c; |late|: the host went on without this rank */
void sim_check_stages(sim_world *w, const sim_rank *rank, const sim_ask *ask, const ut_receipt *r, bool late);

/* shards.c */
uint32_t sim_least_factor(uint32_t n);                          /* a prime */
uint64_t sim_slot_elements(const sim_world *w, size_t element); /* of all slots of a shard but its last */
/* Every path of the job's schedule is one hop: an element is its owner's, or the host's own. */
bool sim_direct(const sim_job_plan *j);
/* The elements whose result |host| (index in the job) makes; TAR's cut among |owners| for all but the parameter server.
 */
void sim_owned(const sim_job_plan *j, uint64_t op_seq, uint64_t owners, uint64_t count, uint32_t host, uint64_t *from,
               uint64_t *to);
/* The same of an op, sparse or not: a sparse one is cut between granules. */
void sim_op_owned(const sim_job_plan *j, uint64_t op_seq, uint64_t owners, const sim_op *op, uint32_t host,
                  uint64_t *from, uint64_t *to);
/* agree.c: hosts compared with each other, when all have their receipts */
void sim_check_agreement(sim_world *w);

/* idle.c */
void sim_idle_look(sim_world *w, sim_host *h);
void sim_idle_note(sim_host *h, bool blocked);

/* hearing.c: oracle O9 */
void sim_incast_note(sim_world *w, const sim_packet *packet);
void sim_incast_check(sim_world *w);
/* What hosts with whole links hear of each other beside one with a slow one. */
void sim_healthy_note(sim_world *w, const sim_packet *packet);

/* books.c */
void sim_account_host(sim_world *w, sim_host *h); /* before an engine goes away */
void sim_account_world(sim_world *w);

#endif
