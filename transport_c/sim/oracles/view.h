/* SPDX-License-Identifier: Apache-2.0
 *
 * One receipt and its result, and what was read in them so far.
 */
#ifndef SIM_VIEW_H
#define SIM_VIEW_H

#include "sim/oracles/oracles.h"

/* All that the checks of one receipt share. */
typedef struct sim_view {
    sim_world *w;
    sim_job *job;
    const sim_rank *rank;
    const sim_ask *ask;
    const ut_receipt *r;
    uint32_t host, self, hosts; /* of the world; in the job; of the job */
    size_t element;
    bool late;     /* the host went on without this rank */
    uint64_t liar; /* index in the job, as a mask */
    bool mixed;    /* it travelled transformed and some is missing: no element tells who is in it */
    sim_run *run;
    uint32_t runs;
    uint32_t least, least_sure;    /* ranks of the thinnest element, at most and at least */
    sim_held everywhere, anywhere; /* ranks in all elements, in some; unsure: those that may be, these included */
    uint64_t nonfinite;
} sim_view;

extern const char *const sim_status_name[5];

#define SIM_VIEW_FAIL(oracle, format, ...)                                                                             \
    sim_fail(v->w, oracle, v->host, "job %u rank %u op_seq %" PRIu64 " (%s): " format, v->rank->job, v->rank->index,   \
             v->ask->entry.op_seq, sim_status_name[v->r->status < 5 ? v->r->status : 0], __VA_ARGS__)

/* The signs of all ranks that a whole result has: of the members of the epoch, where hosts come and go. */
uint64_t sim_whole_of(const sim_view *v);
/* seats.c: oracle O18 */
void sim_seats_check(sim_view *v);

/* The elements whose result |host| (index in the job) makes. */
static inline void sim_shard_of(const sim_view *v, uint32_t host, uint64_t *from, uint64_t *to)
{
    sim_op_owned(v->job->plan, v->ask->entry.op_seq, v->r->owners, &v->ask->as, host, from, to);
}

/* For readers: before the first element; elements [from, to) hold these ranks; those up to |end| come from a liar. */
void sim_begin_notes(sim_view *v);
void sim_note_ranks(sim_view *v, uint64_t from, uint64_t to, sim_held held);
void sim_note_unread(sim_view *v, uint64_t end);

/* result.c: what the bytes hold, into |v|. */
void sim_read_result(sim_view *v, const uint8_t *result);
void sim_read_transformed(sim_view *v, const uint8_t *result); /* what travelled as a Hadamard transform */

#endif
