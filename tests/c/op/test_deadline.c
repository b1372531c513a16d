/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a stage may take: the examples of docs/papers.md, section 1.9, the Timeout field's edges, and a sorted list
 * as the second opinion.
 */
#include "check.h"

#include "core/op/deadline.h"

static void ut_timeout_field__units_round_up_and_saturate(void)
{
    static const struct {
        ut_ns time;
        uint16_t field;
    } rows[] = {
        /* 1 */ {0, 0},
        /* 2 */ {1, 1},
        /* 3 */ {100 * UT_US, 1},
        /* 4 */ {100 * UT_US + 1, 2},
        /* 5 */ {320 * UT_MS, 3200},
        /* 6 */ {6553400 * UT_US, 65534},
        /* 7 */ {6553401 * UT_US, 65535},
        /* 8 */ {6553500 * UT_US, 65535},
        /* 9 */ {UT_NEVER, 65535},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_EQ(ut_timeout_field(rows[i].time), rows[i].field);
    CHECK_EQ(ut_timeout_time(0), 0);
    CHECK_EQ(ut_timeout_time(3200), 320 * UT_MS);
    CHECK_EQ(ut_timeout_time(65535), 6553500 * UT_US);
}

static void shuffle(uint32_t *v, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t at = (uint32_t)check_below(i), swap = v[i - 1];
        v[i - 1] = v[at];
        v[at] = swap;
    }
}

static void ut_percentile__spec_vectors(void)
{
    static const struct {
        uint32_t n, percent, want;
    } rows[] = {
        /* 1: t_B */ {240, 95, 228},
        /* 2 */ {100, 95, 95},
        /* 3 */ {1, 95, 1},
        /* 4 */ {20, 95, 19},
        /* 5 */ {21, 95, 20},
        /* 6 */ {7, 100, 7},
        /* 7 */ {7, 1, 1},
    };
    check_reseed(1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t v[240];
        for (uint32_t k = 0; k < rows[i].n; k++)
            v[k] = k + 1;
        shuffle(v, rows[i].n);
        CHECK_EQ(ut_percentile(v, rows[i].n, rows[i].percent), rows[i].want);
    }
}

static int by_value(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, 4);
    memcpy(&y, b, 4);
    return x < y ? -1 : x > y;
}

static void ut_percentile__is_that_of_the_sorted_list(void)
{
    check_reseed(2);
    for (int round = 0; round < 3000; round++) {
        uint32_t v[300], sorted[300], n = 1 + (uint32_t)check_below(300), values = 1 + (uint32_t)check_below(400);
        for (uint32_t i = 0; i < n; i++)
            v[i] = sorted[i] = (uint32_t)check_below(values);
        qsort(sorted, n, sizeof *sorted, by_value);
        uint32_t percent = 1 + (uint32_t)check_below(100);
        uint32_t rank = 1;
        while (rank * 100 < n * percent)
            rank++;
        CHECK_EQ(ut_percentile(v, n, percent), sorted[rank - 1]);
    }
}

static void ut_median__even_and_odd(void)
{
    ut_ns three[] = {40500, 59500, 50000}, four[] = {59500, 40500, 50000, 42000}, one[] = {7};
    ut_ns wide[] = {UT_NEVER, UT_NEVER - 2};
    CHECK_EQ(ut_median(three, 3), 50000);
    CHECK_EQ(ut_median(four, 4), 46000);
    CHECK_EQ(ut_median(one, 1), 7);
    CHECK_EQ(ut_median(wide, 2), UT_NEVER - 1);
    CHECK_EQ(ut_median(one, 0), 0);
}

/* docs/papers.md, section 1.9, in milliseconds: before 50, alpha 0.95. */
static void ut_t_c__spec_vectors(void)
{
    static const struct {
        enum ut_stage_came came;
        unsigned elapsed_ms;
        uint64_t received, total;
        unsigned sample_us, next_us;
    } rows[] = {
        /* 1: on time */ {UT_CAME_COMPLETE, 40, 1000, 1000, 40000, 40500},
        /* 2: ran into t_B = 60 */ {UT_CAME_EXPIRED, 60, 300, 1000, 60000, 59500},
        /* 3: early */ {UT_CAME_EARLY, 45, 900, 1000, 50000, 50000},
        /* 4: early, capped at t_B */ {UT_CAME_EARLY, 55, 500, 1000, 60000, 59500},
        /* 5: early with nothing */ {UT_CAME_EARLY, 1, 0, 1000, 60000, 59500},
        /* 6: complete is never capped */ {UT_CAME_COMPLETE, 90, 1000, 1000, 90000, 88000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_ns sample =
            ut_t_c_sample(rows[i].came, rows[i].elapsed_ms * UT_MS, 60 * UT_MS, rows[i].received, rows[i].total);
        CHECK_EQ(sample, rows[i].sample_us * UT_US);
        CHECK_EQ(ut_t_c_next(sample, 50 * UT_MS), rows[i].next_us * UT_US);
    }
    CHECK_EQ(ut_t_c_next(123456789, 0), 123456789);
    CHECK_EQ(ut_t_c_sample(UT_CAME_EXPIRED, 70 * UT_MS, 0, 1, 2), 70 * UT_MS);
    CHECK_EQ(ut_t_c_sample(UT_CAME_EARLY, 10 * UT_MS, 0, 1, 2), 20 * UT_MS);
}

static void ut_early_wait__share_of_t_c_and_the_pause_of_a_limit(void)
{
    static const struct {
        ut_ns t_c, pause;
        uint32_t percent;
        ut_ns wait;
    } rows[] = {
        {50 * UT_MS, 0, 10, 5 * UT_MS},
        {50 * UT_MS, 0, 20, 10 * UT_MS},
        {50 * UT_MS, 0, 1, 500 * UT_US},
        {200 * UT_US, 0, 10, 100 * UT_US},
        /* The pause is no part of the share: neither the larger of both nor in the place of the least wait. */
        {50 * UT_MS, 371 * UT_US, 10, 5371 * UT_US},
        {50 * UT_MS, 8 * UT_MS, 10, 13 * UT_MS},
        {200 * UT_US, 371 * UT_US, 10, 471 * UT_US},
        {200 * UT_US, 50 * UT_US, 10, 150 * UT_US},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ut_ns wait = ut_early_wait(rows[i].t_c, rows[i].percent, rows[i].pause);
        CHECK_MSG(wait == rows[i].wait, "row %zu: %zu, want %zu", i, (size_t)wait, (size_t)rows[i].wait);
    }
}

static void ut_stage1_cut__leaves_stage_2_its_time(void)
{
    static const struct {
        unsigned length, t_c[2], cut, gather;
    } rows[] = {
        /* 1: not known */ {1000, {0, 0}, 500, 250},
        /* 2 */ {1000, {0, 100}, 500, 250},
        /* 3 */ {1000, {100, 0}, 500, 250},
        /* 4: stage 2 keeps its 200 and a quarter */ {1000, {200, 200}, 750, 500},
        /* 5: overlapped stages: half of both */ {1000, {360, 40}, 750, 375},
        /* 6: a long second stage */ {1000, {100, 400}, 500, 250},
        /* 7: just enough for both */ {500, {200, 200}, 250, 125},
        /* 8: too tight: in proportion */ {300, {200, 200}, 150, 75},
        /* 9 */ {250, {100, 300}, 100, 50},
        /* 10 */ {0, {100, 300}, 0, 0},
        /* 11: nearly all */ {10000, {40, 40}, 9950, 9900},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_ns t_c[2] = {rows[i].t_c[0] * UT_MS, rows[i].t_c[1] * UT_MS};
        CHECK_EQ(ut_stage1_cut(rows[i].length * UT_MS, t_c), rows[i].cut * UT_MS);
        CHECK_EQ(ut_gather_cut(rows[i].length * UT_MS, t_c), rows[i].gather * UT_MS);
    }
    ut_ns t_c[2] = {UT_SECOND, UT_SECOND};
    CHECK_EQ(ut_stage1_cut(UT_NEVER - 1, t_c), UT_NEVER - 1 - UT_SECOND / 4 * 5);
}

static void ut_adaptive_deadline__headroom(void)
{
    CHECK_EQ(ut_adaptive_deadline(150 * UT_MS), 2200 * UT_MS);
    CHECK_EQ(ut_adaptive_deadline(0), UT_SECOND);
    CHECK(ut_adaptive_deadline(UT_NEVER) < UT_NEVER / 2); /* it is added to a time */
}

static void ut_repair_in_time__round_trip_queue_margin(void)
{
    /* 10 ms + 1 MB at 100 MB/s = 10 ms + 2 ms */
    CHECK(!ut_repair_in_time(22 * UT_MS, 10 * UT_MS, 2 * UT_MS, 1000000, 100000000));
    CHECK(ut_repair_in_time(22 * UT_MS + UT_US, 10 * UT_MS, 2 * UT_MS, 1000000, 100000000));
    CHECK(ut_repair_in_time(13 * UT_MS, 10 * UT_MS, 2 * UT_MS, 1000000, 0));
    CHECK(!ut_repair_in_time(0, 0, 0, 0, 0));
    CHECK(ut_repair_in_time(UT_NEVER, UT_SECOND, UT_SECOND, 1 << 30, 1000));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_timeout_field__units_round_up_and_saturate);
    RUN(ut_percentile__spec_vectors);
    RUN(ut_percentile__is_that_of_the_sorted_list);
    RUN(ut_median__even_and_odd);
    RUN(ut_t_c__spec_vectors);
    RUN(ut_early_wait__share_of_t_c_and_the_pause_of_a_limit);
    RUN(ut_stage1_cut__leaves_stage_2_its_time);
    RUN(ut_adaptive_deadline__headroom);
    RUN(ut_repair_in_time__round_trip_queue_margin);
    return check_end();
}
