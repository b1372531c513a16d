/* SPDX-License-Identifier: Apache-2.0
 *
 * What a shell says of a job when it adds the job (ut_job_config), and what may change while the job runs
 * (ut_job_options). core/face/valid.c holds all ranges.
 */
#ifndef UT_OPTIONS_H
#define UT_OPTIONS_H

#include "core/base/ut.h"

/* The value for which 0 stands in some options, and the upper limits of others. ultima.v1.job_options holds the same
 * for Python; a test compares them. */
enum {
    UT_INCAST_MAX = 15,
    UT_EARLY_PERCENT = 10,
    UT_TAU = 8,
    UT_ETA = 4,
    UT_PROBES = 2,
};

/* How a job behaves. All zero is the default of everything. `algorithm` is fixed when the job is added and must be the
 * same on all hosts; the rest may be changed while it runs (ut_engine_job_tune), from the next op on. */
typedef struct ut_job_options {
    uint8_t algorithm;        /* enum ut_algorithm; 0: TAR */
    uint8_t congestion;       /* enum ut_congestion; 0: Swift */
    uint8_t hadamard;         /* enum ut_hadamard; 0: off */
    uint8_t incast;           /* factor I, 1 .. UT_INCAST_MAX: senders that a host hears at once; 0: dynamic */
    uint8_t early_percent;    /* x: share of t_C to wait after the tail was seen; 0: UT_EARLY_PERCENT */
    uint8_t policy;           /* enum ut_policy; 0: NONE. It cannot be changed from NONE to another policy or back */
    uint8_t tau;              /* ops in a row that a rank may miss before an op waits for it; 0: UT_TAU */
    uint8_t eta;              /* trainers' bound on what they combine, which receipts tell; 0: UT_ETA */
    uint64_t t_b_ns;          /* hard bound of a stage; 0: measured, UT_NEVER: off */
    uint64_t t_c_ns;          /* expected time of a stage; 0: measured, UT_NEVER: no early end */
    uint64_t delay_target_ns; /* queueing that Swift and TIMELY aim for; 0: their own choice */
    uint32_t quorum;          /* k of QUORUM, 1 .. ranks of the job; 0: half of them, rounded up */
    uint32_t probes;          /* q of PROBE and SEEDED, 1 .. ranks of the job; 0: UT_PROBES, or 1 of one */
    uint64_t policy_seed;     /* seed of the draws of MAJORITY and SEEDED */
    uint64_t policy_from;     /* op_seq from which policy, tau, quorum and probes hold; before it, those of before */
    uint8_t timer_start;      /* enum ut_timer_start; 0: RENDEZVOUS */
    /* Of coded jobs, and fixed when the job is added. */
    uint8_t stragglers; /* ranks of each group that may be late, so that a group has one more */
    uint8_t children;   /* of each parent in a tree; 0: a star */
    uint8_t code;       /* enum ut_code; 0: GROUPS */
    uint8_t exact;      /* enum ut_exact; 0: YES */
    uint8_t split;      /* of all jobs: enum ut_split; 0: AUTO */
    /* enum ut_deterministic; 0: NO. YES: what contributions sum up to does not depend on the order in which they come.
     * Fixed when the job is added, and the same on all hosts. */
    uint8_t deterministic;
    uint8_t reserved[1];
} ut_job_options;

/* The algorithm that runs. */
static inline unsigned ut_options_algorithm(const ut_job_options *o)
{
    return o->children ? UT_TREE : o->algorithm ? o->algorithm : UT_TAR;
}

static inline bool ut_options_deterministic(const ut_job_options *o)
{
    return o->deterministic > UT_DETERMINISTIC_NO;
}

struct ut_cipher;

typedef struct ut_job_config {
    uint32_t hosts;            /* 1 .. UT_HOSTS_MAX */
    uint32_t self;             /* this host's index, < hosts */
    uint32_t local_ranks;      /* ranks of this job on this host, 1 .. UT_LOCAL_MAX */
    uint32_t packet_bytes;     /* the job's stride, the same on all hosts: the least of their packet_bytes */
    uint32_t world;            /* ranks of the job on all hosts, >= hosts; 0: one a host */
    uint64_t bucket_bytes_max; /* largest bucket; <= UT_BUCKET_MAX */
    uint64_t rate_bytes_per_s; /* this job's share of the link; 0 is unlimited */
    uint64_t first_op_seq;     /* 0, or where the job stands when a host joins again */
    /* Ranks on each host; all 0: local_ranks here, and the rest of the world spread evenly. Ranks are numbered by host,
     * and by place on their host. */
    uint8_t ranks_of[UT_HOSTS_MAX];
    ut_job_options options;
    const struct ut_cipher *cipher; /* of all datagrams (core/wire/seal.h), the same on all hosts; NULL: none */
} ut_job_config;

/* Ranks of the job. */
static inline uint32_t ut_world_of(const ut_job_config *c)
{
    return c->world ? c->world : c->hosts;
}

#endif
