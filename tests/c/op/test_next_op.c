/* SPDX-License-Identifier: Apache-2.0
 *
 * Which op a rank or a host that joins is told to begin with, by what other hosts have spoken of.
 */
#include "crew.h"

#include "core/face/engine_impl.h"

static void one_host_alone__is_believed_of_near_ops(void)
{
    begin(4, 1, (ut_job_options){.policy = UT_POLICY_FULL});
    run(10 * UT_MS);
    ut_job *j = hosts[0].engine->job[0];
    CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), 0);
    ut_ledger_spoke(&j->ledger, 1, 3);
    CHECK_EQ(ut_job_next_op(j), 4);
    ut_ledger_spoke(&j->ledger, 1, UT_LAG_MAX);
    CHECK_EQ(ut_job_next_op(j), UT_EARLY_MAX);
    ut_ledger_spoke(&j->ledger, 2, 100);
    CHECK_EQ(ut_job_next_op(j), 101);
    ut_ledger_spoke(&j->ledger, 0, 500);
    CHECK_EQ(ut_job_next_op(j), 501 + UT_EARLY_MAX);
    ut_ledger_spoke(&j->ledger, 3, 7000);
    CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), 7001);
    end();
}

static void the_only_other_host__is_believed(void)
{
    begin(2, 1, (ut_job_options){.policy = UT_POLICY_FULL});
    run(10 * UT_MS);
    ut_ledger_spoke(&hosts[0].engine->job[0]->ledger, 1, 9000);
    CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), 9001);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(one_host_alone__is_believed_of_near_ops);
    RUN(the_only_other_host__is_believed);
    return check_end();
}
