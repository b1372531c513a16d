/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds by hand: one job, all said in numbers (knobs.c), and what came out of it, held against the wire (judge.c).
 */
#ifndef SIM_STUDY_H
#define SIM_STUDY_H

#include "sim/sim.h"

typedef struct sim_study {
    uint64_t seed, hosts, bytes, ops, warm, rate_mbit, cap_mbit, host_cap_mbit, queue_bytes, delay_us, loss_ppm,
        jitter_ppm, jitter_us;
    uint64_t mode, algorithm, congestion, hadamard, incast, early_percent, t_b_us, t_c_us, deadline_us, gap_us,
        apart_us, mark, timer_start;
    uint64_t packet_ns, sent_ns, batch_ns, turn_ns, wake_us, firm, send_bytes, send_us, slow_part, slower, slower_us;
    uint64_t groups, core_part, rival, jobs;
    uint64_t light, sparse_ppm, form, rows;
} sim_study;

/* What a study is without any knob. */
sim_study sim_study_default(void);
/* Reads "name=number", or "--light", into |s|; false if it is neither. */
bool sim_study_take(sim_study *s, const char *argument);
void sim_study_knobs(FILE *out);
/* The arguments that make |s|: those that are not as by default. */
void sim_study_command(const sim_study *s, char *ret, size_t room);
void sim_study_plan(const sim_study *s, sim_plan *ret);

/* What the judge has found. Times in ns. */
typedef struct sim_judged {
    double bound;      /* of the wire: 2 (N-1)/N of the bucket with all headers, over the slowest link of the world */
    double round_trip; /* of a packet on idle links, hosts half as late as they may be */
    double op;         /* the slowest host's median time of an op, from its own call on */
    double op_last;    /* the same from the last host's call on */
    double worst;      /* the longest op of all, on any host, warm-up too */
    double ratio, ratio_last;  /* to the bound, after two round trips are taken off */
    double goal;               /* the median time of an op to the bound and two round trips together */
    double first;              /* how many round trips the first op takes beyond the median */
    double lost, lost_own;     /* parts of all packets sent: lost; lost because some queue was full */
    double feedback;           /* feedback packets per data packet */
    double turns, told;        /* per host and op: turns of its engine, feedback packets that it sent, */
    double parity, rebuilt;    /* parity packets that were sent, and data packets that were made of them, in all */
    double grants, told_bytes; /* ... those of them that are grants alone, and the bytes of all */
    double wakeups;            /* per host and op: times that its thread was woken, from a call to its receipt */
    double again;              /* data packets sent, per packet that one transmission of everything takes */
    double idle[SIM_IDLES];    /* of an up-link, per op */
    double healthy;   /* with one slow link: how long the others' first stage takes, to what it takes the wire */
    double share;     /* job 0's part: of host 0's link beside a rival flow, or of what two jobs have done */
    uint64_t missing; /* bytes, of all receipts */
} sim_judged;
sim_judged sim_judge(const sim_world *w, const sim_study *s);
extern const char *const sim_idle_name[SIM_IDLES];

#endif
