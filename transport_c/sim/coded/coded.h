/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded jobs in the simulator: what each rank gave to which step, and what the results of the steps hold.
 *
 * Here a *group* is the set of ranks that compute the same part of the data. A contribution to step t has in its
 * element i the digit 1 of its group, in base 4, times a number drawn from t and i. So the sum of one contribution from
 * each group has digits of 1 alone; a rank of a group that was folded besides another one makes a digit 2; and what was
 * given for another step is no multiple of the number.
 *
 * With a linear code each rank is a group by itself. It gives its row of the code times numbers drawn from the step,
 * the element and the part of the data, and the result is held against their sum.
 */
#ifndef SIM_CODED_H
#define SIM_CODED_H

#include "sim/sim.h"

enum { SIM_CODED_BUFFERS = 3 /* one in an op, one that waits, one that is being made */ };

/* A trainer of a coded job. */
typedef struct sim_coder {
    uint64_t step;                       /* that comes next */
    uint64_t calls;                      /* submissions of this session */
    uint64_t taken;                      /* the ring's word when it was looked at last */
    uint64_t call_in[SIM_CODED_BUFFERS]; /* whose contribution lies there; UINT64_MAX: nothing does */
    uint64_t step_in[SIM_CODED_BUFFERS];
    uint32_t made, again; /* calls of all lives; those in a row that failed */
    uint32_t calm_answers, calm_tries;
    bool newcomer; /* it has had no result in this life: it may ask for one that is over */
} sim_coder;

/* An op. */
typedef struct sim_coded_op {
    uint64_t op_seq, step;
    uint64_t gave;                                 /* mask of hosts whose contribution it took */
    ut_ns gave_at[SIM_HOSTS], ended_at[SIM_HOSTS]; /* by host */
    ut_ns first;                                   /* when the first host started it */
    bool result, whole;
    uint64_t digest;
} sim_coded_op;

/* What is known of a step. */
typedef struct sim_coded_step {
    bool result, exact;
    uint64_t op_seq, view, digest; /* view: of the epoch */
} sim_coded_step;

typedef struct sim_coded {
    sim_coded_op *op;
    sim_coded_step *step;
    uint32_t ops, op_room;
    uint64_t steps;                               /* the newest with a result on some host, plus one */
    uint64_t step_room;                           /* elements of |step| */
    uint32_t running[SIM_HOSTS], life[SIM_HOSTS]; /* by host: which op started last there, in which life */
    uint64_t last; /* step of the calm before which no rank stops; 0: not all have had enough */
} sim_coded;

static inline bool sim_coded_linear(const sim_job_plan *j)
{
    return j->options.code == UT_CODE_LINEAR;
}
static inline uint32_t sim_coded_replicas(const sim_job_plan *j)
{
    return sim_coded_linear(j) ? 1 : j->options.stragglers + 1u;
}
static inline uint32_t sim_coded_group(const sim_job_plan *j, uint32_t host)
{
    return host / sim_coded_replicas(j);
}
/* Hosts that share the data of one parent: in a star all do. */
static inline uint32_t sim_coded_fan_out(const sim_job_plan *j)
{
    return j->options.children ? j->options.children : j->hosts;
}
static inline uint32_t sim_coded_groups(const sim_job_plan *j)
{
    return sim_coded_fan_out(j) / sim_coded_replicas(j);
}
/* Groups that are enough. */
static inline uint32_t sim_coded_need(const sim_job_plan *j)
{
    return sim_coded_linear(j) ? sim_coded_fan_out(j) - j->options.stragglers : sim_coded_groups(j);
}
/* The result is held against the sum over all parts of the data, and tells nothing of who is in it. */
static inline bool sim_coded_by_value(const sim_job_plan *j)
{
    return sim_coded_linear(j) || j->options.children;
}
/* In a tree, |host| has others below it. */
static inline bool sim_coded_has_below(const sim_job_plan *j, uint32_t host)
{
    return j->options.children && host * j->options.children + 1 < j->hosts;
}
static inline bool sim_coded_exact(const sim_job_plan *j)
{
    return j->options.exact != UT_EXACT_NO;
}

#define SIM_CODED_FAIL(w, oracle, r, format, ...)                                                                      \
    sim_fail(w, oracle, (r)->host, "job %u rank %u: " format, (r)->job, (r)->index, __VA_ARGS__)

/* coded_tree.c */
/* The sum over all data can be had from what the ranks of |hosts| give. */
bool sim_coded_decodable(const sim_job_plan *j, uint64_t hosts);
/* The same if those hosts alone are there: a tree needs its root. */
bool sim_coded_can(const sim_job_plan *j, uint64_t hosts);
/* What |host| of a tree gives, and what all data come to: sums of |number|, which is asked with the name of a part. */
typedef double sim_coded_number(const void *context, uint64_t part);
double sim_coded_tree_gives(const sim_job_plan *j, const double *encoding, uint32_t host, sim_coded_number *number,
                            const void *context);
double sim_coded_tree_sum(const sim_job_plan *j, sim_coded_number *number, const void *context);
/* The rows by which the children of a parent share its data: as many numbers as it has parts for each. */
void sim_coded_encoding(const sim_job_plan *j, double *ret);

/* coded_code.c */
void sim_coded_fill(const sim_world *w, uint32_t job, uint32_t host, uint64_t step, void *out);
/* How many groups, all of |may|, are in elements [from, to) of the result of |step|, all of one slot. Bit k of
 * |counts|: it can be k + 1 of them; a slot that is too short to tell has several readings, and one of zeroes alone
 * none. False and why: they are no sum of one contribution from each, nor the estimate that such a sum gives. */
bool sim_coded_read(const sim_world *w, uint32_t job, uint64_t step, uint64_t from, uint64_t to, const void *values,
                    uint64_t may, uint64_t *ret_counts, sim_wrong *wrong);

/* coded_watch.c */
sim_coded_op *sim_coded_op_of(sim_world *w, uint32_t job, uint64_t op_seq, uint64_t step);
sim_coded_step *sim_coded_step_of(sim_world *w, uint32_t job, uint64_t step);
void sim_coded_event(sim_world *w, sim_host *h, const ut_event *event);
/* What the ring says was taken was taken by the op that |r|'s host started last. */
void sim_coded_notice(sim_world *w, sim_rank *r);

/* coded_check.c */
void sim_coded_check(sim_world *w, sim_rank *r, const sim_ask *ask, const ut_receipt *receipt);
void sim_coded_check_among_liars(sim_world *w, const sim_rank *r, const sim_ask *ask, const ut_receipt *receipt);
void sim_coded_check_behind(sim_world *w, sim_rank *r, const sim_ask *ask, const ut_receipt *receipt);

#endif
