/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs: what the daemon is told of ranks that are ready, which its answers to probes rest on.
 */
#include "crew.h"

/* How often host |h| told that its ranks |mask| are ready for |op_seq| since it was asked last. */
static uint32_t told_ready(uint32_t h, uint64_t op_seq, uint64_t mask)
{
    ut_event e;
    uint32_t ret = 0;
    while (ut_engine_poll_event(hosts[h].engine, &e))
        ret += e.kind == UT_EVENT_READY && e.op_seq == op_seq && e.a == mask;
    return ret;
}

/* What was given is taken back at the deadline; the same rank gives again, and nobody may be left to believe that it
 * has nothing. */
static void ready__told_again_after_it_was_taken_back(void)
{
    begin(2, 1, (ut_job_options){.policy = UT_POLICY_PROBE});
    run(10 * UT_MS);
    ut_submission s = words(0, 0);
    s.deadline_ns = now + 5 * UT_MS;
    give_as(0, 0, 1, s);
    run(UT_MS);
    CHECK_EQ(told_ready(0, 0, 1), 1);
    run(20 * UT_MS);
    CHECK_EQ(receipt(0).status, UT_INSUFFICIENT);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_ERR_ABSENT);
    give(0, 2, 0, 0);
    run(UT_MS);
    CHECK_EQ(told_ready(0, 0, 1), 1);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_OK);
    run(20 * UT_MS);
    CHECK_EQ(receipt(0).status, UT_COMPLETE);
    CHECK_RESULT(0, 2);
    end();
}

/* Each rank that joins the ready ones is told of; what lies there when an op ends is told of anew. */
static void ready__told_as_it_grows_and_after_each_op(void)
{
    begin(2, 2, (ut_job_options){.policy = UT_POLICY_PROBE});
    run(10 * UT_MS);
    give_as(0, 1, 1, words(0, UT_SUBMIT_NOWAIT));
    CHECK_EQ(told_ready(0, 0, 2), 1);
    give_as(0, 0, 2, words(0, UT_SUBMIT_NOWAIT));
    CHECK_EQ(told_ready(0, 0, 3), 1);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_OK);
    give_as(0, 1, 4, words(1, UT_SUBMIT_NOWAIT)); /* while op 0 runs: not before it has ended */
    CHECK_EQ(told_ready(0, 1, 2), 0);
    run(20 * UT_MS);
    CHECK_EQ(told_ready(0, 1, 2), 1);
    end();
}

/* What cannot start while ops are held back is ready when they are not: whoever was denied meanwhile is told anew. */
static void ready__told_anew_after_ops_were_held_back(void)
{
    begin(2, 1, (ut_job_options){.policy = UT_POLICY_PROBE});
    run(10 * UT_MS);
    give(0, 1, 0, 0);
    CHECK_EQ(told_ready(0, 0, 1), 1);
    CHECK_EQ(ut_engine_hold(hosts[0].engine, 0, 0, now + 5 * UT_MS), UT_OK);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_ERR_SEQUENCE);
    CHECK_EQ(told_ready(0, 0, 0), 1);
    run(4 * UT_MS);
    CHECK_EQ(told_ready(0, 0, 1), 0);
    run(2 * UT_MS);
    CHECK_EQ(told_ready(0, 0, 1), 1);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_OK);
    end();
}

/* To hear that a peer is ready for an op is not to hear that the op has started. */
static void ready__is_not_started(void)
{
    begin(3, 1, (ut_job_options){.policy = UT_POLICY_QUORUM, .quorum = 2});
    run(10 * UT_MS);
    give(0, 1, 0, 0);
    run(20 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        CHECK_EQ(ut_engine_next_op_seq(hosts[h].engine, 0), 0);
    give(1, 2, 0, 0);
    run(20 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        CHECK_EQ(ut_engine_next_op_seq(hosts[h].engine, 0), 1);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ready__told_again_after_it_was_taken_back);
    RUN(ready__told_as_it_grows_and_after_each_op);
    RUN(ready__told_anew_after_ops_were_held_back);
    RUN(ready__is_not_started);
    return check_end();
}
