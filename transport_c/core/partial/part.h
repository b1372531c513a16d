/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ops of partial jobs need beyond those of other jobs: what ranks have given and wait for (inbox.c, answer.c),
 * which host starts the next op and which hosts it tells (activate.c), and an op to which not all contribute
 * (op_partial.c). A *place* here is a local rank: a rank's number among the ranks of its host.
 */
#ifndef UT_PART_H
#define UT_PART_H

#include "core/op/op.h"
#include "core/partial/inbox.h"

/* What a host has said that it brings to an op of a partial job. */
typedef struct ut_part {
    bool heard;
    uint16_t weight;       /* ranks */
    uint16_t fresh, stale; /* bit per place */
    uint32_t oldest_step;
} ut_part;

/* What an op of a partial job knows beyond others. */
typedef struct ut_op_partial {
    uint8_t policy;      /* enum ut_policy in force */
    uint16_t initiator;  /* host; 0xffff: not known, or none */
    uint32_t heard_from; /* host that told first; the own one: started here */
    ut_ns waited;        /* from when there was something to give, or a peer told, to the start */
    bool orphaned;       /* `memory.own` lies in the memory of a trainer that has gone */
    uint64_t saved;      /* bytes of that which were copied to `memory.orphan` */
    ut_part said[UT_HOSTS_MAX];
} ut_op_partial;

/* op_partial.c */
/* Returns how many ranks are to be in the op, according to the hosts that were heard; |ret_hosts|: the hosts that bring
 * them. */
uint32_t ut_op_announced(const ut_job *j, const ut_op *op, uint64_t *ret_hosts);
/* What an op of a partial job starts with. */
typedef struct ut_activation {
    ut_submission shape; /* its op_seq, count, dtype, redop, mode, flags and deadline */
    uint32_t from;       /* host that told; the own one: started here */
    uint16_t initiator;  /* host; 0xffff: not known, or none */
    uint8_t policy;
    ut_ns since; /* when there was something to give, or a peer told */
} ut_activation;
/* Starts an op with what lies in the slots. */
void ut_op_activate(ut_job *j, const ut_activation *a, ut_ns now);

/* What is said to |host| of the next op before it starts, if that is anything. */
bool ut_partial_readiness(const ut_job *j, uint32_t host, ut_record *ret);
/* Lets each peer hear which ranks are ready for the next op, if it was told otherwise. */
void ut_partial_tell_ready(ut_job *j, ut_ns now);
/* |host| sent a record. Before its op starts it says which ranks are ready for it. Returns whether it has started. */
bool ut_partial_hear(ut_job *j, uint32_t host, const ut_record *r);

extern const ut_gathering ut_gathering_partial;

/* partial.c */
/* Makes |j|, which was laid out for the intake's gathering, a partial job. |p| and an |of_op| for each of UT_OPS_MAX
 * ops are zeroed memory that lasts as long as the job does; so is |own|, which the intake has carved. */
void ut_partial_init(ut_job *j, ut_partial *p, ut_op_partial *of_op, const struct ut_intake *intake, void *own);
/* The engine calls these for any job; in an ordinary one they do nothing. */
void ut_partial_tick(ut_job *j, ut_ns now);
ut_ns ut_partial_next_wake(const ut_job *j);
/* Goes on with answers and gifts that are being copied. */
void ut_partial_work_on(ut_job *j, ut_ns now);
/* Whether no op reads the memory of a trainer that has gone. */
bool ut_partial_has_let_go(const ut_job *j);
void ut_partial_members_changed(ut_job *j);

/* inbox.c */
/* Masks of local ranks: those that have a trainer; those whose trainer has not left (or has not come yet); those that
 * have given something for op |seq|. */
uint16_t ut_gifts_attached(const ut_job *j);
uint16_t ut_gifts_present(const ut_job *j);
uint16_t ut_gifts_ready(const ut_job *j, uint64_t seq);
/* Whether some rank has given nothing, and was not in the last |tau| ops. */
bool ut_gifts_overdue(const ut_job *j, uint32_t tau);
/* When the first of the gifts that wait came, or |at| if that was before. */
ut_ns ut_gifts_since(const ut_job *j, ut_ns at);
/* The first returns the op that the gifts which wait ask for. The second sets in |shape|, the op that a peer asks for,
 * what must be as these gifts ask for it. */
ut_submission ut_gifts_shape(const ut_job *j, ut_ns now);
void ut_gifts_reshape(const ut_job *j, ut_submission *shape);
/* Takes a rank's call, which was checked. */
void ut_inbox_submit(ut_job *j, uint32_t session, const ut_waiting *call, ut_ns now);
/* |op| begins, or goes on, and takes the gifts that are for it. Returns a gift's submission that asks for another kind
 * of op than this one; NULL if there is none. */
const ut_submission *ut_inboxes_take(ut_job *j, ut_op *op);
/* Returns how many gifts are in the op, and in |ret| where they lie. */
unsigned ut_gifts_sources(const ut_job *j, const void **ret);
/* The same of the residuals that came with them. */
unsigned ut_gifts_residuals(const ut_job *j, float **ret);
/* |op| has ended; its receipt is kept. */
void ut_inboxes_ended(ut_job *j, const ut_op *op, const ut_receipt *receipt, ut_ns now);
/* A trainer takes the local rank |place|, which has none. |calls| stay the caller's, and are read until ut_inbox_gone.
 */
void ut_inbox_attach(ut_job *j, uint32_t session, uint32_t place, ut_calls *calls);
void ut_inbox_gone(ut_job *j, uint32_t session, ut_ns now);
/* Goes on with what an op needs of the memory of a trainer that has gone, as far as the turn allows. */
void ut_gifts_save(ut_job *j);
/* Whether that is over: no op reads such memory. */
bool ut_gifts_saved(const ut_job *j);

/* answer.c */
/* Answers all calls that have an answer, as far as the turn allows. */
void ut_inboxes_answer(ut_job *j, ut_ns now);
void ut_inbox_expire(ut_job *j, uint32_t session, ut_ns now);
ut_ns ut_inbox_next_expiry(const ut_job *j, uint32_t session);
/* Fails all calls that wait, because the job is going away. */
void ut_inboxes_close(ut_job *j, ut_ns now);

/* policy.c */
/* Mask of the hosts that |self| tells at once that an op has started, after |from| told |self| (|from| is |self| where
 * the op was started): its children in the union of the binomial trees of all hosts. In step k each host tells the host
 * whose number differs in bit k (if |hosts| is no power of two: the host that is 2^k further), and only in steps after
 * the one in which it was told. */
uint64_t ut_activation_children(uint32_t hosts, uint32_t self, uint32_t from);
ut_policy_set ut_policy_of(const ut_job *j, uint64_t seq);

/* activate.c */
/* Ops below |seq| have no part in this host any more. */
void ut_partial_skip_to(ut_job *j, uint64_t seq, ut_ns now);
/* Starts the next op if it is to start now. */
void ut_partial_look(ut_job *j, ut_ns now);
/* For ut_engine_activate. */
int ut_partial_activate(ut_job *j, uint64_t seq, ut_ns now);
/* Whether the next op must wait: one is open, or the answers of the last one are still being copied. */
static inline bool ut_partial_busy(const ut_job *j)
{
    const ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    bool open = op->state == UT_OP_OPENING || op->state == UT_OP_RUNNING || op->state == UT_OP_ENDING;
    return j->partial->answering || (open && op->seq == j->next_open - 1);
}

#endif
