/* SPDX-License-Identifier: Apache-2.0
 *
 * What a job has learnt of how long its stages take: for each size class of buckets the samples of the last 20 ops from
 * all hosts (t_B), and each host's newest expectation (t_C). deadline.h says what is made of them.
 *
 * Classes are powers of two, and a bucket is measured by its own class or else by the next larger one that is known:
 * the bound of a larger bucket is a bound. The paper has one t_B, of the largest bucket; an op of 64 KiB would then
 * wait as long as one of 25 MB for a packet that is gone.
 *
 * Other hosts' times come in the Timeout field: each sender says its latest time of that stage and class, so no clock
 * is ever compared with another host's.
 */
#ifndef UT_TIMING_H
#define UT_TIMING_H

#include "core/base/options.h"
#include "core/op/deadline.h"

enum {
    UT_CLASS_FIRST = 12, /* log2 of the bytes of the smallest class; all smaller buckets are in it */
    UT_CLASSES = 32 - UT_CLASS_FIRST + 1,
    UT_STAGE_SAMPLES_MAX = UT_WARM_UP_OPS * UT_HOSTS_MAX,
    UT_REFRESH_OPS = 5, /* t_B is looked at again every so many ops */
};

/* One class of buckets with the hosts of now. */
typedef struct ut_class_times {
    uint32_t ops;                                /* whose both stages were measured here */
    uint32_t samples[2];                         /* per stage, ever; the newest of them are kept */
    ut_ns t_b;                                   /* 0: warming up */
    ut_ns t_c[2][UT_HOSTS_MAX];                  /* newest of each host, this one's included; 0: not known */
    uint32_t sample_us[2][UT_STAGE_SAMPLES_MAX]; /* a ring of 20 ops of all hosts */
} ut_class_times;

typedef struct ut_timing {
    uint32_t hosts, self;
    ut_class_times of[UT_CLASSES];
} ut_timing;

/* What is in force for one op, fixed when it opens. */
typedef struct ut_times {
    ut_ns t_b;         /* 0: warming up, UT_NEVER: off */
    ut_ns t_c[2];      /* 0: not known, UT_NEVER: no early end */
    uint16_t field[2]; /* for the Timeout field of this host's packets */
} ut_times;

/* How a stage of an op ended here. */
typedef struct ut_stage_time {
    enum ut_stage_came came;
    ut_ns elapsed;
    uint64_t received, total; /* bytes */
    bool all_slow;            /* something came of every sender, and nobody's part was whole */
} ut_stage_time;

uint32_t ut_size_class(uint64_t bytes);
/* |t| is zeroed memory. */
void ut_timing_init(ut_timing *t, uint32_t hosts, uint32_t self);
/* Hosts came or went: all is measured anew. */
void ut_timing_reset(ut_timing *t);
/* |options| may name t_B and t_C by hand or switch them off. */
void ut_timing_in_force(const ut_timing *t, const ut_job_options *options, uint64_t bytes, ut_times *ret);
/* |host|'s Timeout field for |stage| (0 or 1) of a bucket of |bytes|; take each op's once. */
void ut_timing_heard(ut_timing *t, uint64_t bytes, unsigned stage, uint32_t host, uint16_t field);
/* A stage ended here, with |in_force| as it was for the op. */
void ut_timing_measured(ut_timing *t, uint64_t bytes, unsigned stage, const ut_times *in_force,
                        const ut_stage_time *how);

#endif
