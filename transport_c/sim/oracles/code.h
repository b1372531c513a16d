/* SPDX-License-Identifier: Apache-2.0
 *
 * Fingerprints: values that tell which ranks are in them (code.c), element by element (value.c) and slot by slot
 * (read.c).
 */
#ifndef SIM_CODE_H
#define SIM_CODE_H

#include "core/face/engine.h"
#include "sim/world/plan.h"

struct sim_world;

/* What elements show of the ranks in them: ranks that are in them, and ranks of which they tell nothing. */
typedef struct sim_held {
    uint64_t ranks, unsure;
} sim_held;
typedef struct sim_wrong {
    uint64_t element;
    const char *reason;
} sim_wrong;
/* What an op's values are made from (code.c). */
typedef struct sim_code {
    uint64_t seed;
    uint32_t job, ranks;
    uint64_t op_seq;
    uint8_t dtype, redop;
    bool nonfinite;
    bool narrow;         /* float32 values small enough that the sums of a Hadamard transform are exact */
    const uint8_t *mark; /* each element's unit, reckoned before; NULL: not */
} sim_code;

/* value.c: out = numerator / divisor as the dtype rounds it. */
void sim_code_put(unsigned dtype, int64_t numerator, int64_t divisor, void *out);
void sim_code_put_infinite(unsigned dtype, void *out);
double sim_code_real(unsigned dtype, const void *value);
/* The element as an integer; false if it is none. */
bool sim_code_whole(unsigned dtype, const void *value, int64_t *ret);

/* code.c: fingerprints */
sim_code sim_code_of(struct sim_world *w, uint32_t job, uint64_t op_seq, const sim_op *op);
void sim_code_fill(const sim_code *code, uint32_t rank, void *out, uint64_t count);
bool sim_code_nonfinite(const sim_code *code, uint64_t element);
/* How many of [from, to) are. */
uint64_t sim_code_infinite(const sim_code *code, uint64_t from, uint64_t to);
/* One element tells of so many ranks: no need of its neighbours. */
bool sim_code_tells_alone(unsigned dtype, unsigned redop, uint32_t ranks);
/* As many elements of a slot in a row tell of all ranks. */
uint32_t sim_code_groups(const sim_code *code);
/* The first of elements [from, to), all float32, that is finite and not what |ranks| make, but for the rounding of an
 * average on its way through a transform; |to| if there is none. */
uint64_t sim_code_near(const sim_code *code, uint64_t from, uint64_t to, uint64_t ranks, const float *values);
/* Elements [from, to) as all of |ranks| make them. */
void sim_code_make(const sim_code *code, uint64_t from, uint64_t to, uint64_t ranks, void *out);
/* The first of elements [from, to) that is not as all of |ranks| make it; |to| if there is none. |values|: of 0. */
uint64_t sim_code_agree(const sim_code *code, uint64_t from, uint64_t to, uint64_t ranks, const void *values);
/* Which ranks elements [from, to), all of one slot, hold. False and why when they are no sum of distinct ranks of this
 * op. */
bool sim_code_read(const sim_code *code, uint64_t from, uint64_t to, const void *values, sim_held *ret,
                   sim_wrong *wrong);

/* read.c */
typedef struct sim_slot {
    uint64_t from, to;  /* elements */
    size_t bytes;       /* of one */
    const void *values; /* of element 0 */
    uint32_t ranks;     /* of the job */
    bool average;       /* by the number of those in it */
    bool may_be_empty;
} sim_slot;
typedef struct sim_told {
    uint32_t group;
    uint64_t members, ranks; /* of the group; those of them that are in the element */
    const char *reason;
} sim_told;
/* What an element tells if it is a sum (n = 0) or an average of |n| ranks; false and a reason if it cannot be. */
typedef bool sim_tell(const void *context, uint64_t element, const void *value, uint32_t n, sim_told *ret);
bool sim_read_slot(const sim_slot *slot, sim_tell *tell, const void *context, sim_held *ret, sim_wrong *wrong);

#endif
