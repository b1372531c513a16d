/* SPDX-License-Identifier: Apache-2.0
 *
 * A crew in a coded job by groups. All hosts of group g give 4^g, so that the digits of a result in base 4 say how
 * often each group is in it: 1 is right, and 2 is a replica that was folded twice.
 */
#ifndef UT_TEST_CODED_CREW_H
#define UT_TEST_CODED_CREW_H

#include "crew.h"

static ut_job_options coded(uint32_t stragglers)
{
    return (ut_job_options){.policy = UT_POLICY_CODED, .stragglers = (uint8_t)stragglers};
}

static double value_of(uint32_t host, uint32_t stragglers)
{
    return (double)(1u << (2 * (host / (stragglers + 1))));
}

static double whole(uint32_t stragglers)
{
    double sum = 0;
    for (uint32_t h = 0; h < n; h += stragglers + 1)
        sum += value_of(h, stragglers);
    return sum;
}

static ut_submission step_words(uint64_t step, ut_ns time)
{
    return (ut_submission){.dst = RESULT * BUFFER,
                           .count = elements,
                           .deadline_ns = now + time,
                           .dtype = UT_FLOAT64,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED,
                           .wanted = step};
}

static void give_step(uint32_t h, uint32_t stragglers, uint64_t step, ut_ns time)
{
    ut_submission s = step_words(step, time);
    s.oldest_step = s.newest_step = (uint32_t)step;
    give_as(h, 0, value_of(h, stragglers) * (double)(step + 1), s);
}

static void ask_step(uint32_t h, uint64_t step, ut_ns time)
{
    submit(h, 0, step_words(step, time));
}

/* The answer is the exact sum of |step|. */
static ut_receipt exact(uint32_t h, uint32_t stragglers, uint64_t step)
{
    ut_receipt r = receipt(h);
    CHECK_MSG(r.status == UT_COMPLETE, "host %u: status %u, error %d", h, r.status, r.error);
    CHECK_EQ(r.step, step);
    CHECK_EQ(r.exact, UT_EXACT_YES);
    const double *at = (const double *)(const void *)(trainers[h][0].arena + RESULT * BUFFER);
    for (uint32_t i = 0; i < elements; i++)
        CHECK_MSG(at[i] == whole(stragglers) * (double)(step + 1), "host %u, element %u: %g", h, i, at[i]);
    return r;
}

#endif
