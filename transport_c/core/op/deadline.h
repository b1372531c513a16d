/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a stage may take (docs/papers.md, sections 1.5 and 1.6): pure functions of samples, without state. timing.c
 * keeps the samples.
 *
 * t_B is the hard bound of a stage: the 95th percentile of the times that complete stages took on all hosts in the
 * warm-up. These hold repairs, which later ones of best effort do not. Times that are close together would then be cut
 * off at what is hardly later than usual: of two stages on each of four hosts one is, in a third of all ops. So later
 * t_B is at least Tukey's outer fence, beyond which a value is far out (J. Tukey, Exploratory Data Analysis, 1977). t_C
 * is the time that a stage is expected to take: each host has a moving average, and t_C is the median of those. The
 * *tail* of a sender is the last hundredth of its packets. Once the tails of all senders were seen and nothing more
 * comes for a share x of t_C, waiting longer would bring little, and the stage ends early.
 */
#ifndef UT_DEADLINE_H
#define UT_DEADLINE_H

#include "core/base/ut.h"

enum {
    UT_TIMEOUT_UNIT_US = 100, /* unit of the ULTIMA header's Timeout field */
    UT_T_B_PERCENT = 95,
    UT_T_B_FENCE = 3,  /* times the distance of the quartiles, beyond the upper one: farther is far out (Tukey) */
    UT_T_B_SPREAD = 2, /* times the percentile, at most */
    UT_T_C_ALPHA_PERCENT = 95, /* weight of the newest sample in the moving average */
    UT_WARM_UP_OPS = 20,
};

/* A stage's time as the value of the Timeout field: units of 100 us, rounded up, at most 0xffff; 0 for none. */
uint16_t ut_timeout_field(ut_ns time);
/* The time that a value of the Timeout field stands for; 0xffff is 6.5535 s. */
ut_ns ut_timeout_time(uint16_t field);

/* The percentile by nearest rank: the ceil(percent/100 * n)-th smallest of |samples|, whose order it changes. n >= 1,
 * percent 1 .. 100. */
uint32_t ut_percentile(uint32_t *samples, uint32_t n, uint32_t percent);
/* t_B by |samples| of ops after the warm-up, whose order it changes: their percentile or their outer fence,
 * whichever is more, but at most twice the percentile. n >= 1. */
uint32_t ut_t_b_unrepaired(uint32_t *samples, uint32_t n);
/* The median of |values|, whose order it changes; of an even number, the mean of the middle two. 0 for n = 0. */
ut_ns ut_median(ut_ns *values, uint32_t n);

enum ut_stage_came { UT_CAME_COMPLETE, UT_CAME_EXPIRED, UT_CAME_EARLY };
/* The sample for t_C of a stage that ended after |elapsed|, with |received| of |total| bytes. For a complete stage it
 * is |elapsed|. For one that ran into t_B it is t_B. For one that ended early it is |elapsed| in proportion to the
 * bytes that came, at most t_B. |t_b| 0: there is no bound. */
ut_ns ut_t_c_sample(enum ut_stage_came came, ut_ns elapsed, ut_ns t_b, uint64_t received, uint64_t total);
/* alpha * sample + (1 - alpha) * before. If there was none before (0) it is the sample itself. */
ut_ns ut_t_c_next(ut_ns sample, ut_ns before);
/* |percent| of t_C, at least 100 us: t_C is not known better than that. A sender with a limit rests between two of its
 * bursts for |pause|, 0 without a limit: that is no end, and comes on top. */
ut_ns ut_early_wait(ut_ns t_c, uint32_t percent, ut_ns pause);

/* How long after its start stage 1 gives up on what is missing, for an op that has |length| from start to deadline.
 * Stage 2 keeps 5/4 of its expected time, or of half the expected time of both if that is more, because stages may
 * overlap. If |length| is too short for both stages, each gets its share. t_c[i] is 0 if it is not known; then stage 1
 * has half. */
ut_ns ut_stage1_cut(ut_ns length, const ut_ns t_c[2]);
/* How much of that time a host may wait for its own ranks to call, before it begins stage 1: all that both stages are
 * not expected to need, but at least half of stage 1's share; that is a quarter of all while nothing is known. */
ut_ns ut_gather_cut(ut_ns length, const ut_ns t_c[2]);

/* The deadline, counted from its start, of an op whose caller named none. Each stage may take four times t_B, which 95
 * % of them stay below. A second is left for trouble that has nothing to do with the op's size: lost probes (200 ms
 * apart at most), a host that swaps or collects garbage. */
ut_ns ut_adaptive_deadline(ut_ns t_b);

/* Whether a repair can still come before the receiver's deadline, which is |left| away; a later one would only delay
 * others. There must be time for the round trip, for the |backlog_bytes| that go before it at |bytes_per_s| (0:
 * unknown, and the backlog is taken for none), and for |margin|. */
bool ut_repair_in_time(ut_ns left, ut_ns srtt, ut_ns margin, uint64_t backlog_bytes, uint64_t bytes_per_s);

#endif
