/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain C for all CPUs: the compiler makes vectors of these loops, and memory is slower than they are.
 */
#include "outer.h"

#include "half.h"

#define PIECE 1024 /* elements between two looks whether one was found */

/* Of one run of elements that have one bound: theta - sent, bounded, times weight. Seldom is one beyond it. */
static void give_bounded(float *restrict out, const float *restrict theta, float *restrict sent, size_t n, float bound,
                         float weight)
{
    uint32_t beyond = 0;
    for (size_t i = 0; i < n; i++) {
        const float d = theta[i] - sent[i];
        beyond |= (d > bound) | (d < -bound);
        out[i] = d * weight;
    }
    if (!beyond)
        return;
    for (size_t i = 0; i < n; i++) {
        const float d = theta[i] - sent[i], low = d < -bound ? -bound : d, given = low > bound ? bound : low;
        const uint32_t fits = 0u - (uint32_t)(given == d); /* a mask, since compilers make no vectors of a branch */
        sent[i] = ut_float_of_bits((ut_float_bits(sent[i]) & fits) | (ut_float_bits(theta[i] - given) & ~fits));
        out[i] = given * weight;
    }
}

static void give_all(float *restrict out, const float *restrict theta, const float *restrict sent, size_t n,
                     float weight)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (theta[i] - sent[i]) * weight;
}

void ut_outer_give(const ut_outer_rows *r, const float *theta, float *sent, float weight, const ut_outer_bounds *b)
{
    assert(!b || b->near <= r->range);
    for (size_t k = 0, at = 0; at < r->n; k++, at += r->range) {
        float *out = r->data + k * r->row;
        const size_t count = UT_MIN2(r->range, r->n - at);
        if (!b) {
            give_all(out, theta + at, sent + at, count, weight);
            continue;
        }
        /* The two sides of a short row overlap, and then both bounds hold. */
        const float left = UT_MIN2(b->most, b->bounds[k]), right = UT_MIN2(b->most, b->bounds[k + 1]);
        const size_t tail = r->range - b->near;
        const size_t ends[] = {UT_MIN2(b->near, tail), UT_MAX2(b->near, tail), r->range};
        const float bounds[] = {left, b->near > tail ? UT_MIN2(left, right) : b->most, right};
        for (size_t i = 0, from = 0; i < 3; from = ends[i++])
            if (from < count)
                give_bounded(out + from, theta + at + from, sent + at + from, UT_MIN2(ends[i], count) - from, bounds[i],
                             weight);
    }
}

/* + 0 makes no element of theta -0, because that would not survive a sum with the elements of others. */
static void step_trained(float *restrict theta, float *restrict momentum, const float *restrict sum, size_t n,
                         const ut_outer_rule *rule)
{
    const float divisor = rule->divisor, lr = rule->lr, mu = rule->momentum;
    for (size_t i = 0; i < n; i++) {
        const float delta = sum[i] / divisor, m = momentum[i] * mu + delta;
        momentum[i] = m;
        theta[i] = theta[i] - (m * mu + delta) * lr + 0.0f;
    }
}

static void step_plain(float *restrict theta, float *restrict momentum, const float *restrict sum, size_t n,
                       float divisor)
{
    for (size_t i = 0; i < n; i++) {
        momentum[i] = sum[i] / divisor;
        theta[i] = theta[i] - momentum[i] + 0.0f;
    }
}

static void follow_mine(float *restrict local, const float *restrict sent, const float *restrict theta, size_t n,
                        float keep)
{
    for (size_t i = 0; i < n; i++)
        local[i] = (local[i] - sent[i]) * keep + theta[i];
}

static void follow_others(float *restrict local, const float *restrict before, const float *restrict theta, size_t n)
{
    for (size_t i = 0; i < n; i++)
        local[i] += theta[i] - before[i];
}

void ut_outer_step(const ut_outer_rows *r, float *theta, float *momentum, const ut_outer_rule *rule)
{
    for (size_t k = 0, at = 0; at < r->n; k++, at += r->range) {
        const float *sum = r->data + k * r->row;
        const size_t n = UT_MIN2(r->range, r->n - at);
        const size_t split = UT_MIN2(UT_MAX2(rule->plain_from, at), at + n) - at;
        step_trained(theta + at, momentum + at, sum, split, rule);
        step_plain(theta + at + split, momentum + at + split, sum + split, n - split, rule->divisor);
    }
}

void ut_outer_follow(float *local, const float *sent, const float *before, const float *theta, size_t n, size_t range,
                     size_t from, const bool *mine, float keep)
{
    for (size_t at = 0, next; at < n; at = next) {
        const size_t k = (from + at) / range, count = UT_MIN2((k + 1) * range - (from + at), n - at);
        next = at + count;
        if (sent && mine[k])
            follow_mine(local + at, sent + at, theta + at, count, keep);
        else
            follow_others(local + at, before + at, theta + at, count);
    }
}

void ut_outer_squares(const float *x, size_t n, size_t range, double *squares)
{
    for (size_t k = 0, at = 0; at < n; k++, at += range) {
        const float *p = x + at;
        const size_t count = UT_MIN2(range, n - at);
        double a = 0, b = 0, c = 0, d = 0; /* neighbours need not wait for each other's sum */
        size_t i = 0;
        for (; i + 4 <= count; i += 4) {
            const double s = p[i], t = p[i + 1], u = p[i + 2], v = p[i + 3];
            a += s * s;
            b += t * t;
            c += u * u;
            d += v * v;
        }
        for (; i < count; i++)
            a += (double)p[i] * (double)p[i];
        squares[k] = (a + b) + (c + d);
    }
}

size_t ut_outer_nonfinite(const float *x, size_t n)
{
    const uint32_t exponent = 0x7f800000;
    for (size_t at = 0; at < n; at += PIECE) {
        const size_t end = at + UT_MIN2((size_t)PIECE, n - at);
        uint32_t found = 0;
        for (size_t i = at; i < end; i++)
            found |= (ut_float_bits(x[i]) & exponent) == exponent;
        for (size_t i = at; found && i < end; i++)
            if ((ut_float_bits(x[i]) & exponent) == exponent)
                return i;
    }
    return n;
}
