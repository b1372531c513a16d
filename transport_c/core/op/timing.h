/* SPDX-License-Identifier: Apache-2.0
 *
 * What a job has learnt about how long its stages take. For each size class of buckets it keeps the samples of the last
 * 20 ops from all hosts, from which t_B is made, and each host's newest expectation, from which t_C is made. deadline.h
 * says how.
 *
 * Size classes are powers of two. A bucket is bounded by its own class or, while that is not known, by the next larger
 * class that is: the bound of a larger bucket is a bound, too. The paper has one t_B, of the largest bucket; an op of
 * 64 KiB would then wait as long as one of 25 MB for a packet that is lost.
 *
 * The times of other hosts come in the Timeout field, in which each sender says its latest time of that stage and
 * class. So no clock is ever compared with the clock of another host.
 */
#ifndef UT_TIMING_H
#define UT_TIMING_H

#include "core/base/options.h"
#include "core/base/what.h"
#include "core/op/deadline.h"

enum {
    UT_CLASS_FIRST = 12, /* log2 of the bytes of the smallest class, which also holds all smaller buckets */
    UT_CLASSES = 32 - UT_CLASS_FIRST + 1,
    UT_STAGE_SAMPLES_MAX = UT_WARM_UP_OPS * UT_HOSTS_MAX,
    UT_REFRESH_OPS = 5, /* t_B is computed again every so many ops */
};

/* One class of buckets, measured with the hosts that the job has now. */
typedef struct ut_class_times {
    uint32_t ops;                                /* ops of which both stages were measured here */
    uint32_t samples[2];                         /* per stage, ever taken; only the newest are kept */
    ut_ns t_b;                                   /* 0: warming up */
    ut_ns slower;                                /* what t_B is to be at least once the next op has ended */
    ut_ns t_c[2][UT_HOSTS_MAX];                  /* the newest of each host, this one included; 0: not known */
    uint32_t sample_us[2][UT_STAGE_SAMPLES_MAX]; /* a ring with the samples of 20 ops from all hosts */
} ut_class_times;

typedef struct ut_timing {
    uint32_t hosts, self;
    ut_class_times of[2 * UT_CLASSES]; /* by bytes, then of UT_TIMED_APART */
} ut_timing;

/* The bounds in force for one op, fixed when the op opens. */
typedef struct ut_times {
    ut_ns t_b;    /* 0: warming up, UT_NEVER: off */
    bool own;     /* t_b is of this size; else it was borrowed from a larger one, and is good for deadlines alone */
    ut_ns t_c[2]; /* 0: not known, UT_NEVER: no early end */
    uint16_t field[2]; /* value of the Timeout field in this host's packets */
} ut_times;

/* How a stage of an op ended here. */
typedef struct ut_stage_time {
    enum ut_stage_came came;
    ut_ns elapsed;
    uint64_t received, total; /* bytes */
    bool most_slow;           /* from most senders something came, and not their whole part */
} ut_stage_time;

/* |bytes| is ut_op_what.timed here and below. */
uint32_t ut_size_class(uint64_t bytes);
/* |t| is zeroed memory. */
void ut_timing_init(ut_timing *t, uint32_t hosts, uint32_t self);
/* Forgets everything: hosts came or went, and the times are measured anew. */
void ut_timing_reset(ut_timing *t);
/* Returns the bounds for a bucket of |bytes|. |options| may set t_B and t_C by hand or switch them off. */
void ut_timing_in_force(const ut_timing *t, const ut_job_options *options, uint64_t bytes, ut_times *ret);
/* Takes |host|'s Timeout field for |stage| (0 or 1) of a bucket of |bytes|. To be called once per op, host and stage.
 */
void ut_timing_heard(ut_timing *t, uint64_t bytes, unsigned stage, uint32_t host, uint16_t field);
/* Takes the time of a stage that ended here. |in_force| are the bounds that the op had. */
void ut_timing_measured(ut_timing *t, uint64_t bytes, unsigned stage, const ut_times *in_force,
                        const ut_stage_time *how);

#endif
