/* SPDX-License-Identifier: Apache-2.0
 *
 * What hosts of a partial job tell each other of their trainers before an op starts, and how often.
 */
#include "crew.h"

#include "core/face/engine_impl.h"
#include "core/partial/part.h"

/* Who is not there is told once, and not before every op again: the records of ops say it too. */
static void readiness__is_told_once(void)
{
    ut_record next;
    begin(4, 1, (ut_job_options){.policy = UT_POLICY_SOLO});
    run(20 * UT_MS);
    CHECK(!ut_partial_readiness(hosts[3].engine->job[0], 0, &next));
    ut_engine_session_remove(hosts[3].engine, trainers[3][0].session, now);
    CHECK(ut_partial_readiness(hosts[3].engine->job[0], 0, &next));
    CHECK_EQ(next.attached & 1, 0);
    run(100 * UT_MS);
    CHECK_EQ(ut_ledger_attached(&hosts[0].engine->job[0]->ledger, 3) & 1, 0);
    CHECK(ut_ledger_is_seen(&hosts[3].engine->job[0]->ledger, 0));
    for (uint64_t op = 0; op < 6; op++) {
        give((uint32_t)op % 3, 4, op, 0);
        run(100 * UT_MS);
        (void)receipt((uint32_t)op % 3);
        CHECK(!ut_partial_readiness(hosts[3].engine->job[0], 0, &next));
        CHECK_EQ(ut_ledger_attached(&hosts[0].engine->job[0]->ledger, 3) & 1, 0);
    }
    attach(3, 0);
    CHECK(ut_partial_readiness(hosts[3].engine->job[0], 0, &next));
    run(100 * UT_MS);
    CHECK_EQ(ut_ledger_attached(&hosts[0].engine->job[0]->ledger, 3) & 1, 1);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(readiness__is_told_once);
    return check_end();
}
