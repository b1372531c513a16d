/* SPDX-License-Identifier: Apache-2.0
 *
 * Who starts the ops of a partial job: each policy, changes of it, and ranks that are not there.
 */
#include "crew.h"

static ut_job_options policy(unsigned which)
{
    return (ut_job_options){.policy = (uint8_t)which, .policy_seed = 42};
}

static uint32_t pick(uint64_t op)
{
    uint32_t rank = 0;
    ut_picks(42, op, n, 1, &rank);
    return rank;
}

/* The next event of |kind| on |h|; false if there is none. */
static bool event_of(uint32_t h, unsigned kind, ut_event *ret)
{
    while (ut_engine_poll_event(hosts[h].engine, ret))
        if (ret->kind == kind)
            return true;
    return false;
}

/* The op starts with the one that was drawn; whoever came before it is in it, whoever comes after it is not. */
static void majority__waits_for_the_drawn_one(void)
{
    begin(8, 1, policy(UT_POLICY_MAJORITY));
    run(20 * UT_MS);
    for (uint64_t op = 0; op < 16; op++) {
        uint32_t first = (uint32_t)check_below(8), drawn = pick(op), want = 0;
        for (uint32_t k = 0; k < 8; k++) { /* they come one after the other, from |first| on */
            uint32_t h = (first + k) % 8;
            if (!(want >> drawn & 1)) {
                give(h, 1 << h, op, 0);
                want |= 1u << h;
                CHECK(h == drawn || !has_receipt(h));
            }
            run(5 * UT_MS);
            CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), op + (want >> drawn & 1));
        }
        for (uint32_t h = 0; h < 8; h++) {
            ut_receipt r = newest(h);
            CHECK_EQ(r.op_seq, op);
            CHECK_EQ(r.initiator, drawn);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.policy, UT_POLICY_MAJORITY);
            CHECK_HEX(r.full_mask, want);
            if (want >> h & 1)
                receipt(h);
        }
    }
    end();
}

/* One of two that are drawn is enough. */
static void seeded__the_first_of_two(void)
{
    begin(8, 1, policy(UT_POLICY_SEEDED));
    run(20 * UT_MS);
    for (uint64_t op = 0; op < 8; op++) {
        uint32_t drawn[2];
        ut_picks(42, op, 8, 2, drawn);
        for (uint32_t h = 0; h < 8; h++)
            if (h != drawn[0] && h != drawn[1])
                give(h, 1 << h, op, 0);
        run(20 * UT_MS);
        CHECK_EQ(ut_engine_next_op_seq(hosts[5].engine, 0), op);
        give(drawn[op % 2], 1 << drawn[op % 2], op, 0);
        run(20 * UT_MS);
        for (uint32_t h = 0; h < 8; h++) {
            if (h == drawn[1 - op % 2])
                continue;
            ut_receipt r = receipt(h);
            CHECK_EQ(r.initiator, drawn[op % 2]);
            CHECK_EQ(r.included, 7);
        }
    }
    end();
}

/* Nobody starts before k ranks have given, wherever they are; words that are lost are said again. */
static bool feedback_is_lost(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)from, (void)to, (void)packet;
    return port == UT_PORT_FEEDBACK && check_below(3) == 0;
}

static void quorum__of_k(void)
{
    for (uint32_t k = 1; k <= 5; k++) {
        ut_job_options o = policy(UT_POLICY_QUORUM);
        o.quorum = k;
        begin(5, 1, o);
        run(20 * UT_MS);
        drop = feedback_is_lost;
        for (uint64_t op = 0; op < 4; op++) {
            for (uint32_t i = 0; i < k; i++) {
                CHECK_EQ(ut_engine_next_op_seq(hosts[2].engine, 0), op);
                give((uint32_t)(op + i) % 5, 1 << i, op, 0);
                run(i + 1 < k ? 60 * UT_MS : 700 * UT_MS);
            }
            for (uint32_t i = 0; i < k; i++) {
                ut_receipt r = receipt((uint32_t)(op + i) % 5);
                CHECK_EQ(r.op_seq, op);
                CHECK_EQ(r.included, k);
                CHECK_EQ(r.status, UT_COMPLETE);
                CHECK_RESULT((uint32_t)(op + i) % 5, ((1 << k) - 1) / (double)k);
            }
        }
        end();
    }
}

/* All of them are needed; but those that have no trainer any more, or no host, do not count. */
static void quorum__of_those_that_are_there(void)
{
    ut_job_options o = policy(UT_POLICY_QUORUM);
    o.quorum = 4;
    begin(4, 1, o);
    run(20 * UT_MS);
    give(0, 1, 0, 0);
    give(1, 2, 0, 0);
    run(20 * UT_MS);
    ut_engine_session_remove(hosts[2].engine, trainers[2][0].session, now);
    run(20 * UT_MS);
    CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), 0);
    silent = 1 << 3;
    for (uint32_t h = 0; h < 3; h++)
        ut_engine_peer_absent(hosts[h].engine, 0, 3, now);
    run(100 * UT_MS);
    CHECK_EQ(receipt(0).included, 2);
    CHECK_EQ(receipt(1).included, 2);
    CHECK_EQ(newest(2).included, 2); /* a host without a trainer serves its shard */
    end();
}

/* A trainer that has not come yet is to come: it counts. */
static void quorum__of_those_that_are_to_come(void)
{
    ut_job_options o = policy(UT_POLICY_QUORUM);
    o.quorum = 3;
    begin_without(1 << 2, 3, 1, o);
    run(100 * UT_MS);
    give(0, 1, 0, 0);
    give(1, 2, 0, 0);
    run(100 * UT_MS);
    CHECK(!has_receipt(0));
    attach(2, 0);
    run(100 * UT_MS);
    CHECK(!has_receipt(0));
    give(2, 4, 0, 0);
    run(100 * UT_MS);
    CHECK_EQ(receipt(0).included, 3);
    end();
}

/* Each host joins when all its ranks have given; nobody is dragged along. */
static bool no_feedback(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)from, (void)to, (void)packet;
    return port == UT_PORT_FEEDBACK;
}

/* What a rank took back, because its time was over, is not counted on the other hosts, although the first word of that
 * is lost. */
static void quorum__of_what_is_still_given(void)
{
    ut_job_options o = policy(UT_POLICY_QUORUM);
    o.quorum = 2;
    begin(2, 1, o);
    run(20 * UT_MS);
    ut_submission s = words(0, 0);
    s.deadline_ns = now + 20 * UT_MS;
    give_as(0, 0, 8, s);
    run(19 * UT_MS);
    drop = no_feedback;
    run(2 * UT_MS);
    CHECK_EQ(receipt(0).status, UT_INSUFFICIENT);
    drop = NULL;
    run(200 * UT_MS);
    give(1, 2, 0, 0);
    run(50 * UT_MS);
    CHECK_EQ(has_receipt(1), false);
    give(0, 1, 0, 0);
    run(50 * UT_MS);
    for (uint32_t h = 0; h < n; h++) {
        CHECK_EQ(receipt(h).included, 2);
        CHECK_RESULT(h, 1.5);
    }
    end();
}

static void full__waits_for_all(void)
{
    begin(3, 2, policy(UT_POLICY_FULL));
    run(20 * UT_MS);
    for (uint64_t op = 0; op < 3; op++) {
        for (uint32_t i = 0; i < 6; i++) {
            ut_submission s = words(op, 0);
            give_as(i % 3, i / 3, 1 << i, s);
            run(20 * UT_MS);
            CHECK_EQ(has_receipt(0), i == 5);
        }
        for (uint32_t h = 0; h < 3; h++) {
            ut_receipt r = receipt_at(h, 1);
            CHECK_EQ(r.included, 6);
            CHECK_EQ(r.initiator, 0xffff);
            CHECK_EQ(r.status, UT_COMPLETE);
            receipt_at(h, 0);
            CHECK_RESULT(h, 63 / 6.0);
        }
    }
    end();
}

/* A rank that does not come: the others have their result at the deadline, and what it gives goes into the next op. */
static void full__goes_on_at_the_deadline(void)
{
    begin(3, 1, policy(UT_POLICY_FULL));
    run(20 * UT_MS);
    give(0, 1, 0, 0);
    give(1, 2, 0, 0);
    run(1100 * UT_MS);
    for (uint32_t h = 0; h < 2; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.op_seq, 0);
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.included, 2);
        CHECK_EQ(r.culprit, 2);
    }
    give(2, 4, 0, 0);
    run(20 * UT_MS);
    give(0, 8, 1, 0);
    give(1, 16, 1, 0);
    run(20 * UT_MS);
    ut_receipt r = receipt(2);
    CHECK_EQ(r.op_seq, 1);
    CHECK_EQ(r.slot, UT_SLOT_STALE);
    CHECK_RESULT(2, 28 / 3.0);
    CHECK_EQ(receipt(0).included, 3);
    end();
}

/* What the daemon is told, and what it may answer. */
static void probe__events(void)
{
    ut_event e;
    begin(2, 2, policy(UT_POLICY_PROBE));
    run(20 * UT_MS);
    give_as(0, 1, 2, words(0, UT_SUBMIT_NOWAIT));
    CHECK(event_of(0, UT_EVENT_READY, &e));
    CHECK_EQ(e.op_seq, 0);
    CHECK_HEX(e.a, 2);
    give_as(0, 0, 1, words(0, UT_SUBMIT_NOWAIT));
    CHECK(event_of(0, UT_EVENT_READY, &e));
    CHECK_HEX(e.a, 3);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_OK);
    CHECK(event_of(0, UT_EVENT_ACTIVATED, &e));
    CHECK_EQ(e.host, 0);
    CHECK_HEX(e.a, 3);
    receipt(0);
    give_as(0, 0, 4, words(0, UT_SUBMIT_NOWAIT));
    CHECK(!event_of(0, UT_EVENT_READY, &e)); /* it cannot start yet */
    run(20 * UT_MS);
    CHECK(event_of(0, UT_EVENT_READY, &e));
    CHECK_EQ(e.op_seq, 1);
    CHECK_HEX(e.a, 1);
    CHECK(event_of(1, UT_EVENT_ACTIVATED, &e));
    CHECK_EQ(e.host, 0);
    CHECK_HEX(e.a, 0);
    CHECK(!event_of(1, UT_EVENT_READY, &e));
    end();
}

/* What a host is handed, with these options, from op |from| on. */
static int hand(uint32_t h, uint64_t number, uint64_t from, const ut_job_options *o)
{
    ut_epoch e = {.number = number, .id = 0x700 + number, .from = from, .members = 15, .owners = 15, .world = 4};
    e.options = *o;
    return ut_engine_epoch(hosts[h].engine, 0, &e, now);
}

/* A new policy holds from the first op of its epoch on, on all hosts alike. */
static void policy__from_an_op_on(void)
{
    begin(4, 1, policy(UT_POLICY_SOLO));
    run(20 * UT_MS);
    ut_job_options o = policy(UT_POLICY_QUORUM);
    o.quorum = 3;
    for (uint32_t h = 0; h < 4; h++)
        CHECK_EQ(hand(h, 1, 2, &o), UT_OK);
    for (uint64_t op = 0; op < 2; op++) {
        give(1, 1, op, 0);
        run(20 * UT_MS);
        ut_receipt r = receipt(1);
        CHECK_EQ(r.policy, UT_POLICY_SOLO);
        CHECK_EQ(r.included, 1);
    }
    give(1, 1, 2, 0);
    give(2, 2, 2, 0);
    run(20 * UT_MS);
    CHECK(!has_receipt(1));
    give(3, 4, 2, 0);
    run(20 * UT_MS);
    ut_receipt r = receipt(1);
    CHECK_EQ(r.policy, UT_POLICY_QUORUM);
    CHECK_EQ(r.included, 3);
    end();
}

/* An op that waits for a quorum which never comes starts when an epoch asks for less. */
static void policy__frees_an_op_that_waits(void)
{
    ut_job_options o = policy(UT_POLICY_QUORUM);
    o.quorum = 3;
    begin(4, 1, o);
    run(20 * UT_MS);
    give(1, 1, 0, 0);
    give(2, 2, 0, 0);
    run(20 * UT_MS);
    CHECK(!has_receipt(1));
    o.quorum = 2;
    for (uint32_t h = 0; h < 4; h++)
        CHECK_EQ(hand(h, 1, 0, &o), UT_OK);
    run(20 * UT_MS);
    ut_receipt r = receipt(1);
    CHECK_EQ(r.op_seq, 0);
    CHECK_EQ(r.included, 2);
    end();
}

/* An epoch whose options are out of range, or which the job cannot have, is refused whole; what cannot change does not.
 */
static void policy__that_cannot_be_is_refused(void)
{
    begin(4, 1, policy(UT_POLICY_SOLO));
    ut_job_options o = policy(UT_POLICY_QUORUM);
    o.policy = UT_POLICY_NONE;
    CHECK_EQ(hand(0, 1, 0, &o), UT_ERR_ARGUMENT);
    o.policy = UT_POLICY_CODED;
    CHECK_EQ(hand(0, 1, 0, &o), UT_ERR_ARGUMENT);
    o.policy = UT_POLICY_QUORUM;
    o.quorum = 5;
    CHECK_EQ(hand(0, 1, 0, &o), UT_ERR_ARGUMENT);
    o.quorum = 0;
    o.probes = 5;
    CHECK_EQ(hand(0, 1, 0, &o), UT_ERR_ARGUMENT);
    o.probes = 4;
    o.hadamard = UT_HADAMARD_ON;
    CHECK_EQ(hand(0, 1, 0, &o), UT_ERR_ARGUMENT);
    o.hadamard = 0;
    o.algorithm = UT_RING;
    o.stragglers = 3;
    CHECK_EQ(hand(0, 1, 0, &o), UT_OK);
    end();
}

/* A rank that was absent tau times is waited for: until it gives, or a quarter of the op's time has passed. Then it is
 * left out tau times before it is waited for again. */
static void tau__is_waited_for(void)
{
    ut_job_options o = policy(UT_POLICY_SOLO);
    o.tau = 2;
    begin(3, 1, o);
    run(20 * UT_MS);
    for (uint64_t op = 0; op < 2; op++) {
        give(0, 1, op, 0);
        give(2, 4, op, 0);
        run(20 * UT_MS);
        CHECK_EQ(receipt(0).included, 2);
        receipt(2);
    }
    give(0, 1, 2, 0);
    give(2, 4, 2, 0);
    run(100 * UT_MS);
    CHECK(!has_receipt(0));
    give(1, 16, 0, 0); /* it had its answer for op 0 long ago: this is as stale as can be */
    CHECK_EQ(receipt(1).op_seq, 1);
    run(20 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.included, 3);
    CHECK_EQ(r.peer[1].stale, 1);
    CHECK_RESULT(0, 7);
    receipt(2);
    for (uint64_t op = 3; op < 6; op++) { /* now for good */
        give(0, 1, op, 0);
        run(op < 5 ? 20 * UT_MS : 240 * UT_MS);
        CHECK_EQ(has_receipt(0), op < 5);
        if (op < 5)
            receipt(0);
    }
    run(20 * UT_MS); /* a quarter of its second */
    r = receipt(0);
    CHECK_EQ(r.op_seq, 5);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.included, 1);
    for (uint64_t op = 6; op < 9; op++) { /* it was waited for in vain: not again before it has missed two more */
        give(0, 1, op, 0);
        run(20 * UT_MS);
        CHECK_EQ(has_receipt(0), op < 8);
        if (op < 8)
            receipt(0);
    }
    end();
}

/* The drawn one's host is gone, or its trainer: the next one that is drawn takes its place. */
static void majority__of_those_that_are_there(void)
{
    for (unsigned how = 0; how < 2; how++) {
        begin(4, 1, policy(UT_POLICY_MAJORITY));
        run(20 * UT_MS);
        uint32_t order[4];
        ut_picks(42, 0, 4, 4, order);
        if (how) {
            ut_engine_session_remove(hosts[order[0]].engine, trainers[order[0]][0].session, now);
        } else {
            silent = 1u << order[0];
            for (uint32_t h = 0; h < 4; h++)
                if (h != order[0])
                    ut_engine_peer_absent(hosts[h].engine, 0, order[0], now);
        }
        run(20 * UT_MS);
        give(order[2], 4, 0, 0);
        give(order[3], 8, 0, 0);
        run(100 * UT_MS);
        CHECK(!has_receipt(order[2]));
        give(order[1], 1, 0, 0);
        run(100 * UT_MS);
        ut_receipt r = receipt(order[2]);
        CHECK_EQ(r.initiator, order[1]);
        CHECK_EQ(r.included, 3);
        CHECK_EQ(r.status, how ? UT_COMPLETE : UT_PARTIAL);
        end();
    }
}

/* A trainer that is back is drawn again. */
static void majority__of_one_that_is_back(void)
{
    uint32_t order[4];
    begin(4, 1, policy(UT_POLICY_MAJORITY));
    run(20 * UT_MS);
    ut_picks(42, 1, 4, 4, order);
    ut_engine_session_remove(hosts[order[0]].engine, trainers[order[0]][0].session, now);
    run(100 * UT_MS);
    for (unsigned i = 1; i < 4; i++)
        give(order[i], 4, 0, 0);
    run(100 * UT_MS); /* op 0 is done without it, and all have heard so */
    for (unsigned i = 1; i < 4; i++)
        CHECK_EQ(receipt(order[i]).included, 3);
    attach(order[0], 0);
    run(100 * UT_MS);
    give(order[1], 2, 1, 0);
    run(100 * UT_MS);
    CHECK(!has_receipt(order[1]));
    give(order[0], 1, 1, 0);
    run(100 * UT_MS);
    CHECK_EQ(receipt(order[1]).initiator, order[0]);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(majority__waits_for_the_drawn_one);
    RUN(seeded__the_first_of_two);
    RUN(quorum__of_k);
    RUN(quorum__of_those_that_are_there);
    RUN(quorum__of_those_that_are_to_come);
    RUN(quorum__of_what_is_still_given);
    RUN(full__waits_for_all);
    RUN(full__goes_on_at_the_deadline);
    RUN(probe__events);
    RUN(policy__from_an_op_on);
    RUN(policy__frees_an_op_that_waits);
    RUN(policy__that_cannot_be_is_refused);
    RUN(tau__is_waited_for);
    RUN(majority__of_those_that_are_there);
    RUN(majority__of_one_that_is_back);
    return check_end();
}
