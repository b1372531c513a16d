/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded jobs by groups: gifts of another step, size or type than the op that runs, and what hosts tell of steps that
 * are over.
 */
#include "coded_crew.h"

#include "core/face/engine_impl.h"
#include "ext/coded/coded.h"

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

/* Two hosts start ops for different steps, before either hears of the other: what one sends must not get into the
 * other's sum. The lower one is past the others, and the higher one is exact when all have come to it. */
static void steps_that_begin_together__do_not_mix(void)
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

/* Host 3 says in its records that its op divides by the world, and hosts 1 and 2 hear of the op from it first. A coded
 * op has sums alone, so theirs does not, and hosts that tell the truth agree with each other. */
static void a_host_that_lies_of_the_divisor__is_alone_with_it(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    give_step(3, 1, 0, UT_SECOND);
    ut_op *op = &hosts[3].engine->job[0]->op[0];
    CHECK_EQ(op->state, UT_OP_RUNNING);
    op->what.by_world = 1;
    run(UT_MS / 20);
    give_step(0, 1, 0, UT_SECOND); /* has not heard of it */
    run(20 * UT_MS);
    give_step(1, 1, 0, UT_SECOND);
    give_step(2, 1, 0, UT_SECOND);
    run(100 * UT_MS);
    for (uint32_t h = 0; h < 3; h++)
        (void)exact(h, 1, 0);
    CHECK_EQ(receipt(3).error, UT_ERR_DESYNC);
    end();
}

/* Host |by| says to host |h| that |step| is over, and all before it. */
static void is_told(uint32_t h, uint32_t by, uint32_t step)
{
    ut_job *j = hosts[h].engine->job[0];
    j->ledger.row[by].rx_floor = ut_step_first_op((uint64_t)step + 1);
    j->gathering->heard(j, now);
}

/* A floor that sinks is refused, with all else that a feedback says. */
static void is_told_the_truth_again(uint32_t h, uint32_t by)
{
    hosts[h].engine->job[0]->ledger.row[by].rx_floor = 0;
}

/* One host tells of a step that nobody has come to. What it says of the next one is believed, and no more. */
static void a_host_that_lies_of_steps__sends_nobody_away(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        give_step(h, 1, 0, UT_SECOND);
    run(50 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        (void)exact(h, 1, 0);
    for (uint32_t next = 0; next < 2; next++) {
        is_told(0, 1, next ? 1 : 1000000);
        ask_step(0, 1, 20 * UT_MS);
        run(30 * UT_MS);
        CHECK_EQ(receipt(0).status, next ? UT_BEHIND : UT_FAILED);
    }
    is_told_the_truth_again(0, 1);
    for (uint32_t h = 0; h < n; h++)
        give_step(h, 1, 2, UT_SECOND);
    run(50 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        (void)exact(h, 1, 2);
    is_told(0, 1, 1000000);
    is_told(0, 2, 1000000); /* two that lie alike are believed */
    ask_step(0, 5, UT_SECOND);
    run(10 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_BEHIND);
    CHECK_EQ(r.step, 1000000);
    end();
}

/* Who begins anew is told where the job is. What one host alone has said, perhaps in a life in which it lied, is no
 * part of that unless it is near: nobody would be there. */
static void where_the_job_is__one_host_alone_does_not_say(void)
{
    for (uint32_t all = 2; all <= 4; all += 2) {
        begin(all, 1, coded(all / 2 - 1));
        run(20 * UT_MS);
        ut_job *j = hosts[0].engine->job[0];
        const uint64_t far = ut_step_first_op(1000000);
        ut_ledger_spoke(&j->ledger, 1, far);
        CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), 0);
        ut_ledger_spoke(&j->ledger, all - 1, far + 8);
        CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), all == 2 ? 0 : far + 1);
        end();
    }
}

/* A host that comes back has had no op. Two tell that a step is over; one alone is believed of the next one as soon as
 * this host has tried it. */
static void a_host_that_comes_back__believes_one_of_the_next_step(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    is_told(0, 1, 4);
    is_told(0, 2, 4);
    for (uint32_t tried = 0; tried < 2; tried++) {
        is_told(0, 3, tried ? 5 : 1000000);
        ask_step(0, 5, 20 * UT_MS);
        run(30 * UT_MS);
        ut_receipt r = receipt(0);
        CHECK_EQ(r.status, tried ? UT_BEHIND : UT_FAILED);
        CHECK_EQ(r.step, tried ? 5 : 0);
        ask_step(0, 4, 20 * UT_MS);
        run(10 * UT_MS);
        CHECK_EQ(receipt(0).status, UT_BEHIND);
        if (tried)
            break;
        give_step(0, 1, 5, 20 * UT_MS);
        run(50 * UT_MS);
        CHECK_EQ(receipt(0).status, UT_FAILED);
    }
    end();
}

/* What host 1 heard of step 0 is lost, with its result. It gives to the step once more, and the others, who are past
 * it, say so. */
static void a_host_that_missed_all_words__is_told_again(void)
{
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        give_step(h, 1, 0, UT_SECOND);
    run(300 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        (void)exact(h, 1, 0);
    ut_job *j = hosts[1].engine->job[0];
    for (uint32_t h = 0; h < n; h += h == 0 ? 2 : 1) {
        ut_ledger *other = &hosts[h].engine->job[0]->ledger;
        ut_ledger_forget(&j->ledger, h);
        ut_ledger_begin(&j->ledger, h);
        ut_ledger_forget(other, 1); /* or its floor would fall */
        ut_ledger_begin(other, 1);
    }
    j->next_open = j->rx_floor = j->partial->results = ut_coded_of(j)->at = 0;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        j->op[k].state = UT_OP_FREE;
    memset(ut_coded_of(j)->result, 0, sizeof ut_coded_of(j)->result);
    for (unsigned again = 0; again < 2; again++) {
        give_step(1, 1, 0, UT_SECOND);
        run(100 * UT_MS);
        ut_receipt r = receipt(1);
        CHECK_EQ(r.status, UT_BEHIND); /* also of the first, whose op fails */
        CHECK_EQ(r.error, UT_OK);
        CHECK_EQ(r.step, 0);
    }
    end();
}

/* In a tree no host has a result that the root has not. */
static void the_root_of_a_tree__is_believed(void)
{
    ut_job_options o = coded(1);
    o.children = 2;
    begin(3, 1, o);
    run(20 * UT_MS);
    is_told(1, 0, 6);
    ask_step(1, 7, 20 * UT_MS);
    run(30 * UT_MS);
    CHECK_EQ(receipt(1).status, UT_FAILED);
    ask_step(1, 6, 20 * UT_MS);
    run(10 * UT_MS);
    CHECK_EQ(receipt(1).status, UT_BEHIND);
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

/* The number of an op is its step's, whatever steps are left out and however often one is tried; the job takes it from
 * the first rank that gives, be it far beyond any number that a host may lag. */
static void the_number_of_an_op__is_that_of_its_step(void)
{
    static const uint32_t steps[] = {3000000, 3000001, 3000100, UINT32_MAX};
    begin(4, 1, coded(1));
    run(20 * UT_MS);
    for (unsigned k = 0; k < 4; k++) {
        give_step(0, 1, steps[k], 20 * UT_MS); /* alone: that fails, and host 0 has made an attempt more */
        run(50 * UT_MS);
        ut_receipt r = receipt(0);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_EQ(r.op_seq, ut_step_first_op(steps[k]));
        for (uint32_t h = 0; h < n; h++)
            give_step(h, 1, steps[k], UT_SECOND);
        run(100 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            r = exact(h, 1, steps[k]);
            CHECK_EQ(ut_step_of_op(r.op_seq), steps[k]);
        }
        CHECK_EQ(hosts[0].engine->job[0]->next_open, ut_step_first_op(steps[k] + 1ULL));
    }
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(gifts_of_another_step__are_not_taken);
    RUN(steps_that_begin_together__do_not_mix);
    RUN(a_host_that_lies_of_the_divisor__is_alone_with_it);
    RUN(the_number_of_an_op__is_that_of_its_step);
    RUN(a_host_that_lies_of_steps__sends_nobody_away);
    RUN(where_the_job_is__one_host_alone_does_not_say);
    RUN(a_host_that_comes_back__believes_one_of_the_next_step);
    RUN(a_host_that_missed_all_words__is_told_again);
    RUN(the_root_of_a_tree__is_believed);
    RUN(a_gift_that_differs__leaves_a_sum_that_is_done);
    RUN(a_gift_that_differs__is_named_to_those_that_run);
    RUN(what_a_host_told_of_steps__goes_with_its_life);
    RUN(the_only_other_host_that_is_up__is_believed);
    return check_end();
}
