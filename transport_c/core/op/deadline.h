/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a stage may take (SPEC 1a.5, 1a.6): pure functions of samples, no state. timing.c keeps the samples.
 *
 * t_B bounds a stage hard: the 95th percentile of how long complete stages took on all hosts. t_C is what a stage is
 * expected to take: a moving average per host, and of those the median. Once the tail of every sender was seen and
 * nothing more comes for a share x of t_C, waiting on would buy little, and the stage ends early.
 */
#ifndef UT_DEADLINE_H
#define UT_DEADLINE_H

#include "core/base/ut.h"

enum {
    UT_TIMEOUT_UNIT_US = 100, /* of the ULTIMA header's Timeout field */
    UT_T_B_PERCENT = 95,
    UT_T_C_ALPHA_PERCENT = 95, /* weight of the newest sample */
    UT_WARM_UP_OPS = 20,
};

/* A stage's time as the Timeout field says it: units of 100 us, rounded up, saturating at 0xffff; 0 for none. */
uint16_t ut_timeout_field(ut_ns time);
/* And back; 0xffff is 6.5535 s. */
ut_ns ut_timeout_time(uint16_t field);

/* Nearest rank: the ceil(percent/100 * n)-th smallest of |samples|, which are put into another order. n >= 1, percent
 * 1 .. 100. */
uint32_t ut_percentile(uint32_t *samples, uint32_t n, uint32_t percent);
/* The middle one; of an even number, the mean of the middle two. |values| are put into another order. 0 for n = 0. */
ut_ns ut_median(ut_ns *values, uint32_t n);

enum ut_stage_came { UT_CAME_COMPLETE, UT_CAME_EXPIRED, UT_CAME_EARLY };
/* What a stage that ended after |elapsed| tells of its expected time: that time; t_B if it ran into it; or, ended
 * early, the time in proportion to what came, at most t_B (0: no bound). |received| of |total| bytes came. */
ut_ns ut_t_c_sample(enum ut_stage_came came, ut_ns elapsed, ut_ns t_b, uint64_t received, uint64_t total);
/* alpha * sample + (1 - alpha) * before; the sample itself if there was none before (0). */
ut_ns ut_t_c_next(ut_ns sample, ut_ns before);
/* x percent of t_C, at least 100 us: nobody knows t_C better than that. */
ut_ns ut_early_wait(ut_ns t_c, uint32_t percent);

/* When stage 1 of an op that has |length| from start to deadline gives up on what is missing, after its start: so that
 * stage 2 keeps its expected time, and half of the op's where stages have been seen to overlap, with a quarter more. Of
 * a deadline too tight for both each stage gets its share. t_c[i]: 0 for unknown; then it is half. */
ut_ns ut_stage1_cut(ut_ns length, const ut_ns t_c[2]);

/* The deadline of an op whose caller named none, after its start. Each stage may take four times what 95 % of them stay
 * below, and a second is left for what has nothing to do with the op's size: lost probes (200 ms apart at most), a host
 * that swaps or collects garbage. */
ut_ns ut_adaptive_deadline(ut_ns t_b);

/* A repair that would come after the receiver's deadline only delays others: it must leave time for the round trip, for
 * what goes before it at |bytes_per_s| (0: unknown, taken for none), and for |margin|. */
bool ut_repair_in_time(ut_ns left, ut_ns srtt, ut_ns margin, uint64_t backlog_bytes, uint64_t bytes_per_s);

#endif
