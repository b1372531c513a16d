/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded jobs by groups: the sum over all groups, exact whoever of each group gives, or none. All hosts of group g give
 * 4^g, so that the digits of a result in base 4 say how often each group is in it: 1 is right, and 2 is a replica that
 * was folded twice.
 */
#include "crew.h"

#include "core/face/engine_impl.h"

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

static void gifts_of_another_step__are_not_taken(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    give_step(0, 1, 7, UT_SECOND);
    run(20 * UT_MS);
    give_step(2, 1, 8, UT_SECOND); /* waits for its own step */
    run(50 * UT_MS);
    CHECK_EQ(has_receipt(0) || has_receipt(2), false);
    give_step(3, 1, 7, UT_SECOND);
    run(50 * UT_MS);
    (void)exact(0, 1, 7);
    (void)exact(3, 1, 7);
    CHECK_EQ(has_receipt(2), false);
    give_step(1, 1, 8, UT_SECOND);
    run(50 * UT_MS);
    (void)exact(1, 1, 8);
    (void)exact(2, 1, 8);
    end();
}

/* Two hosts start the same op for different steps, before either hears of the other: what one sends must not get into
 * the other's sum. Both fail, and the step that comes next is exact. */
static void steps_that_meet_in_one_op__do_not_mix(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    give_step(0, 1, 7, 200 * UT_MS);
    give_step(2, 1, 8, 200 * UT_MS);
    run(5 * UT_MS);
    give_step(1, 1, 7, 200 * UT_MS);
    give_step(3, 1, 8, 200 * UT_MS);
    run(500 * UT_MS);
    for (uint32_t h = 0; h < n; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_FAILED);
    }
    for (uint32_t h = 0; h < n; h++)
        give_step(h, 1, 8, UT_SECOND);
    run(100 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        (void)exact(h, 1, 8);
    end();
}

static void is_told(uint32_t h, uint32_t by, uint32_t step)
{
    ut_job *j = hosts[h].engine->job[0];
    ut_record r = {.op_seq = 0, .flags = UT_RECORD_DIGEST | UT_RECORD_ACTIVE, .oldest_step = step, .attached = 1};
    (void)j->gathering->hear(j, by, &r);
}

/* One host tells of a step that nobody has come to. What it says of the next one is believed, and no more. */
static void a_host_that_lies_of_steps__sends_nobody_away(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    CHECK_EQ(until_done(1, 0), 1);
    is_told(0, 1, 1000000);
    ask_step(0, 1, UT_SECOND);
    run(10 * UT_MS);
    CHECK_EQ(receipt(0).status, UT_BEHIND);
    for (uint32_t h = 0; h < n; h++)
        give_step(h, 1, 2, UT_SECOND);
    run(50 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        (void)exact(h, 1, 2);
    is_told(0, 2, 1000000); /* two that lie alike are believed */
    ask_step(0, 5, UT_SECOND);
    run(10 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_BEHIND);
    CHECK_EQ(r.step, 1000000);
    end();
}

/* A host that comes back has had no result. Two tell that the step before is over, and one alone has this one. */
static void a_host_that_comes_back__believes_one_of_the_next_step(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    is_told(0, 1, 4);
    is_told(0, 2, 4);
    is_told(0, 3, 1000000);
    ask_step(0, 6, 20 * UT_MS);
    run(30 * UT_MS);
    CHECK_EQ(receipt(0).status, UT_FAILED);
    ask_step(0, 5, 20 * UT_MS);
    run(30 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_BEHIND);
    CHECK_EQ(r.step, 5);
    end();
}

static bool data_of_0_for_3(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)packet;
    return port == UT_PORT_DATA && from == 0 && to == 3;
}

/* Host 3 has summed its shard for the others when its rank comes with too much. They have their result by then, so the
 * op stays as it is: the call alone is refused, and the result is there for the one that follows. */
static void a_gift_that_differs__leaves_a_sum_that_is_done(void)
{
    begin(4, 1, coded(1));
    drop = data_of_0_for_3;
    run(20 * UT_MS);
    give_step(1, 1, 0, UT_SECOND);
    give_step(2, 1, 0, UT_SECOND);
    run(100 * UT_MS);
    (void)exact(1, 1, 0);
    elements = ELEMENTS - 1;
    give_step(3, 1, 0, UT_SECOND);
    run(20 * UT_MS);
    CHECK_EQ(has_receipt(3), false);
    drop = NULL;
    run(400 * UT_MS);
    ut_receipt r = receipt(3);
    CHECK_EQ(r.status, UT_FAILED);
    CHECK_EQ(r.error, UT_ERR_DESYNC);
    CHECK_EQ(r.field, UT_FIELD_COUNT);
    CHECK_EQ(r.value_here, ELEMENTS);
    CHECK_EQ(r.value_there, ELEMENTS - 1);
    elements = ELEMENTS;
    give_step(3, 1, 0, UT_SECOND);
    run(10 * UT_MS);
    (void)exact(3, 1, 0);
    end();
}

static bool feedback_of_3(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)to;
    (void)packet;
    return port == UT_PORT_FEEDBACK && from == 3;
}

/* All know of the op, and wait for host 3, when its rank comes with too much. They are told why it fails, although the
 * first word of that is lost. */
static void a_gift_that_differs__is_named_to_those_that_run(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    for (uint32_t h = 0; h < 2; h++)
        give_step(h, 1, 0, UT_SECOND);
    run(20 * UT_MS);
    drop = feedback_of_3;
    elements = ELEMENTS - 1;
    give_step(3, 1, 0, UT_SECOND);
    run(5 * UT_MS);
    drop = NULL;
    run(200 * UT_MS);
    for (uint32_t h = 0; h < n; h += h == 1 ? 2 : 1) {
        ut_receipt r = receipt(h);
        CHECK_MSG(r.error == UT_ERR_DESYNC, "host %u: error %d", h, r.error);
        CHECK_EQ(r.culprit, 3);
        CHECK_EQ(r.field, UT_FIELD_COUNT);
    }
    end();
}

/* Of two hosts each believes the other, for as long as that one lives: were it longer, a lie would end the job. */
static void what_a_host_told_of_steps__goes_with_its_life(void)
{
    begin(2, 1, coded(1));
    run(20 * UT_MS);
    is_told(0, 1, UINT32_MAX - 1);
    give_step(0, 1, 0, UT_SECOND);
    run(10 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_BEHIND);
    CHECK_EQ(r.step, UINT32_MAX - 1);
    connect_all();
    run(20 * UT_MS);
    give_step(0, 1, 0, UT_SECOND);
    run(50 * UT_MS);
    (void)exact(0, 1, 0);
    end();
}

/* When all others have gone but one, nobody else can say where the job is. */
static void the_only_other_host_that_is_up__is_believed(void)
{
    begin(3, 1, coded(2));
    run(20 * UT_MS);
    for (uint32_t up = 2; up-- > 0;) {
        if (up == 0)
            ut_engine_peer_absent(hosts[0].engine, 0, 2, now);
        is_told(0, 1, 6);
        ask_step(0, 5, up ? 20 * UT_MS : UT_SECOND);
        run(30 * UT_MS);
        ut_receipt r = receipt(0);
        CHECK_EQ(r.status, up ? UT_FAILED : UT_BEHIND);
        CHECK_EQ(r.step, up ? 0 : 6);
    }
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
    RUN(both_replicas_die__and_steps_fail_at_once);
    RUN(an_estimate__stands_for_all);
    RUN(results__stay_for_three_steps);
    RUN(gifts_of_another_step__are_not_taken);
    RUN(steps_that_meet_in_one_op__do_not_mix);
    RUN(a_host_that_lies_of_steps__sends_nobody_away);
    RUN(a_host_that_comes_back__believes_one_of_the_next_step);
    RUN(a_gift_that_differs__leaves_a_sum_that_is_done);
    RUN(a_gift_that_differs__is_named_to_those_that_run);
    RUN(what_a_host_told_of_steps__goes_with_its_life);
    RUN(the_only_other_host_that_is_up__is_believed);
    RUN(whatever_happens__no_part_counts_twice);
    return check_end();
}
