/* SPDX-License-Identifier: Apache-2.0
 *
 * The first step of a coded job, which begins before all hosts have met.
 */
#include "crew.h"

#include "core/face/engine_impl.h"

static void give_first(uint32_t h)
{
    give_as(h, 0, (double)(1u << h),
            (ut_submission){.dst = RESULT * BUFFER,
                            .count = elements,
                            .deadline_ns = now + UT_SECOND,
                            .dtype = UT_FLOAT64,
                            .redop = UT_SUM,
                            .mode = UT_BOUNDED});
}

static void is_whole(uint32_t h)
{
    ut_receipt r = receipt(h);
    CHECK_MSG(r.status == UT_COMPLETE, "host %u: status %u, error %d", h, r.status, r.error);
    CHECK_EQ(r.exact, UT_EXACT_YES);
    const double *at = (const double *)(const void *)(trainers[h][0].arena + RESULT * BUFFER);
    for (uint32_t i = 0; i < elements; i++)
        CHECK_EQ(at[i], (1u << n) - 1);
}

/* Everybody is needed, and two hosts meet after the others have begun. */
static void two_hosts_have_not_met__the_step_waits_for_them(void)
{
    strangers[0] = (uint32_t)check_below(3);
    strangers[1] = 3;
    begin(4, 1, (ut_job_options){.policy = UT_POLICY_CODED});
    run(2 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        give_first(h);
    run(20 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        CHECK_MSG(!has_receipt(h), "host %u has an answer", h);
    meet();
    run(50 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        is_whole(h);
    end();
}

/* Who never comes is waited for during a quarter of the step's time. */
static void somebody_never_comes__the_step_ends_in_its_time(void)
{
    strangers[0] = 2;
    strangers[1] = 3;
    begin(4, 1, (ut_job_options){.policy = UT_POLICY_CODED});
    run(2 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        give_first(h);
    run(UT_SECOND + 20 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        CHECK_EQ(receipt(h).status, UT_FAILED);
    strangers[0] = strangers[1] = 0;
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(two_hosts_have_not_met__the_step_waits_for_them);
    RUN(somebody_never_comes__the_step_ends_in_its_time);
    return check_end();
}
