/* SPDX-License-Identifier: Apache-2.0
 *
 * What a seed draws: the plan of a world, before any part of that world lives.
 */
#ifndef SIM_PLAN_H
#define SIM_PLAN_H

#include "core/face/engine.h"

enum {
    SIM_HOSTS = UT_HOSTS_MAX, /* hosts of a world */
    SIM_MANY = 16,            /* with more hosts a drawn world has small buckets and few ops */
    SIM_JOBS = 3,             /* jobs of a world */
    SIM_LOCAL = 3,            /* ranks of a job on one host, as a rule; seldom UT_LOCAL_MAX */
    SIM_RANKS = 64,           /* ranks of a job: sets of them are 64-bit masks */
    SIM_OPS_FAULTS = 32,      /* ops of a job while there are faults, at most; ... */
    SIM_OPS_FEW = 10,         /* ... where a long calm follows */
    SIM_CALM_OPS = 2,         /* ops after the faults have stopped: they must be perfect */
    SIM_CALM_LONG = 24,       /* where hosts died, sometimes so many: in the end those that are there own all */
    SIM_OPS = SIM_OPS_FAULTS + SIM_CALM_OPS, /* ops of a job, those of the calm included */
    SIM_AHEAD = 4,    /* submissions of one rank that are out at once, at most; it fills the core's own window */
    SIM_MARKS = 8,    /* ops of a job whose marks are kept */
    SIM_SAVED = 64,   /* old datagrams kept for replay */
    SIM_LIES = 16,    /* old datagrams that the hostile host keeps */
    SIM_ITEMS = 40,   /* timed faults of a plan */
    SIM_MOVES = 4,    /* times that a host's addresses change */
    SIM_GUARD = 4096, /* canary bytes on each side of memory lent to the core */
    SIM_SEND_BUFFER = 256 << 10, /* bytes in the up-link at which a send blocks */
    SIM_SEND_LEAST = 32 << 10,   /* however slow the link is */
    SIM_CAP_HEADERS = 28,        /* bytes of IP and UDP that the cap of a host counts with each packet */
    SIM_TAIL = 4096,             /* trace records kept for a failure */
    SIM_TAIL_SHOWN = 40,
};

enum sim_item_kind { SIM_PAUSE = 1, SIM_PARTITION, SIM_TRAINER_DEATH, SIM_DAEMON_DEATH, SIM_LEAVE };
typedef struct sim_item {
    ut_ns at, lasts; /* lasts: of a pause or partition; of a death, until the return (UT_NEVER: not before the calm) */
    uint32_t kind;   /* enum sim_item_kind */
    uint32_t host;
    uint32_t job, rank;
    uint64_t hosts; /* partition: mask of one side */
    bool one_way;
    bool told;     /* daemon death: the other hosts are told that it is absent */
    ut_ns grace;   /* leave: from when the others are asked to go on without it until it goes */
    bool for_good; /* daemon death: not even the calm brings it back, and the other hosts are told */
    ut_ns told_after;
} sim_item;

typedef struct sim_op {
    uint64_t count; /* elements */
    uint8_t dtype, redop, mode, collective, root;
    uint16_t group;      /* elements of a row, where it is sparse; 0: it is dense */
    uint8_t form, down;  /* of a sparse op's values; of its answers, as ut_alike has it */
    uint8_t spread;      /* enum sim_spread */
    uint8_t wire;        /* forms in which a quantised op travels, as ut_alike has them; 0: it is not quantised */
    bool nearest, feeds; /* it rounds to the nearest; ranks bring residuals */
    bool weighed;        /* ranks give weights, quantised or dense */
    uint8_t hint_off;    /* how much more this rank says than there is to expect */
    uint32_t sparse_ppm; /* of the rows a rank gives */
    bool nonfinite;      /* some elements are Inf on all ranks */
    bool agree;          /* UT_SUBMIT_AGREE */
    ut_ns deadline;      /* after the submission; UT_NEVER for none */
    uint32_t odd_rank;   /* the rank that calls the op differently; UINT32_MAX for none */
    uint8_t odd_field;   /* enum ut_field */
} sim_op;

/* How a trainer of a partial job behaves. */
enum sim_style {
    SIM_EAGER,  /* gives and waits, op after op, as eager-SGD does */
    SIM_RNA,    /* gives and goes on; takes a result when there is one */
    SIM_STICKY, /* as SIM_RNA, but ops take again and again what it gave */
    SIM_READER, /* takes results and gives nothing */
    SIM_SLEEPER /* calls nothing before the calm */
};
/* One change of policy while the job runs. */
typedef struct sim_part_change {
    ut_ns at; /* 0: none */
    ut_job_options options;
} sim_part_change;
typedef struct sim_part_plan {
    uint64_t count; /* elements; all ops are alike */
    uint8_t dtype, redop, mode;
    bool world;     /* UT_SUBMIT_WORLD */
    uint8_t wire;   /* forms in which contributions travel, as ut_alike has them; 0: they are dense */
    bool feeds;     /* ranks bring residuals, and round to the nearest */
    ut_ns deadline; /* of every call */
    uint32_t steps; /* calls of each rank with faults; then those of the calm */
    uint8_t style[SIM_RANKS];
    ut_ns late[SIM_RANKS]; /* how much longer than the others a rank takes for each step */
    ut_ns period;          /* not 0: all begin each step together, so far apart; `late` after that it calls (skew.c) */
    uint32_t stall_ppm;    /* coded jobs: a rank stalls so often in a step ... */
    ut_ns stall;           /* ... and at most so long */
    uint64_t first_step;   /* coded jobs: the trainers' number of their first step */
    uint64_t jump_at;      /* coded jobs: after this step all trainers leave out so many numbers; UINT64_MAX: never */
    uint32_t jump;
    sim_part_change change;
    uint32_t probe_lost, probe_twice, probe_lie; /* ppm */
    ut_ns probe_late;                            /* at most, on the way */
    bool two_controllers;                        /* the second host believes for a while that it is the first */
} sim_part_plan;

typedef struct sim_job_plan {
    uint32_t hosts;
    uint8_t host[SIM_HOSTS];  /* index in the job -> host of the world */
    uint8_t local[SIM_HOSTS]; /* ranks there */
    uint32_t ops, ahead;
    uint32_t calm; /* ops of the calm; 0: SIM_CALM_OPS */
    bool seats;    /* hosts come and go, each with a seat while it is in (seats.h) */
    ut_job_options options;
    uint64_t base;         /* op_seq of the first op */
    uint8_t hadamard_then; /* enum ut_hadamard from op `hadamard_at` on, as an operator says it; 0: no change */
    uint32_t hadamard_at;
    uint64_t rate; /* bytes per second, 0 unlimited */
    ut_ns compute_min, compute_max, skew;
    sim_op op[SIM_OPS];
    uint64_t bucket_max;
    uint64_t sparse_room; /* bytes of each slot of an arena, for entries or residuals; 0: there are none */
    sim_part_plan part;   /* of a partial job: options.policy is another than NONE */
} sim_job_plan;

/* One host that is unlike the others; all zero for none. */
typedef struct sim_odd {
    uint32_t host;
    uint32_t rate_part; /* its link has this part of the rate; 0: all of it */
    ut_ns late;         /* its trainer calls each op so much later */
    ut_ns packet_cost;  /* CPU of each packet that it receives, besides the usual */
    uint64_t receive;   /* bytes that really fit into its socket; 0: as elsewhere */
} sim_odd;

/* The hostile host. */
typedef struct sim_liar {
    uint32_t host;
    uint32_t about; /* mask, see liar.c */
    uint32_t often; /* ppm of its packets */
    ut_ns until;    /* then it is honest; at the latest when the faults stop, and its daemon begins a new life */
} sim_liar;

/* A host whose addresses change, or whose packets a thief copies (moving.c); all zero for none. */
typedef struct sim_moving {
    uint32_t host;
    uint32_t times;
    ut_ns at[SIM_MOVES];
    uint8_t ports[SIM_MOVES]; /* mask of enum ut_port */
    uint32_t thief_often;     /* ppm of its packets; 0: there is no thief */
} sim_moving;

typedef struct sim_plan {
    uint32_t hosts, jobs;
    sim_job_plan job[SIM_JOBS];
    ut_ns clock[SIM_HOSTS]; /* the host's clock at the world's 0 */
    /* links */
    uint64_t rate_up, rate_down;   /* bytes per second */
    uint64_t queue_up, queue_down; /* bytes */
    ut_ns delay_min, delay_max;    /* one way, per pair */
    ut_ns jitter;                  /* and at most so much more, per packet; the order of a pair is kept */
    uint64_t slow_hosts;           /* mask: their links have the rate divided by slow_by for a while */
    uint32_t slow_by;
    ut_ns slow_from, slow_until;
    uint32_t hole_bytes;         /* datagrams above this vanish on the way to `hole_hosts`; 0 for none */
    uint64_t hole_hosts;         /* mask */
    ut_ns hole_from, hole_until; /* UT_NEVER: the calm has to live with it */
    uint64_t mark_above;         /* bytes queued at the switch; UINT64_MAX for never */
    uint32_t groups;             /* of hosts, as many in each, behind links to a core; 0: one switch for all */
    uint64_t rate_core;          /* bytes per second of each such link */
    uint64_t host_rate;          /* bytes per second that a host may send in all, with headers; 0: any */
    bool rival;           /* a TCP flow shares host 0's link; what it gets is counted once the job has begun ... */
    uint32_t rival_after; /* ... so many ops */
    bool backpressure;    /* a full up-link blocks the sender instead of dropping */
    /* what the network does, parts per million */
    uint32_t loss, burst_enter, burst_leave, burst_loss, reorder, duplicate, corrupt, resize;
    ut_ns reorder_by;
    /* injections */
    ut_ns inject_every; /* mean; 0 for none */
    uint64_t inject;    /* mask of 1 << enum sim_cover: replay, misdeliver, garbage, forged, empty, evil */
    /* hosts */
    uint32_t packet_bytes, segments_max, receive_buffer;
    uint64_t receive_real;     /* bytes that really fit */
    ut_ns wake_max;            /* scheduler delay */
    ut_ns packet_cost;         /* CPU per packet received */
    ut_ns sent_cost;           /* CPU per packet sent */
    ut_ns batch_cost;          /* CPU per receive call and per burst sent, besides that of their packets */
    ut_ns wake_cost;           /* CPU per turn */
    bool wake_firm;            /* only a host that was idle sleeps, and what comes does not hasten its waking */
    uint64_t send_buffer;      /* bytes in the up-link at which a send blocks; 0: SIM_SEND_BUFFER */
    ut_ns send_time;           /* no more of them than the link takes in this time; 0: no such bound */
    uint32_t batch_max;        /* packets that one receive call coalesces */
    uint32_t receive_budget;   /* receive calls per turn */
    uint32_t bad_submission;   /* ppm */
    uint32_t suite;            /* of sealed packets: enum ut_suite, or the simulator's own; 0: they are not sealed */
    uint32_t key_life_packets; /* after which keys change; 0: as in a daemon */
    ut_ns key_life;            /* 0: as in a daemon */
    ut_ns new_secret;          /* so often each path gets a fresh secret; 0: never */
    bool keys_restless;        /* a packet that is held up may find its keys gone */
    sim_odd odd;
    bool evil;    /* one host lies: results mean nothing, but nobody may crash, hang, or write where it may not */
    bool hostile; /* one host lies about all it sends; what the others have of each other must be true all the same */
    sim_liar liar;
    sim_moving moving;
    bool faultless; /* nothing goes wrong and deadlines are wide: all must be COMPLETE */
    bool partial;   /* it was drawn to have partial jobs */
    bool coded;     /* ... and its first job is a coded one */
    bool sparse;    /* it was drawn to have sparse allreduces */
    bool quant;     /* it was drawn to have quantised allreduces */
    bool light;     /* only times count: all values are 0, no bytes are looked at, nothing is traced */
    bool study;     /* made by hand: nothing happens in it that nobody asked for */
    bool quiet;     /* faultless, one job of a few large ops that all call at once: who sends when can be told */
    uint32_t items;
    sim_item item[SIM_ITEMS];
} sim_plan;

/* plan.c: draws a world, of |hosts| (0: drawn, too); and the fixed one of the performance floor. */
void sim_plan_draw(sim_plan *plan, uint64_t seed, uint32_t hosts);
/* Of a world of ordinary jobs: makes some of them deterministic. What they hear and lack must be told as ever. */
void sim_plan_draw_deterministic(sim_plan *plan, uint64_t seed);
void sim_plan_perf(sim_plan *plan, uint32_t loss_ppm);
/* partial_plan.c: that world with partial jobs in it. */
void sim_plan_draw_partial(sim_plan *plan, uint64_t seed, uint32_t hosts);
/* That world whose partial jobs travel in few bits. */
void sim_plan_draw_partial_quant(sim_plan *p, uint64_t seed, uint32_t hosts);
/* coded_plan.c: that world with a coded job in it. */
enum sim_coded_kind { SIM_STAR, SIM_STAR_LINEAR, SIM_TREE };
void sim_plan_draw_coded(sim_plan *plan, uint64_t seed, uint32_t hosts, enum sim_coded_kind kind);
/* sparse_plan.c: with sparse allreduces. */
void sim_plan_draw_sparse(sim_plan *plan, uint64_t seed, uint32_t hosts);

/* quant_plan.c: with quantised allreduces. */
void sim_plan_draw_quant(sim_plan *plan, uint64_t seed, uint32_t hosts);
/* seats_plan.c: with one job whose hosts come and go. */
void sim_plan_draw_seats(sim_plan *plan, uint64_t seed, uint32_t hosts);

/* A set of one host or rank, and of the first |n|. */
static inline uint64_t sim_bit(uint32_t i)
{
    return UINT64_C(1) << i;
}

static inline uint64_t sim_first(uint32_t n)
{
    return n ? UINT64_MAX >> (64 - n) : 0;
}

static inline uint32_t sim_ones(uint64_t set)
{
    return (uint32_t)__builtin_popcountll(set);
}

static inline uint32_t sim_ranks_of(const sim_job_plan *j)
{
    uint32_t ranks = 0;
    for (uint32_t i = 0; i < j->hosts; i++)
        ranks += j->local[i];
    return ranks;
}

static inline bool sim_is_partial(const sim_job_plan *j)
{
    return j->options.policy > UT_POLICY_NONE;
}

/* A partial job, too. */
static inline bool sim_is_coded(const sim_job_plan *j)
{
    return j->options.policy == UT_POLICY_CODED;
}

static inline uint32_t sim_calm_ops(const sim_job_plan *j)
{
    return j->calm ? j->calm : SIM_CALM_OPS;
}

#endif
