/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of a round of local SGD beside the formulas of their header, element by element. Arrays are as long as
 * they need to be, so an access beyond them is one that AddressSanitizer sees.
 */
#define _DEFAULT_SOURCE
#include "kernels/outer.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"

enum { ROUNDS = 300 };

static float value(void)
{
    return ((float)check_below(2001) - 1000) / 64;
}

static float *values(size_t n)
{
    float *x = malloc(n * sizeof *x + 1);
    for (size_t i = 0; i < n; i++)
        x[i] = value();
    return x;
}

static float *copied(const float *x, size_t n)
{
    float *copy = malloc(n * sizeof *x + 1);
    memcpy(copy, x, n * sizeof *x);
    return copy;
}

/* Rows of |marks| elements of 77 and up to |range| others, the last of them cut behind its last element. */
typedef struct shape {
    size_t n, range, marks, rows;
    float *body;
} shape;

static shape drawn(void)
{
    shape s = {.n = 1 + check_below(3000), .range = 1 + check_below(700), .marks = check_below(9)};
    s.rows = (s.n + s.range - 1) / s.range;
    const size_t count = s.rows * (s.marks + s.range) - (s.rows * s.range - s.n);
    s.body = malloc(count * sizeof *s.body);
    for (size_t i = 0; i < count; i++)
        s.body[i] = 77;
    return s;
}

static ut_outer_rows rows_of(const shape *s)
{
    return (ut_outer_rows){.data = s->body + s->marks, .range = s->range, .row = s->marks + s->range, .n = s->n};
}

static float *at(const shape *s, size_t i)
{
    return s->body + i / s->range * (s->marks + s->range) + s->marks + i % s->range;
}

static bool marks_are_left(const shape *s)
{
    for (size_t k = 0; k < s->rows; k++)
        for (size_t i = 0; i < s->marks; i++)
            if (s->body[k * (s->marks + s->range) + i] != 77)
                return false;
    return true;
}

static bool same(const float *x, const float *y, size_t n)
{
    return memcmp(x, y, n * sizeof *x) == 0;
}

static void ut_outer_give__puts_what_fits(void)
{
    const shape s = drawn();
    const ut_outer_rows rows = rows_of(&s);
    float *theta = values(s.n), *sent = values(s.n), *before = copied(sent, s.n), *limits = values(s.rows + 1);
    const float weight = check_below(2) ? 1.0f : 0.3f;
    ut_outer_give(&rows, theta, sent, weight, NULL);
    bool right = same(sent, before, s.n);
    for (size_t i = 0; i < s.n; i++)
        right &= *at(&s, i) == (theta[i] - sent[i]) * weight;
    CHECK(right && marks_are_left(&s));

    for (size_t k = 0; k <= s.rows; k++)
        limits[k] = fabsf(limits[k]);
    const ut_outer_bounds bounds = {.bounds = limits, .near = check_below(s.range + 1), .most = fabsf(value())};
    ut_outer_give(&rows, theta, sent, weight, &bounds);
    right = true;
    for (size_t i = 0; i < s.n; i++) {
        const size_t k = i / s.range, place = i % s.range;
        float most = bounds.most;
        most = place < bounds.near ? fminf(most, limits[k]) : most;
        most = place + bounds.near >= s.range ? fminf(most, limits[k + 1]) : most;
        const float d = theta[i] - before[i], given = copysignf(fminf(fabsf(d), most), d);
        right &= *at(&s, i) == given * weight && sent[i] == (fabsf(d) <= most ? before[i] : theta[i] - given);
    }
    CHECK(right && marks_are_left(&s));
    free(theta), free(sent), free(before), free(limits), free(s.body);
}

static void ut_outer_step__rounds_each_operation(void)
{
    const shape s = drawn();
    const ut_outer_rows rows = rows_of(&s);
    for (size_t i = 0; i < s.n; i++)
        *at(&s, i) = value();
    float *theta = values(s.n), *momentum = values(s.n), *was = copied(theta, s.n), *had = copied(momentum, s.n);
    const ut_outer_rule rule = {.divisor = 3, .lr = 0.7f, .momentum = 0.9f, .plain_from = check_below(s.n + 100)};
    ut_outer_step(&rows, theta, momentum, &rule);
    bool right = true;
    for (size_t i = 0; i < s.n; i++) {
        /* A float64 holds a product of two float32 exactly, so each line is rounded once. */
        const float delta = *at(&s, i) / rule.divisor, decayed = (float)((double)had[i] * rule.momentum);
        const float m = i < rule.plain_from ? decayed + delta : delta, ahead = (float)((double)m * rule.momentum);
        const float moved = i < rule.plain_from ? (float)((double)(ahead + delta) * rule.lr) : delta;
        right &= momentum[i] == m && theta[i] == was[i] - moved && !(theta[i] == 0 && signbit(theta[i]));
    }
    CHECK(right);
    free(theta), free(momentum), free(was), free(had), free(s.body);
}

static void ut_outer_follow__keeps_what_is_not_in_yet(void)
{
    const size_t n = 1 + check_below(3000), range = 1 + check_below(700), ranges = (n + range - 1) / range;
    float *local = values(n), *sent = values(n), *before = values(n), *theta = values(n), *was = copied(local, n);
    bool *mine = malloc(ranges);
    for (size_t k = 0; k < ranges; k++)
        mine[k] = check_below(2);
    const bool gave = check_below(4) > 0;
    const float keep = check_below(2) ? 1.0f : 0.75f;
    const size_t from = check_below(n), to = from + check_below(n - from + 1); /* the rest by another call */
    const size_t ends[] = {0, from, to, n};
    for (size_t i = 0; i < 3; i++) {
        const size_t at = ends[i];
        ut_outer_follow(local + at, gave ? sent + at : NULL, before + at, theta + at, ends[i + 1] - at, range, at, mine,
                        keep);
    }
    bool right = true;
    for (size_t i = 0; i < n; i++) {
        const float since = (float)((double)(was[i] - sent[i]) * keep);
        right &= local[i] == (gave && mine[i / range] ? since + theta[i] : was[i] + (theta[i] - before[i]));
    }
    CHECK(right);
    free(local), free(sent), free(before), free(theta), free(was), free(mine);
}

static void ut_outer_squares_and_nonfinite__see_each_element(void)
{
    const size_t n = 1 + check_below(5000), range = 1 + check_below(700), ranges = (n + range - 1) / range;
    float *x = values(n);
    double *sums = malloc(ranges * sizeof *sums);
    ut_outer_squares(x, n, range, sums);
    bool right = true;
    for (size_t k = 0; k < ranges; k++) {
        double sum = 0;
        for (size_t i = k * range; i < n && i < (k + 1) * range; i++)
            sum += (double)x[i] * x[i];
        right &= fabs(sums[k] - sum) <= 1e-12 * sum;
    }
    CHECK(right);
    CHECK(ut_outer_nonfinite(x, n) == n);
    const size_t one = check_below(n), other = check_below(n);
    x[one] = check_below(2) ? NAN : -INFINITY;
    x[other] = INFINITY;
    CHECK(ut_outer_nonfinite(x, n) == (one < other ? one : other));
    free(x), free(sums);
}

/* The sum of no rank may be -0, and theta is what all must have alike. */
static void ut_outer_step__leaves_no_negative_zero(void)
{
    float theta = -0.0f, momentum = 0, sum = 0.0f;
    const ut_outer_rows rows = {.data = &sum, .range = 1, .row = 1, .n = 1};
    for (size_t plain = 0; plain < 2; plain++) {
        theta = -0.0f;
        ut_outer_step(&rows, &theta, &momentum, &(ut_outer_rule){.divisor = 1, .lr = 1, .plain_from = plain});
        CHECK(!signbit(theta));
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    for (unsigned i = 0; i < ROUNDS; i++) {
        RUN(ut_outer_give__puts_what_fits);
        RUN(ut_outer_step__rounds_each_operation);
        RUN(ut_outer_follow__keeps_what_is_not_in_yet);
        RUN(ut_outer_squares_and_nonfinite__see_each_element);
    }
    RUN(ut_outer_step__leaves_no_negative_zero);
    return check_end();
}
