/* SPDX-License-Identifier: Apache-2.0
 *
 * What a shell says of a job when it adds the job (ut_job_config), and what may change while the job runs
 * (ut_job_options). core/face/valid.c holds all ranges.
 */
#ifndef UT_OPTIONS_H
#define UT_OPTIONS_H

#include "core/base/ut.h"

/* The value for which 0 stands in some options, and the upper limits of others. */
enum {
    /* generated: numbers of options (schema/) */
    UT_INCAST_MAX = 15,
    UT_EARLY_PERCENT = 10,
    UT_PROBES = 2,
    UT_TAU = 8,
    UT_ETA = 4,
    /* generated: end */
};

/* How a job behaves, the same on all hosts. All zero is the default of everything. What may change while the job runs
 * changes with an epoch, from its first op on (core/epoch/epoch.h). */
typedef struct ut_job_options {
    /* generated: ut_job_options (schema/) */
    uint8_t algorithm;  /* schedule of the ops: enum ut_algorithm; 0: TAR */
    uint8_t congestion; /* what decides how fast a host sends: enum ut_congestion; 0: SWIFT */
    /* Whether buckets travel under a randomized Hadamard transform: enum ut_hadamard; 0: OFF. */
    uint8_t hadamard;
    uint8_t incast; /* hosts that one host hears at once, fewer than the job has; 0: dynamic */
    /* Percent of t_c that are waited after the last packets of all senders were seen; 0: UT_EARLY_PERCENT. */
    uint8_t early_percent;
    uint8_t policy;           /* what starts an op: enum ut_policy; 0: NONE */
    uint8_t tau;              /* ops in a row that a rank may miss before one waits for it; 0: UT_TAU */
    uint8_t eta;              /* steps between the oldest and the newest contribution that a rank combines; 0: UT_ETA */
    uint64_t t_b_ns;          /* hard bound of a stage; 0: measured; UT_NEVER: off */
    uint64_t t_c_ns;          /* expected time of a stage; 0: measured; UT_NEVER: off */
    uint64_t delay_target_ns; /* queueing delay that the congestion control aims for; 0: automatic */
    uint32_t quorum;          /* ranks that must have given, with the policy quorum; 0: half of them, rounded up */
    /* Ranks that are asked, or drawn, for each op, with the policies probe and seeded; 0: UT_PROBES. */
    uint32_t probes;
    /* Seed of the draws of the policies majority, probe and seeded; 0: one made from the job's generation. */
    uint64_t policy_seed;
    uint8_t timer_start; /* when t_b begins to run, in best effort: enum ut_timer_start; 0: RENDEZVOUS */
    /* Coded jobs: children of each parent that may be late; in a star all ranks are the children; 0: none. */
    uint8_t stragglers;
    uint8_t children; /* coded jobs: children of each parent in the tree of the ranks; 0: star */
    uint8_t code;     /* coded jobs: how the children of a parent share its data: enum ut_code; 0: GROUPS */
    /* Coded jobs: whether a step fails whose sum over all data cannot be had: enum ut_exact; 0: YES. */
    uint8_t exact;
    /* Whether large allreduces are split over the lanes of the job, and how many lanes it has: enum ut_split; 0:
     * AUTO. */
    uint8_t split;
    /* Whether the bits of a sum are the same whatever order contributions come in: enum ut_deterministic; 0: NO. */
    uint8_t deterministic;
    uint8_t reserved[1]; /* nothing yet */
    /* generated: end */
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
