/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ops of partial jobs need beyond those of other jobs: what ranks have given and wait for (gift.c, answer.c),
 * who starts the next op and whom it tells (activate.c), and an op to which not all contribute (op_partial.c).
 */
#ifndef UT_PART_H
#define UT_PART_H

#include "core/op/op.h"

/* op_partial.c */
/* Ranks that are to be in it, by the word of all hosts that were heard; |ret_hosts|: of which hosts. */
uint32_t ut_op_announced(const ut_job *j, const ut_op *op, uint64_t *ret_hosts);
/* Ranks in a slot from which nobody is missing. */
uint32_t ut_op_whole(const ut_job *j, const ut_op *op);
/* Who sent a shard from which somebody is missing. */
void ut_op_find_short(const ut_job *j, ut_op *op);
/* The rank at |place| of this host has gone before what it gave was read: the op opens once more, without it. */
void ut_op_part_leaves(ut_job *j, ut_op *op, uint32_t place);
/* |host| says what it brings. */
void ut_op_part(ut_job *j, ut_op *op, uint32_t host, const ut_record *r, ut_ns now);
/* Where what was taken from the slots lies, and where the result goes. */
void ut_op_place_slots(ut_job *j, ut_op *op);
/* The op has started: all peers are told, the activation tree's first. */
void ut_op_announce(ut_job *j, const ut_op *op, ut_ns now);
/* A record's and a receipt's share of all this. */
void ut_op_tell_part(const ut_job *j, const ut_op *op, ut_record *r);
void ut_op_receipt_parts(const ut_job *j, const ut_op *op, ut_receipt *r);

/* gift.c */
void ut_slots_init(ut_job *j);
/* Places that have a trainer; those whose trainer has not left; whose has given something for op |seq|. */
uint16_t ut_slots_attached(const ut_job *j);
uint16_t ut_slots_present(const ut_job *j);
uint16_t ut_slots_ready(const ut_job *j, uint64_t seq);
/* Some rank has given nothing, and was not in |tau| ops in a row. */
bool ut_slots_overdue(const ut_job *j, uint32_t tau);
/* When the first of what lies in the slots came; |at| if that was before. */
ut_ns ut_slots_since(const ut_job *j, ut_ns at);
/* Peers must hear of the slots before the op starts. */
bool ut_slots_announce(const ut_job *j);
/* The op that what lies in the slots asks for; and what of it must be as in |shape|, which a peer asks for. */
ut_submission ut_slots_shape(const ut_job *j, ut_ns now);
void ut_slots_reshape(const ut_job *j, ut_submission *shape);
/* A rank's call; it was checked. */
void ut_slot_submit(ut_job *j, uint32_t session, const ut_waiting *call, ut_ns now);
/* |op| starts: takes all that lies there. Returns what was given to another op than this one; NULL: nothing. */
const ut_submission *ut_slots_take(ut_job *j, ut_op *op);
/* Where it lies; returns how many. */
unsigned ut_slots_sources(const ut_job *j, const void **ret);
/* |op| has ended; its receipt is kept. */
void ut_slots_ended(ut_job *j, const ut_op *op, const ut_receipt *receipt, ut_ns now);
/* A trainer takes |place|; its |calls| are the caller's, and are read until it has gone. UT_ERR_ARGUMENT: no such
 * place; UT_ERR_EXISTS: it is taken. */
int ut_slot_attach(ut_job *j, uint32_t session, uint32_t place, ut_calls *calls);
void ut_slot_gone(ut_job *j, uint32_t session, ut_ns now);

/* answer.c */
/* Answers all calls that are owed something, as far as the turn allows. */
void ut_slots_answer(ut_job *j, ut_ns now);
void ut_slot_expire(ut_job *j, uint32_t session, ut_ns now);
ut_ns ut_slot_next_expiry(const ut_job *j, uint32_t session);
/* All calls that wait fail: the job is going away. */
void ut_slots_close(ut_job *j, ut_ns now);

/* activate.c */
/* Hosts that |self| tells at once that an op has started, which |from| (perhaps |self|) told it: its children in the
 * union of the binomial trees of all hosts. In step k each tells the one whose number differs in bit k (that is 2^k
 * further, where hosts is no power of two), and only in steps after the one in which it was told. */
uint64_t ut_activation_children(uint32_t hosts, uint32_t self, uint32_t from);
ut_policy_set ut_policy_of(const ut_job *j, uint64_t seq);
/* The options were |before| until now. */
void ut_policy_tune(ut_job *j, const ut_job_options *before);
uint32_t ut_job_ranks_of(const ut_job *j, uint32_t host);
/* The places that |host|'s ranks can have, bit per place. */
static inline uint16_t ut_job_places_of(const ut_job *j, uint32_t host)
{
    return (uint16_t)((1u << ut_job_ranks_of(j, host)) - 1);
}
/* Starts what is to start. */
void ut_partial_look(ut_job *j, ut_ns now);
/* For ut_engine_activate. */
int ut_partial_activate(ut_job *j, uint64_t seq, ut_ns now);
/* An op is open, or the answers to the last one are still being copied: the next one must wait. */
static inline bool ut_partial_busy(const ut_job *j)
{
    const ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    bool open = op->state == UT_OP_OPENING || op->state == UT_OP_RUNNING || op->state == UT_OP_ENDING;
    return j->partial.answering || (open && op->seq == j->next_open - 1);
}

#endif
