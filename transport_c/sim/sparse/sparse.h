/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds with sparse allreduces: what ranks give (sparse_code.c), how it lies in their arenas (sparse_trainer.c), and
 * what a result tells (sparse_read.c).
 *
 * Elements of one granule come and are lost together, so a granule is what a slot is to a dense op: all its elements
 * hold the same ranks. An element tells of those ranks alone that gave an entry for it.
 */
#ifndef SIM_SPARSE_H
#define SIM_SPARSE_H

#include "sim/oracles/view.h"

/* How a rank's entries lie in the tensor. */
enum sim_spread {
    SIM_EVEN,      /* anywhere */
    SIM_HEAD,      /* eight times as many in the first eighth, and none elsewhere */
    SIM_PATCHES,   /* twice as many in some parts of a sixteenth, and none in the others */
    SIM_FEW_RANKS, /* some ranks give nothing at all */
    SIM_SPREADS
};

static inline bool sim_is_sparse(const sim_op *op)
{
    return op->group != 0;
}

/* What an op's entries are made from. */
typedef struct sim_entries {
    uint64_t bits; /* of seed, job and op */
    uint64_t units;
    uint32_t ranks, hosts;
    uint32_t groups, per; /* of ranks; a unit belongs to one of them */
    uint32_t primes;
    uint32_t ppm;
    uint16_t group; /* elements of a unit */
    uint8_t form, redop, spread;
    bool rounded; /* answers are int8 */
    double near;  /* as far as an element may then be from what it stands for; else 0 */
    bool nonfinite;
} sim_entries;
sim_entries sim_entries_of(const sim_world *w, uint32_t job, uint64_t op_seq, const sim_op *op);
/* The ranks that have an entry for |unit|, as a mask. */
uint64_t sim_entries_holders(const sim_entries *e, uint64_t unit);
/* Writes the entries of |rank|: indices, then values. Returns how many; |out| has room for one per unit. */
uint64_t sim_entries_fill(const sim_entries *e, uint32_t rank, uint8_t *out);
/* Which ranks the elements [from, to) of one granule hold. False and why when they are no sum, or average of those that
 * are in it, of distinct ranks of this op. */
bool sim_entries_read(const sim_entries *e, uint64_t from, uint64_t to, const float *values, sim_held *ret,
                      sim_wrong *wrong);

/* Writes what the rank has into its part of the arena, and makes a sparse submission of |ask|->entry. */
void sim_sparse_ask(sim_world *w, sim_rank *r, sim_ask *ask);
/* Oracle O5: nothing but the result has changed. */
void sim_sparse_check_arena(sim_world *w, const sim_rank *r, const sim_ask *ask);
/* Room in the arena, besides that of a dense op, for one of |bytes|. */
uint64_t sim_sparse_room(uint64_t bytes);

/* sparse_read.c: what the bytes hold, into |v|. */
void sim_read_sparse(sim_view *v, const uint8_t *result);

#endif
