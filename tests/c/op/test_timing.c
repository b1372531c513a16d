/* SPDX-License-Identifier: Apache-2.0
 *
 * What a job learns of its stages: the warm-up's list, classes, what is agreed among hosts, and how t_B follows.
 */
#include "check.h"

#include "core/op/timing.h"

enum { BIG = 25 << 20, SMALL = 64 << 10 };

static const ut_job_options measured;

static ut_timing *fresh(uint32_t hosts)
{
    ut_timing *t = calloc(1, sizeof *t);
    ut_timing_init(t, hosts, 0);
    return t;
}

static ut_times in_force(const ut_timing *t, const ut_job_options *o, uint64_t bytes)
{
    ut_times times;
    ut_timing_in_force(t, o, bytes, &times);
    return times;
}

static void stage(ut_timing *t, uint64_t bytes, unsigned stage, enum ut_stage_came came, ut_ns elapsed,
                  uint64_t received)
{
    ut_times times = in_force(t, &measured, bytes);
    ut_stage_time how = {.came = came, .elapsed = elapsed, .received = received, .total = 1000};
    ut_timing_measured(t, bytes, stage, &times, &how);
}

static void complete(ut_timing *t, uint64_t bytes, ut_ns first, ut_ns second)
{
    stage(t, bytes, 0, UT_CAME_COMPLETE, first, 1000);
    stage(t, bytes, 1, UT_CAME_COMPLETE, second, 1000);
}

static void ut_size_class__powers_of_two(void)
{
    static const struct {
        uint64_t bytes;
        uint32_t class;
    } rows[] = {{0, 0},         {4096, 0},      {4097, 1},      {8192, 1},        {8193, 2},       {SMALL, 4},
                {SMALL + 1, 5}, {16 << 20, 12}, {25 << 20, 13}, {UINT32_MAX, 20}, {1ull << 40, 20}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_EQ(ut_size_class(rows[i].bytes), rows[i].class);
}

/* docs/papers.md, section 1.9: 20 ops, two stages, six hosts; the 240 times are 1 .. 240 ms, and t_B is 228. */
static void warm_up__percentile_over_hosts_and_stages(void)
{
    ut_timing *t = fresh(6);
    for (uint32_t op = 0; op < UT_WARM_UP_OPS; op++) {
        CHECK_EQ(in_force(t, &measured, BIG).t_b, 0);
        CHECK_EQ(in_force(t, &measured, BIG).t_c[0], 0);
        for (unsigned s = 0; s < 2; s++)
            for (uint32_t h = 1; h < 6; h++)
                ut_timing_heard(t, BIG, s, h, (uint16_t)(10 * ((op * 2 + s) * 6 + h + 1)));
        complete(t, BIG, (op * 12 + 1) * UT_MS, (op * 12 + 7) * UT_MS);
    }
    ut_times times = in_force(t, &measured, BIG);
    CHECK_EQ(times.t_b, 228 * UT_MS);
    /* Hosts 1 .. 5 said 230 .. 234 last; ours begins at the median of stage 1's list, 114. */
    CHECK_EQ(times.t_c[0], 231500 * UT_US);
    CHECK_EQ(times.field[0], 1140);
    CHECK_EQ(times.field[1], 1200);
    free(t);
}

static void warm_up__says_its_latest_time(void)
{
    ut_timing *t = fresh(2);
    CHECK_EQ(in_force(t, &measured, BIG).field[0], 0);
    complete(t, BIG, 30 * UT_MS, 40 * UT_MS);
    complete(t, BIG, 35 * UT_MS, 50 * UT_MS);
    CHECK_EQ(in_force(t, &measured, BIG).field[0], 350);
    CHECK_EQ(in_force(t, &measured, BIG).field[1], 500);
    CHECK_EQ(in_force(t, &measured, SMALL).field[0], 0);
    free(t);
}

static void warmed(ut_timing *t, uint64_t bytes, ut_ns time)
{
    for (uint32_t op = 0; op < UT_WARM_UP_OPS; op++)
        complete(t, bytes, time, time);
}

static void classes__a_larger_one_bounds_a_smaller(void)
{
    ut_timing *t = fresh(2);
    warmed(t, BIG, 100 * UT_MS);
    CHECK_EQ(in_force(t, &measured, SMALL).t_b, 100 * UT_MS);
    CHECK(!in_force(t, &measured, SMALL).own && in_force(t, &measured, BIG).own);
    CHECK_EQ(in_force(t, &measured, SMALL).t_c[0], 0);
    CHECK_EQ(in_force(t, &measured, 2 * BIG).t_b, 0); /* not the other way round */
    complete(t, SMALL, UT_MS, UT_MS);
    CHECK_EQ(in_force(t, &measured, SMALL).t_b, 100 * UT_MS);
    CHECK_EQ(in_force(t, &measured, SMALL).t_c[0], UT_MS);
    warmed(t, SMALL, UT_MS);
    CHECK_EQ(in_force(t, &measured, SMALL).t_b, UT_MS);
    CHECK(in_force(t, &measured, SMALL).own);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 100 * UT_MS);
    free(t);
}

static void reset__forgets(void)
{
    ut_timing *t = fresh(2);
    warmed(t, BIG, 100 * UT_MS);
    ut_timing_heard(t, BIG, 0, 1, 1000);
    ut_timing_reset(t);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 0);
    warmed(t, BIG, 50 * UT_MS);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 50 * UT_MS);
    CHECK_EQ(in_force(t, &measured, BIG).t_c[0], 50 * UT_MS);
    free(t);
}

static void options__by_hand_and_off(void)
{
    ut_timing *t = fresh(2);
    const ut_job_options hand = {.t_b_ns = 70 * UT_MS, .t_c_ns = 30 * UT_MS},
                         off = {.t_b_ns = UT_NEVER, .t_c_ns = UT_NEVER};
    CHECK_EQ(in_force(t, &hand, BIG).t_b, 70 * UT_MS);
    CHECK_EQ(in_force(t, &hand, BIG).t_c[1], 30 * UT_MS);
    warmed(t, BIG, 100 * UT_MS);
    CHECK_EQ(in_force(t, &hand, BIG).t_b, 70 * UT_MS);
    CHECK_EQ(in_force(t, &off, BIG).t_b, UT_NEVER);
    CHECK_EQ(in_force(t, &off, BIG).t_c[0], UT_NEVER);
    free(t);
}

/* After the warm-up, with t_B and everybody's t_C at 50 ms: the samples of docs/papers.md, section 1.9, move t_C, and
 * the median is agreed. */
static void t_c__moves_from_the_agreed_median(void)
{
    ut_timing *t = fresh(3);
    warmed(t, BIG, 50 * UT_MS);
    ut_timing_heard(t, BIG, 0, 1, 500);
    ut_timing_heard(t, BIG, 0, 2, 500);
    stage(t, BIG, 0, UT_CAME_COMPLETE, 40 * UT_MS, 1000);
    CHECK_EQ(in_force(t, &measured, BIG).field[0], 405);
    ut_timing_heard(t, BIG, 0, 1, 595);
    CHECK_EQ(in_force(t, &measured, BIG).t_c[0], 50 * UT_MS); /* of 40.5, 59.5, 50 */
    stage(t, BIG, 0, UT_CAME_EARLY, 36 * UT_MS, 900);
    CHECK_EQ(in_force(t, &measured, BIG).field[0], 405); /* 40 again, from 50 again: not from our own 40.5 */
    stage(t, BIG, 0, UT_CAME_EXPIRED, 50 * UT_MS, 300);
    CHECK_EQ(in_force(t, &measured, BIG).field[0], 500);
    free(t);
}

static void t_b__follows_complete_stages(void)
{
    ut_timing *t = fresh(2);
    warmed(t, BIG, 100 * UT_MS);
    for (int op = 0; op < 2 * UT_WARM_UP_OPS + 5; op++)
        complete(t, BIG, 60 * UT_MS, 60 * UT_MS);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 60 * UT_MS);
    for (int op = 0; op < UT_REFRESH_OPS; op++)
        complete(t, BIG, 90 * UT_MS, 90 * UT_MS);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 90 * UT_MS); /* 10 of 80 samples are more than 5 % */
    free(t);
}

/* Stages of 99 to 101 ms: one that takes 105 is no stranger, as the 95th percentile alone would have it. After a
 * warm-up without repairs the same holds once five more ops were seen. */
static void t_b__cuts_off_what_is_far_out(void)
{
    ut_timing *t = fresh(2);
    for (uint32_t op = 0; op < UT_WARM_UP_OPS; op++)
        complete(t, BIG, (99 + op % 3) * UT_MS, (99 + op % 3) * UT_MS);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 101 * UT_MS);
    for (uint32_t op = 0; op < UT_REFRESH_OPS; op++)
        complete(t, BIG, (99 + op % 3) * UT_MS, (99 + op % 3) * UT_MS);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, (101 + 3 * 2) * UT_MS);
    free(t);
}

static void ut_t_b_unrepaired__is_the_percentile_or_the_fence(void)
{
    uint32_t samples[100];
    for (uint32_t i = 0; i < 100; i++)
        samples[i] = 1000 + (i * 37) % 100; /* 1000 .. 1099 in some order: quartiles 1024 and 1074 */
    CHECK_EQ(ut_t_b_unrepaired(samples, 100), 1074 + 3 * 50);
    for (uint32_t i = 0; i < 100; i++)
        samples[i] = i < 90 ? 1000 : 5000; /* the quartiles know nothing of a tenth of the samples */
    CHECK_EQ(ut_t_b_unrepaired(samples, 100), 5000);
    for (uint32_t i = 0; i < 100; i++)
        samples[i] = i < 50 ? 10 : 1000; /* whatever the spread, twice what hardly any exceeds */
    CHECK_EQ(ut_t_b_unrepaired(samples, 100), 2000);
    samples[0] = UINT32_MAX;
    CHECK_EQ(ut_t_b_unrepaired(samples, 1), UINT32_MAX);
}

/* Both stages of ops end at t_B, or, where |cut| is not 0, at a deadline before it. */
static void expire(ut_timing *t, unsigned ops, bool most_slow, uint64_t received, ut_ns cut)
{
    for (unsigned op = 0; op < ops; op++)
        for (unsigned s = 0; s < 2; s++) {
            ut_times times = in_force(t, &measured, BIG);
            ut_stage_time how = {UT_CAME_EXPIRED, cut ? cut : times.t_b, received, 1000, most_slow};
            ut_timing_measured(t, BIG, s, &times, &how);
        }
}

/* With each op, for as many hosts as there may be: what most lacked says how much, twice at most. */
static void t_b__grows_at_once_when_most_are_slow_and_not_for_one_slow_host(void)
{
    static const uint32_t hosts[] = {2, 4, UT_HOSTS_MAX};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        ut_timing *t = fresh(hosts[i]);
        warmed(t, BIG, 100 * UT_MS);
        expire(t, 50, false, 500, 0);
        CHECK_EQ(in_force(t, &measured, BIG).t_b, 100 * UT_MS);
        expire(t, 50, true, 500, 99 * UT_MS); /* the caller's deadline ended it */
        CHECK_EQ(in_force(t, &measured, BIG).t_b, 100 * UT_MS);
        expire(t, 1, true, 800, 0);
        CHECK_EQ(in_force(t, &measured, BIG).t_b, 125 * UT_MS);
        expire(t, 2, true, 100, 0);
        CHECK_EQ(in_force(t, &measured, BIG).t_b, 500 * UT_MS);
        free(t);
    }
}

/* What was measured before the network became slower is no sample of what it is now. */
static void t_b__forgets_the_times_of_before(void)
{
    ut_timing *t = fresh(4);
    warmed(t, BIG, 100 * UT_MS);
    expire(t, 2, true, 100, 0);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 400 * UT_MS);
    for (unsigned op = 0; op < UT_REFRESH_OPS; op++)
        complete(t, BIG, 350 * UT_MS, 350 * UT_MS);
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 350 * UT_MS);
    expire(t, UT_REFRESH_OPS, false, 500, 0); /* no sample at all */
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 350 * UT_MS);
    free(t);
}

/* A tight deadline of a caller tells nothing while t_B is not known. */
static void expired__before_t_b_is_known_is_no_sample(void)
{
    ut_timing *t = fresh(2);
    for (int op = 0; op < 3 * UT_WARM_UP_OPS; op++) {
        stage(t, BIG, 0, UT_CAME_EXPIRED, UT_MS, 100);
        stage(t, BIG, 1, UT_CAME_EXPIRED, UT_MS, 100);
    }
    CHECK_EQ(in_force(t, &measured, BIG).t_b, 0);
    CHECK_EQ(in_force(t, &measured, BIG).field[0], 0);
    free(t);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_size_class__powers_of_two);
    RUN(warm_up__percentile_over_hosts_and_stages);
    RUN(warm_up__says_its_latest_time);
    RUN(classes__a_larger_one_bounds_a_smaller);
    RUN(reset__forgets);
    RUN(options__by_hand_and_off);
    RUN(t_c__moves_from_the_agreed_median);
    RUN(t_b__follows_complete_stages);
    RUN(t_b__cuts_off_what_is_far_out);
    RUN(ut_t_b_unrepaired__is_the_percentile_or_the_fence);
    RUN(t_b__grows_at_once_when_most_are_slow_and_not_for_one_slow_host);
    RUN(t_b__forgets_the_times_of_before);
    RUN(expired__before_t_b_is_known_is_no_sample);
    return check_end();
}
