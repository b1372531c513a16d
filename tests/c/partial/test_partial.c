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

/* docs/papers.md, section 2.6: an op starts without host 0, which comes late; its gradient of that step is added to its
 * next. */
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

/* Two hosts start the same op before they hear of each other: it is one op, and each says that it started it. */
static void partial__two_initiators(void)
{
    begin(4, 1, policy(UT_POLICY_SOLO));
    run(10 * UT_MS);
    give(0, 1, 0, 0);
    give(3, 8, 0, 0);
    run(10 * UT_MS);
    CHECK_EQ(receipt(0).initiator, 0);
    CHECK_EQ(receipt(3).initiator, 3);
    CHECK_RESULT(0, 4.5);
    CHECK_RESULT(3, 4.5);
    for (uint32_t h = 0; h < 4; h++) {
        CHECK_EQ(newest(h).op_seq, 0);
        CHECK_EQ(newest(h).included, 2);
        CHECK_EQ(newest(h).status, UT_COMPLETE);
    }
    end();
}

static void partial__activated_twice(void)
{
    begin(3, 1, policy(UT_POLICY_PROBE));
    run(10 * UT_MS);
    CHECK_EQ(ut_engine_activate(hosts[1].engine, 0, 0, now), UT_ERR_ABSENT);
    CHECK_EQ(ut_engine_activate(hosts[1].engine, 0, 1, now), UT_ERR_SEQUENCE);
    CHECK_EQ(ut_engine_activate(hosts[1].engine, 5, 0, now), UT_ERR_UNKNOWN);
    give(1, 2, 0, 0);
    give(2, 4, 0, 0);
    run(10 * UT_MS);
    CHECK(!has_receipt(1)); /* nobody has started it */
    CHECK_EQ(ut_engine_activate(hosts[1].engine, 0, 0, now), UT_OK);
    CHECK_EQ(ut_engine_activate(hosts[1].engine, 0, 0, now), UT_OK);
    CHECK_EQ(ut_engine_activate(hosts[2].engine, 0, 0, now), UT_OK);
    CHECK_EQ(ut_engine_activate(hosts[1].engine, 0, 1, now), UT_ERR_SEQUENCE); /* the other still runs */
    run(10 * UT_MS);
    CHECK_EQ(ut_engine_activate(hosts[2].engine, 0, 0, now), UT_OK);
    run(10 * UT_MS);
    CHECK_EQ(receipt(1).op_seq, 0);
    CHECK_EQ(receipt(2).op_seq, 0);
    CHECK_RESULT(1, 3);
    CHECK_EQ(newest(0).op_seq, 0);
    end();
}

/* What is given after the start is for the next op. */
static void partial__late_is_for_the_next(void)
{
    begin(2, 1, policy(UT_POLICY_SOLO));
    run(10 * UT_MS);
    give(0, 1, 0, 0);
    give(0, 2, 1, 0); /* op 0 runs */
    CHECK(!has_receipt(0));
    run(10 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.op_seq, 0);
    CHECK_EQ(r.call_seq, 0);
    r = receipt(0);
    CHECK_EQ(r.op_seq, 1);
    CHECK_EQ(r.call_seq, 1);
    CHECK_EQ(r.slot, UT_SLOT_FRESH);
    CHECK_RESULT(0, 2);
    CHECK(!has_receipt(0));
    end();
}

static void check_words(uint32_t h, uint64_t taken, uint64_t freed, uint64_t results)
{
    const ut_completion_ring *c = &trainers[h][0].completions;
    CHECK_EQ(c->taken, taken);
    CHECK_EQ(c->freed, freed);
    CHECK_EQ(c->results, results);
}

/* Polling: what is given is replaced while it waits, and not when an op was quicker. The words say what may be used
 * again. */
static void partial__replaced_or_overtaken(void)
{
    begin(2, 1, policy(UT_POLICY_PROBE));
    run(10 * UT_MS);
    ask(0, 0, UT_SUBMIT_NOWAIT);
    CHECK_EQ(receipt(0).status, UT_EMPTY);
    give(0, 1, 0, UT_SUBMIT_NOWAIT);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_EMPTY);
    CHECK_EQ(r.kept, 1);
    check_words(0, 0, 1, 0); /* of submission 1 nothing is taken, and it is not free */
    give(0, 2, 0, UT_SUBMIT_NOWAIT);
    r = receipt(0);
    CHECK_EQ(r.status, UT_FAILED);
    CHECK_EQ(r.error, UT_ERR_EXISTS);
    check_words(0, 0, 1, 0);
    give(0, 3, 0, UT_SUBMIT_NOWAIT | UT_SUBMIT_REPLACE);
    r = receipt(0);
    CHECK_EQ(r.status, UT_EMPTY);
    CHECK_EQ(r.kept, 1);
    check_words(0, 0, 3, 0);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_OK);
    check_words(0, 4, 3, 0); /* 3 is in the op */
    give(0, 4, 0, UT_SUBMIT_NOWAIT | UT_SUBMIT_REPLACE);
    r = receipt(0);
    CHECK_EQ(r.status, UT_OVERTAKEN);
    CHECK_EQ(r.error, UT_OK);
    CHECK_EQ(r.kept, 0);
    give(0, 5, 0, UT_SUBMIT_NOWAIT);
    CHECK_EQ(receipt(0).status, UT_EMPTY);
    check_words(0, 4, 3, 0);
    run(10 * UT_MS);
    check_words(0, 4, 5, 1);
    ask(0, 0, UT_SUBMIT_NOWAIT);
    r = receipt(0);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.op_seq, 0);
    CHECK_RESULT(0, 3);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 1, now), UT_OK);
    run(10 * UT_MS);
    check_words(0, 6, 6, 2);
    ask(0, 1, UT_SUBMIT_NOWAIT);
    receipt(0);
    CHECK_RESULT(0, 5);
    ask(0, 2, UT_SUBMIT_NOWAIT);
    CHECK_EQ(receipt(0).status, UT_EMPTY);
    end();
}

/* Nobody starts the op: at the deadline the call has its own value, and what it gave is its own again. */
static void partial__taken_back_at_the_deadline(void)
{
    begin(2, 1, policy(UT_POLICY_PROBE));
    run(10 * UT_MS);
    give(0, 9, 0, 0);
    ask(1, 0, 0);
    run(UT_SECOND - UT_MS);
    CHECK(!has_receipt(0));
    run(2 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    CHECK_EQ(r.kept, 0);
    CHECK_EQ(r.included, 0);
    CHECK_RESULT(0, 9);
    check_words(0, 0, 1, 0);
    CHECK_EQ(receipt(1).status, UT_EMPTY);
    CHECK_RESULT(1, 0); /* untouched */
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_ERR_ABSENT);
    give(0, 5, 0, 0);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_OK);
    run(10 * UT_MS);
    CHECK_EQ(receipt(0).status, UT_COMPLETE);
    CHECK_RESULT(0, 5);
    end();
}

/* The result may come to where the contribution lies; if an earlier op's comes there first, what was given is gone. */
static void partial__in_place(void)
{
    begin(2, 1, policy(UT_POLICY_SOLO));
    run(10 * UT_MS);
    ut_submission s = words(0, 0);
    s.dst = 0;
    give_as(0, 0, 4, s);
    give(1, 8, 0, 0);
    run(10 * UT_MS);
    const double *at = (const double *)(const void *)trainers[0][0].arena;
    CHECK_EQ(receipt(0).slot, UT_SLOT_FRESH);
    CHECK_DOUBLE(at[0], 6);
    CHECK_DOUBLE(at[elements - 1], 6);
    s.dst = BUFFER;
    give_as(0, 0, 16, s);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.op_seq, 0);
    CHECK_EQ(r.kept, 0);
    receipt(1);
    give(1, 32, 1, 0);
    run(10 * UT_MS);
    CHECK_EQ(receipt(1).included, 1);
    CHECK_RESULT(1, 32);
    end();
}

/* A sticky contribution is in every op until it is replaced, and starts one once. */
static void partial__sticky(void)
{
    begin(3, 1, policy(UT_POLICY_SOLO));
    run(10 * UT_MS);
    give(0, 1, 0, UT_SUBMIT_STICKY);
    run(100 * UT_MS);
    CHECK_EQ(receipt(0).op_seq, 0);
    CHECK_EQ(newest(0).op_seq, 0); /* it started one, and no more */
    for (uint64_t op = 1; op < 4; op++) {
        give(2, 4, op, 0);
        run(10 * UT_MS);
        ut_receipt r = receipt(2);
        CHECK_EQ(r.op_seq, op);
        CHECK_EQ(r.peer[0].stale, 1);
        CHECK_RESULT(2, 2.5);
    }
    check_words(0, 1, 0, 4); /* it may not be written */
    give(0, 2, 4, UT_SUBMIT_STICKY | UT_SUBMIT_REPLACE);
    run(10 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.slot, UT_SLOT_FRESH);
    CHECK_EQ(r.kept, 1);
    CHECK_RESULT(0, 2);
    check_words(0, 2, 1, 5);
    give(1, 8, 9, UT_SUBMIT_STICKY | UT_SUBMIT_NOWAIT);
    run(100 * UT_MS);
    CHECK_EQ(newest(0).op_seq, 5); /* nor does one that nobody waits for */
    CHECK_EQ(newest(0).included, 2);
    end();
}

/* Several ranks on a host: what lies in their slots goes as one, and counts as many. */
static void partial__ranks_of_one_host(void)
{
    begin(3, 2, policy(UT_POLICY_PROBE));
    run(10 * UT_MS);
    ut_submission s = words(0, 0);
    s.oldest_step = s.newest_step = 7;
    give_as(0, 0, 1, s);
    s.oldest_step = 3;
    give_as(0, 1, 2, s);
    give_as(2, 1, 16, words(0, 0));
    CHECK_EQ(ut_engine_activate(hosts[2].engine, 0, 0, now), UT_OK);
    give_as(2, 0, 64, words(0, 0)); /* too late */
    run(10 * UT_MS);
    ut_receipt r = receipt_at(0, 1);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.included, 3);
    CHECK_EQ(r.weight_min, 3);
    CHECK_EQ(r.peer[0].fresh, 3);
    CHECK_EQ(r.peer[0].oldest_step, 3);
    CHECK_EQ(r.peer[0].weight, 2);
    CHECK_EQ(r.peer[2].fresh, 2);
    CHECK_HEX(r.full_mask, 5);
    receipt_at(0, 0);
    CHECK_RESULT(0, 19 / 3.0);
    r = receipt_at(2, 0);
    CHECK_EQ(r.slot, UT_SLOT_NULL);
    CHECK_EQ(r.kept, 1);
    CHECK_RESULT(2, 19 / 3.0);
    CHECK_EQ(receipt_at(2, 1).slot, UT_SLOT_FRESH);
    CHECK_EQ(newest(1).included, 3);
    end();
}

/* Calls ask for the op after the next one, which takes what they give: they are answered by it. Else each waits for an
 * op that needs what nobody has any more, until its deadline, and asks for one too many again. */
static void partial__asks_for_one_too_many(void)
{
    begin(2, 1, policy(UT_POLICY_FULL));
    run(10 * UT_MS);
    for (uint64_t op = 0; op < 3; op++) {
        give(0, 4, op + 1, 0);
        give(1, 8, op + 1, 0);
        run(10 * UT_MS);
        for (uint32_t h = 0; h < 2; h++) {
            ut_receipt r = receipt(h);
            CHECK_EQ(r.op_seq, op);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.slot, UT_SLOT_FRESH);
            CHECK_EQ(r.kept, 0);
            CHECK_RESULT(h, 6);
        }
    }
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(partial__walk_through);
    RUN(partial__absent_again);
    RUN(partial__null_everywhere_but_one);
    RUN(partial__any_subset);
    RUN(partial__two_initiators);
    RUN(partial__activated_twice);
    RUN(partial__late_is_for_the_next);
    RUN(partial__replaced_or_overtaken);
    RUN(partial__taken_back_at_the_deadline);
    RUN(partial__in_place);
    RUN(partial__sticky);
    RUN(partial__ranks_of_one_host);
    RUN(partial__asks_for_one_too_many);
    return check_end();
}
