/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds with quantised allreduces, and with weighted averages, quantised or dense: which ops are (quant_plan.c), what
 * ranks give and how it lies in their arenas (quant_trainer.c), what owners make of it (quant_sum.c), and what a result
 * tells (quant_read.c).
 *
 * An element is given by one rank, or by two, and by none else. The magnitudes that ranks give are within a quarter of
 * each other, so none is rounded to nothing, and what is 0 in a result shows whose contribution is not in it. For the
 * ranks that a slot shows, the oracle rounds, adds and rounds again, and compares all bits.
 */
#ifndef SIM_QUANT_H
#define SIM_QUANT_H

#include "sim/oracles/view.h"

enum { SIM_LOCAL_MOST = UT_LOCAL_MAX };

/* Its values are those of this file. */
static inline bool sim_is_quant(const sim_op *op)
{
    return op->wire != 0 || op->weighed;
}

/* What an op's values are made from. */
typedef struct sim_quant {
    uint64_t bits;  /* of seed, job and op */
    uint32_t ranks; /* of the job */
    bool pairs;     /* some elements are given by two ranks; of a weighted average none */
    bool weighed;
    sim_code code; /* of a dense op, which says what is not finite */
} sim_quant;

sim_quant sim_quant_of(sim_world *w, uint32_t job, uint64_t op_seq, const sim_op *op);
/* Writes elements [from, to) of what |rank| gives, or adds to them. */
void sim_quant_fill(const sim_quant *q, uint32_t rank, uint64_t from, uint64_t to, float *out);
void sim_quant_add(const sim_quant *q, uint32_t rank, uint64_t from, uint64_t to, float *out);
/* What lies in a rank's residual before an op, of an element that it gives. */
float sim_quant_left(float given);
/* The rank that gives |element|, and the other one, if there is; else the same. */
uint32_t sim_quant_giver(const sim_quant *q, uint64_t element, uint32_t *ret_other);

/* The weight of what |rank| gives to a weighted average; of others 1. */
uint32_t sim_quant_weight(const sim_quant *q, uint32_t rank);
uint64_t sim_quant_weights(const sim_quant *q, uint64_t ranks); /* of all of them */

/* Writes what the rank has into its part of the arena, and makes a quantised submission of |ask|->entry. */
void sim_quant_ask(sim_world *w, sim_rank *r, sim_ask *ask);
/* Oracle O5: nothing but the result and the residual has changed. */
void sim_quant_check_arena(sim_world *w, const sim_rank *r, const sim_ask *ask);
/* Room in the arena, besides that of a dense op, for the residual of one of |bytes|. */
uint64_t sim_quant_room(uint64_t bytes);
/* The rank's residual in its arena; NULL: it has none. */
const float *sim_quant_residual(const sim_rank *r, const sim_ask *ask);
/* A host with several ranks joins theirs in an order that depends on who dies: there none has one. */
bool sim_quant_feeds(const sim_job *job, uint32_t host, const sim_op *op);

/* quant_sum.c. How an op is cut, found again without the core's code. */
typedef struct sim_quant_cut {
    unsigned form, answer; /* 0: it is dense */
    uint32_t parts, each, part;
} sim_quant_cut;
sim_quant_cut sim_quant_cut_of(const sim_view *v);
/* One slot of contributions: elements [from, to), the number of its chunk and its own number there. */
typedef struct sim_quant_slot {
    uint64_t from, to;
    uint32_t chunk, number, owner;
} sim_quant_slot;
/* What the slot's owner adds up if it hears |ranks|. */
void sim_quant_sum(const sim_view *v, const sim_quant *q, const sim_quant_cut *c, const sim_quant_slot *s,
                   uint64_t ranks, float *sums);
/* Elements [from, to) of it as the owner answers them, divided by |n|. */
void sim_quant_answer(const sim_view *v, const sim_quant_cut *c, const sim_quant_slot *s, uint64_t from, uint64_t to,
                      uint64_t n, const float *sums, float *out);
/* What |ranks| of one host bring together, of elements [from, to). */
void sim_quant_bring(const sim_quant *q, uint64_t ranks, uint64_t from, uint64_t to, float *out);

/* quant_read.c: what the bytes hold, into |v|. */
void sim_read_quant(sim_view *v, const uint8_t *result);

#endif
