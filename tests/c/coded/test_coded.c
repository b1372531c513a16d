/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded jobs by groups: the sum over all groups, exact whoever of each group gives, or none.
 */
#include "coded_crew.h"

#include "core/face/engine_impl.h"
#include "ext/coded/coded.h"

static void all_give__each_part_is_in_it_once(void)
{
    for (uint32_t stragglers = 0; stragglers < 4; stragglers++) {
        if (8 % (stragglers + 1))
            continue;
        begin(8, 1, coded(stragglers));
        run(20 * UT_MS);
        for (uint64_t step = 0; step < 6; step++) {
            for (uint32_t h = 0; h < n; h++)
                give_step(h, stragglers, step, UT_SECOND);
            run(50 * UT_MS);
            for (uint32_t h = 0; h < n; h++)
                CHECK_EQ(exact(h, stragglers, step).policy, UT_POLICY_CODED);
        }
        end();
    }
}

static void one_of_each_group__is_enough_and_the_others_get_the_result(void)
{
    begin(8, 1, coded(1));
    run(20 * UT_MS);
    for (uint64_t step = 0; step < 5; step++) {
        uint32_t gave = 0;
        for (uint32_t g = 0; g < 4; g++) {
            uint32_t h = 2 * g + (uint32_t)check_below(2);
            give_step(h, 1, step, UT_SECOND);
            gave |= 1u << h;
        }
        run(50 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            if (!(gave >> h & 1))
                ask_step(h, step, UT_SECOND);
            ut_receipt r = exact(h, 1, step);
            CHECK_HEX(r.late_mask, 0xff & ~gave);
            CHECK_EQ(r.slot, gave >> h & 1 ? UT_SLOT_FRESH : UT_SLOT_NULL);
            CHECK_EQ(r.included, 4);
        }
    }
    end();
}

static void who_gives_while_it_runs__is_in(void)
{
    begin(4, 1, coded(0));
    run(20 * UT_MS);
    for (uint32_t h = 0; h < n; h++) {
        give_step(h, 0, 0, UT_SECOND);
        run(10 * UT_MS);
        CHECK_EQ(has_receipt(0), h + 1 == n);
    }
    for (uint32_t h = 0; h < n; h++)
        CHECK_EQ(exact(h, 0, 0).op_seq, 0);
    end();
}

/* Nobody has the fourth group's part: all fail, for the same reason; then the same gradients are given again. */
static void a_group_that_lacks__fails_the_step_on_all(void)
{
    begin(8, 1, coded(1));
    run(20 * UT_MS);
    for (uint32_t h = 0; h < 6; h++)
        give_step(h, 1, 3, 100 * UT_MS);
    run(200 * UT_MS);
    for (uint32_t h = 0; h < 6; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_MSG(r.error == UT_ERR_TIMEOUT || r.error == UT_ERR_ABSENT, "error %d", r.error);
        CHECK_EQ(r.step, 3);
        CHECK_MSG(r.culprit == 6 || r.culprit == 7, "culprit %u", r.culprit);
    }
    for (uint32_t h = 0; h < 7; h++)
        give_step(h, 1, 3, UT_SECOND);
    run(100 * UT_MS);
    for (uint32_t h = 0; h < 7; h++)
        (void)exact(h, 1, 3);
    end();
}

static bool some_data(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)from, (void)to, (void)packet;
    return port == UT_PORT_DATA && check_below(10) == 0;
}

static void packets_are_lost__and_repaired(void)
{
    begin(6, 1, coded(1));
    run(20 * UT_MS);
    drop = some_data;
    for (uint64_t step = 0; step < 8; step++) {
        uint32_t absent = (uint32_t)check_below(n);
        for (uint32_t h = 0; h < n; h++)
            if (h != absent)
                give_step(h, 1, step, 2 * UT_SECOND);
        run(UT_SECOND);
        for (uint32_t h = 0; h < n; h++)
            if (h != absent)
                (void)exact(h, 1, step);
    }
    end();
}

static void dies(uint32_t host)
{
    silent |= 1u << host;
    for (uint32_t h = 0; h < n; h++)
        if (h != host)
            ut_engine_peer_absent(hosts[h].engine, 0, host, now);
    part_from_the_silent();
}

/* Whoever is alive gives |step| until it has its result. Returns how often it was given. */
static uint32_t until_done(uint32_t stragglers, uint64_t step)
{
    uint32_t times = 0, done = silent;
    for (; times < 30 && done != (1u << n) - 1; times++) {
        for (uint32_t h = 0; h < n; h++)
            if (!(done >> h & 1))
                give_step(h, stragglers, step, UT_SECOND);
        run(100 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            if ((done >> h & 1) || !has_receipt(h))
                continue;
            ut_receipt r = receipt(h);
            done |= r.status == UT_FAILED ? 0 : 1u << h;
        }
    }
    return times;
}

static void one_replica_dies__and_the_job_goes_on_exactly(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    CHECK_EQ(until_done(1, 0), 1);
    dies(1);
    uint32_t times = until_done(1, 1);
    CHECK_MSG(times < 30, "no result");
    for (uint64_t step = 2; step < 6; step++) {
        for (uint32_t h = 0; h < n; h++)
            if (h != 1)
                give_step(h, 1, step, UT_SECOND);
        run(50 * UT_MS);
        for (uint32_t h = 0; h < n; h++)
            if (h != 1)
                (void)exact(h, 1, step);
    }
    end();
}

/* Host 1 is gone, and for a while all go on by the epoch in which it owns a shard. The sum can be had, so the calls
 * that came before the next epoch are answered under it: once given is enough, and nobody is told that a rank is gone.
 * The epoch begins some attempts further on, as the daemons' does. */
static void an_owner_dies__and_calls_wait_for_the_next_epoch(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    CHECK_EQ(until_done(1, 0), 1);
    silent |= 2;
    for (uint32_t h = 0; h < n; h += h ? 1 : 2)
        ut_engine_peer_absent(hosts[h].engine, 0, 1, now);
    for (uint32_t h = 0; h < n; h += h ? 1 : 2)
        give_step(h, 1, 1, UT_SECOND);
    run(200 * UT_MS);
    for (uint32_t h = 0; h < n; h += h ? 1 : 2)
        CHECK_EQ(has_receipt(h), false);
    part_from_the_silent();
    for (uint32_t h = 0; h < n; h += h ? 1 : 2)
        hosts[h].engine->job[0]->epochs.kept->from = ut_step_first_op(1) + 30;
    run(50 * UT_MS);
    for (uint32_t h = 0; h < n; h += h ? 1 : 2)
        CHECK_EQ(exact(h, 1, 1).op_seq, ut_step_first_op(1) + 32);
    end();
}

/* The op of a step fails on a host that owns a shard, and so on all. All are there, so the next attempt has the result,
 * and nobody calls again for it. */
static void an_attempt_that_fails__costs_time_alone(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    CHECK_EQ(until_done(1, 0), 1);
    give_step(0, 1, 1, UT_SECOND);
    run(10 * UT_MS);
    ut_job *j = hosts[1].engine->job[0];
    ut_op *op = ut_coded_running(j);
    CHECK(op);
    if (op)
        ut_op_fail(j, op, UT_ERR_ABSENT, now);
    give_step(2, 1, 1, UT_SECOND);
    run(50 * UT_MS);
    CHECK_EQ(exact(0, 1, 1).op_seq, ut_step_first_op(1) + UT_OPS_MAX);
    CHECK_EQ(exact(2, 1, 1).op_seq, ut_step_first_op(1) + UT_OPS_MAX);
    end();
}

/* How long the next attempt at step 1 takes on host 2, which fails. */
static ut_ns next_failure(void)
{
    const ut_ns asked = now;
    give_step(2, 1, 1, UT_SECOND);
    while (!has_receipt(2) && now < asked + UT_SECOND)
        run(UT_MS);
    CHECK_EQ(receipt(2).status, UT_FAILED);
    return now - asked;
}

/* A step has so many numbers, and a trainer that tries again at once must not use them up. An attempt that another host
 * makes is joined at once. */
static void attempts_at_a_step__get_rarer(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    CHECK_EQ(until_done(1, 0), 1);
    dies(0);
    dies(1);
    for (unsigned tries = 0; tries < 3 * UT_STEP_PACE; tries++) {
        const ut_ns least = tries < UT_STEP_PACE ? 0 : 64 * UT_MS << (tries / UT_STEP_PACE - 1), took = next_failure();
        CHECK_MSG(took >= least && took <= least + 2 * UT_MS, "attempt %u took %" PRIu64 " ns", tries, took);
    }
    end();
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    CHECK_EQ(until_done(1, 0), 1);
    const uint64_t tried = ut_step_first_op(1) + 3 * UT_STEP_PACE * UT_OPS_MAX;
    for (uint32_t h = 0; h < n; h++)
        hosts[h].engine->job[0]->next_open = tried;
    ut_coded_of(hosts[2].engine->job[0])->failing = 1 + 1;
    give_step(2, 1, 1, UT_SECOND);
    run(100 * UT_MS);
    CHECK_EQ(has_receipt(2), false);
    give_step(0, 1, 1, UT_SECOND);
    run(50 * UT_MS);
    (void)exact(0, 1, 1);
    CHECK_EQ(exact(2, 1, 1).op_seq, tried);
    CHECK_EQ(ut_coded_of(hosts[2].engine->job[0])->failing, 0);
    end();
}

/* The numbers of a step are those of all hosts. Two that fail in turn, each half a pause after the other, use no more
 * of them than one. */
static void attempts_at_a_step__get_rarer_for_all_hosts_together(void)
{
    const uint64_t first = ut_step_first_op(1);
    ut_ns from = 0, to = 0;
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    CHECK_EQ(until_done(1, 0), 1);
    dies(0);
    dies(1);
    give_step(2, 1, 1, UT_SECOND);
    run(32 * UT_MS);
    give_step(3, 1, 1, UT_SECOND);
    for (unsigned turns = 0; turns < 20000 && !to; turns++) {
        run(UT_MS);
        for (uint32_t h = 2; h < 4; h++)
            if (has_receipt(h)) {
                const uint64_t attempt = (receipt(h).op_seq - first) / UT_OPS_MAX;
                from = from || attempt < UT_STEP_PACE ? from : now;
                to = attempt < 2 * UT_STEP_PACE - 1 ? to : now;
                give_step(h, 1, 1, UT_SECOND);
            }
    }
    CHECK_MSG(to - from >= (UT_STEP_PACE - 2) * 64 * UT_MS, "%u attempts took %" PRIu64 " ns", UT_STEP_PACE - 1,
              to - from);
    end();
}

static void both_replicas_die__and_steps_fail_at_once(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    CHECK_EQ(until_done(1, 0), 1);
    dies(0);
    dies(1);
    for (unsigned again = 0; again < 12; again++) {
        give_step(2, 1, 1, UT_SECOND);
        run(20 * UT_MS);
        ut_receipt r = receipt(2);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_EQ(r.error, UT_ERR_ABSENT);
    }
    end();
}

static void an_estimate__stands_for_all(void)
{
    ut_job_options o = coded(1);
    o.exact = UT_EXACT_NO;
    begin(4, 1, o);
    run(20 * UT_MS);
    give_step(0, 1, 0, 100 * UT_MS);
    give_step(1, 1, 0, 100 * UT_MS);
    run(200 * UT_MS);
    for (uint32_t h = 0; h < 2; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.exact, UT_EXACT_NO);
        CHECK_MSG(r.residual_squared == 4, "%g", r.residual_squared);
        const double *at = (const double *)(const void *)(trainers[h][0].arena + RESULT * BUFFER);
        CHECK_MSG(at[0] == 2 && at[elements - 1] == 2, "%g", at[0]);
    }
    end();
}

/* A rank that is three steps behind still gets each step's result; the next op waits for it, but not for ever. */
static void results__stay_for_three_steps(void)
{
    begin(2, 1, coded(1));
    run(20 * UT_MS);
    for (uint64_t step = 0; step < 4; step++) {
        give_step(0, 1, step, UT_SECOND);
        run(50 * UT_MS);
        (void)exact(0, 1, step);
    }
    give_step(0, 1, 4, UT_SECOND);
    run(50 * UT_MS);
    CHECK_EQ(has_receipt(0), false);
    ask_step(1, 1, UT_SECOND); /* it has skipped step 0 */
    run(50 * UT_MS);
    (void)exact(1, 1, 1);
    (void)exact(0, 1, 4);
    give_step(0, 1, 5, UT_SECOND);
    run(400 * UT_MS);
    (void)exact(0, 1, 5);
    for (uint64_t step = 0; step < 3; step += 2) {
        ask_step(1, step, UT_SECOND);
        run(10 * UT_MS);
        ut_receipt r = receipt(1);
        CHECK_EQ(r.status, step == 0 ? UT_BEHIND : UT_COMPLETE);
    }
    end();
}

/* A call for an older step is held against that step's result, whatever the newest one's shape is. */
static void results__have_the_shape_of_their_step(void)
{
    begin(6, 1, coded(1));
    run(20 * UT_MS);
    for (uint64_t step = 0; step < 2; step++) {
        elements = step ? ELEMENTS / 2 : ELEMENTS;
        for (uint32_t h = 0; h < n - 1; h++)
            give_step(h, 1, step, UT_SECOND);
        run(100 * UT_MS);
        for (uint32_t h = 0; h < n - 1; h++)
            (void)exact(h, 1, step);
    }
    elements = ELEMENTS;
    ask_step(n - 1, 0, UT_SECOND);
    run(10 * UT_MS);
    (void)exact(n - 1, 1, 0);
    ask_step(n - 1, 1, UT_SECOND);
    run(10 * UT_MS);
    ut_receipt r = receipt(n - 1);
    CHECK_EQ(r.error, UT_ERR_DESYNC);
    CHECK_EQ(r.field, UT_FIELD_COUNT);
    CHECK_EQ(r.value_here, ELEMENTS / 2);
    CHECK_EQ(r.value_there, ELEMENTS);
    end();
}

/* Ranks come in any order and at any time, some not at all, while packets are lost: what is said to be exact is. */
static void whatever_happens__no_part_counts_twice(void)
{
    static const struct {
        uint32_t hosts, stragglers;
    } shapes[] = {{2, 1}, {4, 1}, {6, 1}, {6, 2}, {8, 1}, {8, 3}, {4, 0}};
    for (unsigned round = 0; round < 40; round++) {
        unsigned k = (unsigned)check_below(sizeof shapes / sizeof *shapes);
        uint32_t stragglers = shapes[k].stragglers;
        begin(shapes[k].hosts, 1, coded(stragglers));
        run(20 * UT_MS);
        drop = check_below(2) ? some_data : NULL;
        for (uint64_t step = 0; step < 5; step++) {
            uint32_t group = stragglers + 1, absent = 0;
            for (uint32_t g = 0; g < n && stragglers; g += group)
                absent |= check_below(2) ? 1u << (g + check_below(group)) : 0;
            for (uint32_t left = n, gave = absent; left; left--) {
                uint32_t h = (uint32_t)check_below(n);
                if (gave >> h & 1)
                    continue;
                gave |= 1u << h;
                give_step(h, stragglers, step, 4 * UT_SECOND);
                run(check_below(300) * UT_US);
            }
            run(10 * UT_US);
            for (uint32_t h = 0; h < n; h++)
                ask_step(h, step, 3 * UT_SECOND); /* who has not given only asks */
            for (uint32_t h = 0; h < n; h++)
                if (!(absent >> h & 1))
                    give_step(h, stragglers, step, 4 * UT_SECOND); /* again, in vain or at last */
            run(UT_SECOND);
            for (uint32_t h = 0; h < n; h++)
                for (bool any = false; has_receipt(h); any = true) {
                    (void)any;
                    (void)exact(h, stragglers, step);
                }
        }
        end();
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(all_give__each_part_is_in_it_once);
    RUN(one_of_each_group__is_enough_and_the_others_get_the_result);
    RUN(who_gives_while_it_runs__is_in);
    RUN(a_group_that_lacks__fails_the_step_on_all);
    RUN(packets_are_lost__and_repaired);
    RUN(one_replica_dies__and_the_job_goes_on_exactly);
    RUN(an_owner_dies__and_calls_wait_for_the_next_epoch);
    RUN(an_attempt_that_fails__costs_time_alone);
    RUN(attempts_at_a_step__get_rarer);
    RUN(attempts_at_a_step__get_rarer_for_all_hosts_together);
    RUN(both_replicas_die__and_steps_fail_at_once);
    RUN(an_estimate__stands_for_all);
    RUN(results__stay_for_three_steps);
    RUN(results__have_the_shape_of_their_step);
    RUN(whatever_happens__no_part_counts_twice);
    return check_end();
}
