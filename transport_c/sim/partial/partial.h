/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs in the simulator: what each rank gave and where it went, as the engines say and as the bytes show.
 */
#ifndef SIM_PARTIAL_H
#define SIM_PARTIAL_H

#include "sim/sim.h"

enum { SIM_BUFFERS = 3 /* one in an op, one that waits, one being composed */, SIM_NONE = UINT32_MAX };
/* An arena has equal regions: the buffers, where results go, and the residual. */
enum { SIM_RESULT = SIM_BUFFERS, SIM_RESIDUAL, SIM_REGIONS };

/* Of one contribution: on its way to the engine, in the slot, in an op; or no more the engine's. */
enum sim_gift_state { SIM_OFFERED = 1, SIM_WAITING, SIM_TAKEN, SIM_REPLACED, SIM_BACK, SIM_REFUSED };
typedef struct sim_gift {
    uint64_t call;      /* submission that gave it */
    uint64_t given_for; /* the earliest op that something in it was given for */
    uint64_t arrived;   /* the newest; UT_NEVER of what was given without waiting: for whichever comes */
    uint64_t op;        /* that took it last */
    uint32_t takes;
    uint8_t state, buffer;
    bool sticky, freed, hurried; /* hurried: its trainer named less time than it does otherwise */
} sim_gift;

/* A trainer of a partial job. Its contributions are numbered over all its lives. */
typedef struct sim_giver {
    sim_gift *gift;
    uint32_t gifts, first;        /* first: of this life */
    uint32_t waiting, offered;    /* numbers of gifts; SIM_NONE */
    uint32_t buffer[SIM_BUFFERS]; /* gift in it; SIM_NONE: free */
    uint64_t calls;               /* submissions of this session */
    uint64_t next;                /* op from which on a result is new to it */
    uint64_t results_then;        /* the ring's word when it called */
    uint32_t steps, calm_answers;
    uint32_t absent; /* ops in a row that went on without it */
    ut_ns attached;  /* since when it is there */
    bool composing;  /* what it gives holds what waits, too */
} sim_giver;

/* What is known of one op of a partial job. Gifts by number plus one, 0 for none. */
typedef struct sim_part_op {
    uint32_t gift[SIM_RANKS], gift_before[SIM_RANKS]; /* before: of an earlier life of its host */
    uint64_t stale, unsure;                           /* masks of ranks; unsure: fresh or stale, who knows */
    ut_ns started[SIM_HOSTS];                         /* world's; UT_NEVER: not */
    uint32_t life[SIM_HOSTS];
    uint64_t initiators; /* mask of hosts */
    ut_ns first;
    bool hurried; /* a contribution of an initiator is */
    bool complete;
    uint64_t complete_ranks, complete_owners;
    uint64_t digest;
    /* for the study of skew */
    uint64_t waited_ns, answers;
    ut_ns last, called[SIM_RANKS];
} sim_part_op;

typedef struct sim_ask_of { /* a probe that waits for an answer: host by host of the job */
    uint64_t op_seq;
    uint32_t from, rank, round;
} sim_ask_of;
enum { SIM_ASKS = 16 };
/* One host's part of the control plane of a partial job. */
typedef struct sim_prober {
    uint32_t round;
    bool won; /* this round has an answer */
    uint64_t op_seq;
    uint64_t ready_op, ready; /* what its engine said last */
    ut_ns ready_at;           /* when it said something of that op first */
    uint64_t told;            /* op that it was told to activate, plus one */
    sim_ask_of ask[SIM_ASKS];
    uint32_t asks;
} sim_prober;

typedef struct sim_part {
    sim_part_op *op;
    uint32_t ops, room;
    uint64_t next[SIM_HOSTS]; /* op that comes next there */
    sim_prober prober[SIM_HOSTS];
    uint32_t last_controller;
    bool thinned; /* some receipt told that not all hosts owned a shard */
} sim_part;

/* A message among daemons about probes. */
typedef struct sim_probe {
    uint32_t kind, from, from_life, rank, round;
    uint64_t op_seq;
} sim_probe;

#define SIM_PART_FAIL(w, oracle, r, format, ...)                                                                       \
    sim_fail(w, oracle, (r)->host, "job %u rank %u: " format, (r)->job, (r)->index, __VA_ARGS__)

static inline const sim_part_plan *sim_part_plan_of(const sim_world *w, const sim_rank *r)
{
    return &w->plan.job[r->job].part;
}

/* Lies have made hosts start ops, and take what was given, as they please: it cannot be followed. */
static inline bool sim_part_blind(const sim_world *w)
{
    return w->plan.evil || w->plan.hostile;
}

/* partial_code.c: contributions that tell rank and number, element by element. */
typedef struct sim_gift_form {
    uint32_t groups, per; /* ranks of a group */
    unsigned bits;        /* of a rank's digit */
} sim_gift_form;
typedef struct sim_gift_code {
    uint64_t seed;
    uint32_t ranks, world; /* world: what a sum is divided by; 0: by those in it */
    uint8_t dtype, redop, wire;
    sim_gift_form form;
} sim_gift_code;
/* The largest whole number that contributions hold in these forms (sim_part_plan.wire), and the error that each and
 * the result may have of it: sums are whole numbers again if they are rounded. */
uint32_t sim_gift_most(unsigned wire);
/* As many elements in a row tell of all ranks; 0: the dtype cannot be read. */
uint32_t sim_gift_groups(unsigned dtype, unsigned wire, unsigned redop, uint32_t ranks);
sim_gift_code sim_gift_code_of(const sim_world *w, uint32_t job);
void sim_gift_fill(const sim_gift_code *code, uint32_t rank, uint32_t number, void *out, uint64_t count);
/* Ranks in elements [from, to) of op |op|, all of one slot; nobody: they are zero. False and why: they are no sum of
 * what was put into it. */
bool sim_gift_read(const sim_gift_code *code, const sim_part_op *op, uint64_t from, uint64_t to, const void *values,
                   sim_held *ret, sim_wrong *wrong);

/* partial_op.c */
sim_part_op *sim_part_op_of(sim_world *w, uint32_t job, uint64_t op_seq);
bool sim_part_arrived(const sim_rank *r, uint32_t number, uint64_t op_seq); /* what is to start an op, not just in it */
uint32_t sim_part_picks(const ut_job_options *options, uint32_t world);

/* partial_trainer.c */
void sim_part_attach(sim_world *w, sim_rank *r);
void sim_part_detach(sim_world *w, sim_rank *r);
ut_ns sim_part_due(const sim_world *w, const sim_rank *r,
                   const sim_ask *ask); /* when it must be answered at the latest; local */
void sim_part_go_on(sim_world *w, sim_rank *r);
void sim_part_ready(sim_world *w, sim_rank *r);
void sim_part_collect(sim_world *w, sim_rank *r);
bool sim_part_done(const sim_world *w, const sim_rank *r);
void sim_part_offer(sim_world *w, sim_rank *r);  /* the engine is about to look */
void sim_part_settle(sim_world *w, sim_rank *r); /* it has looked: what was offered lies in the slot, or was refused */
void sim_part_free(sim_job *job);

/* partial_watch.c */
void sim_part_event(sim_world *w, sim_host *h, const ut_event *event);
void sim_part_words(sim_world *w, sim_rank *r); /* what the rings' words let go of is spoilt */
/* Draws what may change of a policy and its numbers. */
void sim_plan_draw_policy(ut_job_options *o, uint32_t ranks, sim_rng *rng);
void sim_part_change_due(sim_world *w, uint32_t job);
void sim_part_opens(sim_world *w, const sim_host *h, uint32_t job, uint64_t seq);
void sim_part_start(sim_world *w, sim_host *h, uint32_t job); /* the daemon has begun to serve the job */

/* partial_check.c */
void sim_part_check(sim_world *w, sim_rank *r, const sim_ask *ask, const ut_receipt *receipt);
void sim_part_check_among_liars(sim_world *w, const sim_rank *r, const ut_receipt *receipt);
void sim_part_check_end(sim_world *w, uint32_t job);

/* partial_probe.c: the controller */
void sim_probe_event(sim_world *w, const sim_event *event);
void sim_probe_start(sim_world *w, sim_host *h, uint32_t job); /* the daemon has begun to serve the job */
void sim_probe_ready(sim_world *w, sim_host *h, const ut_event *event);
void sim_probe_moved(sim_world *w, sim_host *h, uint32_t job); /* an op has started there */

#endif
