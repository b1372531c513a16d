/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs: what an op takes from the slots, what comes of it, and what receipts say. The values prove who is in
 * it.
 */
#include "crew.h"

static ut_job_options policy(unsigned which)
{
    return (ut_job_options){.policy = (uint8_t)which};
}

/* SPEC 2c, Fig. 7: an op starts without host 0, which comes late; its gradient of that step is added to its next. */
static void partial__walk_through(void)
{
    begin(2, 1, policy(UT_POLICY_SOLO));
    elements = 1; /* scalars: one host owns nothing */
    run(10 * UT_MS);
    give(1, 4, 0, UT_SUBMIT_WORLD);
    run(10 * UT_MS);
    ut_receipt r = receipt(1);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.included, 1);
    CHECK_EQ(r.initiator, 1);
    CHECK_EQ(r.slot, UT_SLOT_FRESH);
    CHECK_RESULT(1, 2);              /* 4 / 2 */
    CHECK_EQ(newest(0).included, 1); /* host 0 was dragged along */
    CHECK_EQ(newest(0).status, UT_COMPLETE);
    give(0, 6, 0, UT_SUBMIT_WORLD); /* too late for op 0: gets its result at once, and what it gave stays */
    r = receipt(0);
    CHECK_EQ(r.op_seq, 0);
    CHECK_EQ(r.kept, 1);
    CHECK_EQ(r.slot, UT_SLOT_NULL);
    CHECK_RESULT(0, 2);
    run(10 * UT_MS);
    CHECK_EQ(newest(0).op_seq, 0); /* a leftover starts nothing */
    give(0, 16, 1, UT_SUBMIT_WORLD | UT_SUBMIT_REPLACE);
    give(1, 8, 1, UT_SUBMIT_WORLD);
    run(10 * UT_MS);
    r = receipt(0);
    CHECK_EQ(r.op_seq, 1);
    CHECK_EQ(r.call_seq, 1);
    CHECK_EQ(r.included, 2);
    CHECK_EQ(r.slot, UT_SLOT_STALE); /* part of it was for op 0 */
    CHECK_EQ(r.kept, 0);
    CHECK_EQ(receipt(1).included, 2);
    CHECK_RESULT(0, 12);
    CHECK_RESULT(1, 12);
    end();
}

/* The same, but host 0 is absent again: what it left behind is taken as it is. */
static void partial__absent_again(void)
{
    begin(2, 1, policy(UT_POLICY_SOLO));
    elements = 1;
    run(10 * UT_MS);
    give(1, 4, 0, UT_SUBMIT_WORLD);
    run(10 * UT_MS);
    receipt(1);
    give(0, 6, 0, UT_SUBMIT_WORLD);
    receipt(0);
    give(1, 8, 1, UT_SUBMIT_WORLD);
    run(10 * UT_MS);
    ut_receipt r = receipt(1);
    CHECK_RESULT(1, 7); /* (6 + 8) / 2 */
    CHECK_EQ(r.included, 2);
    CHECK_EQ(r.peer[0].stale, 1);
    CHECK_EQ(r.peer[0].fresh, 0);
    CHECK_EQ(r.peer[1].fresh, 1);
    end();
}

/* Nobody but one gives anything, over many packets and an odd number of hosts. */
static void partial__null_everywhere_but_one(void)
{
    begin(5, 1, policy(UT_POLICY_SOLO));
    run(10 * UT_MS);
    for (uint32_t op = 0; op < 10; op++) {
        uint32_t who = op % 5;
        give(who, 1 << op, op, 0);
        run(5 * UT_MS);
        ut_receipt r = receipt(who);
        CHECK_EQ(r.op_seq, op);
        CHECK_EQ(r.status, UT_COMPLETE);
        CHECK_EQ(r.weight_min, 1);
        CHECK_HEX(r.full_mask, 1u << who);
        CHECK_HEX(r.any_mask, 1u << who);
        CHECK_EQ(r.culprit, 0xffff);
        CHECK_RESULT(who, 1 << op);
        for (uint32_t h = 0; h < 5; h++) {
            r = newest(h);
            CHECK_EQ(r.op_seq, op);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.digest, newest(0).digest);
            CHECK_EQ(r.initiator, who);
            CHECK_HEX(r.full_mask, 1u << who);
            CHECK_EQ(r.included, 1);
            CHECK_EQ(r.bytes_missing, 0);
        }
        ask((who + 1) % 5, op, UT_SUBMIT_NOWAIT); /* whoever was dragged has the result, too */
        CHECK_EQ(receipt((who + 1) % 5).op_seq, op);
        CHECK_RESULT((who + 1) % 5, 1 << op);
    }
    ut_stats s;
    ut_engine_stats(hosts[2].engine, &s);
    CHECK_EQ(s.replicas_differ, 0);
    CHECK(s.replicas_compared > 20);
    CHECK_EQ(s.bad_submissions, 0);
    end();
}

/* Any part of the hosts gives; all dtypes of float, averages by contributors and by world, sums. */
static void partial__any_subset(void)
{
    for (unsigned round = 0; round < 30; round++) {
        uint32_t size = 2 + (uint32_t)check_below(7);
        begin(size, 1, policy(UT_POLICY_PROBE));
        elements = round % 3 == 0 ? 1 + (uint32_t)check_below(8) : 1 + (uint32_t)check_below(ELEMENTS);
        run(10 * UT_MS);
        for (uint32_t op = 0; op < 3; op++) {
            uint32_t who = (uint32_t)check_below((1u << size) - 1) + 1, count = (uint32_t)__builtin_popcount(who);
            unsigned kind = (unsigned)check_below(3);
            double sum = 0;
            for (uint32_t h = 0; h < size; h++) {
                ut_submission s = words(op, kind == 1 ? UT_SUBMIT_WORLD : 0);
                s.redop = kind == 2 ? UT_SUM : UT_AVG;
                s.oldest_step = 10 * op + h;
                s.newest_step = s.oldest_step + 1;
                if (who >> h & 1)
                    give_as(h, 0, 1 << h, s);
                sum += who >> h & 1 ? 1 << h : 0;
            }
            run(UT_MS);
            uint32_t first = (uint32_t)__builtin_ctz(who);
            CHECK_EQ(ut_engine_activate(hosts[first].engine, 0, op, now), UT_OK);
            run(10 * UT_MS);
            for (uint32_t h = 0; h < size; h++) {
                if (!(who >> h & 1))
                    continue;
                ut_receipt r = receipt(h);
                CHECK_EQ(r.op_seq, op);
                CHECK_EQ(r.status, UT_COMPLETE);
                CHECK_EQ(r.weight_min, count);
                CHECK_EQ(r.included, count);
                CHECK_EQ(r.initiator, first);
                CHECK_HEX(r.full_mask, who);
                for (uint32_t p = 0; p < size; p++) {
                    CHECK_EQ(r.peer[p].fresh, who >> p & 1);
                    CHECK_EQ(r.peer[p].oldest_step, who >> p & 1 ? 10 * op + p : 0);
                }
                CHECK_RESULT(h, kind == 2 ? sum : sum / (kind == 1 ? size : count));
            }
        }
        end();
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(partial__walk_through);
    RUN(partial__absent_again);
    RUN(partial__null_everywhere_but_one);
    RUN(partial__any_subset);
    return check_end();
}
