/* SPDX-License-Identifier: Apache-2.0
 *
 * When the daemon is woken for what the engine tells: one engine, a queue, and moments that the test names.
 */
#include "engines.h"

#include "udp/events.h"

#include <poll.h>

static ut_event_queue queue;

static bool readable(void)
{
    struct pollfd p = {.fd = queue.fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void open_all(void)
{
    n = 1;
    begin((const uint8_t[]){UT_TAR});
    memset(&queue, 0, sizeof queue);
    pthread_mutex_init(&queue.lock, NULL);
    CHECK(ut_events_open(&queue));
    CHECK(!readable());
    CHECK_EQ(ut_events_due(&queue), UT_NEVER);
}

static void close_all(void)
{
    ut_events_close(&queue);
    pthread_mutex_destroy(&queue.lock);
    end();
}

/* An op that ends, and what tells it. */
static void one_op(uint64_t op)
{
    call_all(op);
    CHECK_EQ(receipt(0).op_seq, op);
}

/* A call that the engine refuses. */
static void one_refusal(void)
{
    ut_submission wrong = {.op_seq = 1000};
    CHECK_EQ(ut_ring_submit(&hosts[0].submissions, &hosts[0].completions, &wrong), UT_OK);
    ut_engine_submissions(hosts[0].engine, hosts[0].session, now);
    CHECK_EQ(receipt(0).error, UT_ERR_SEQUENCE);
}

static void take(uint64_t prompt, ut_ns at)
{
    ut_events_take(&queue, hosts[0].engine, prompt, at);
}

static ut_event polled(void)
{
    ut_event e = {0};
    bool starved;
    CHECK(ut_events_poll(&queue, &e, &starved));
    CHECK(!starved);
    return e;
}

static void check_empty(void)
{
    ut_event e;
    bool starved;
    CHECK(!ut_events_poll(&queue, &e, &starved));
    CHECK(!readable());
    CHECK_EQ(ut_events_due(&queue), UT_NEVER);
}

/* Ops that ended wake nobody until the first of them has waited; then once for all, each with its own time. */
static void ops_gather(void)
{
    const ut_ns start = 5 * UT_SECOND, due = start + UT_EVENTS_GATHER_NS;
    open_all();
    for (uint64_t op = 0; op < 3; op++) {
        one_op(op);
        take(0, start + op * UT_MS);
        CHECK(!readable());
        CHECK_EQ(ut_events_due(&queue), due);
    }
    take(0, due - 1);
    CHECK(!readable());
    take(0, due);
    CHECK(readable());
    CHECK_EQ(ut_events_due(&queue), UT_NEVER);
    one_op(3);
    take(0, due + UT_MS); /* the daemon is awake already, and finds this one too */
    CHECK_EQ(ut_events_due(&queue), UT_NEVER);
    for (uint64_t op = 0; op < 4; op++) {
        CHECK(readable());
        ut_event e = polled();
        CHECK_EQ(e.kind, UT_EVENT_OP_DONE);
        CHECK_EQ(e.op_seq, op);
        CHECK_EQ(e.at, op < 3 ? start + op * UT_MS : due + UT_MS);
    }
    check_empty();
    one_op(4);
    take(0, due + UT_SECOND);
    CHECK(!readable());
    CHECK_EQ(ut_events_due(&queue), due + UT_SECOND + UT_EVENTS_GATHER_NS);
    close_all();
}

/* What a quantised op has moved is told with its end, and wakes as little. */
static void what_ops_moved_gathers_too(void)
{
    open_all();
    ut_submission s = {.count = ELEMENTS,
                       .dst = 4 * ELEMENTS,
                       .deadline_ns = now + 900 * UT_MS,
                       .dtype = UT_FLOAT32,
                       .redop = UT_SUM,
                       .mode = UT_BOUNDED,
                       .collective = UT_ALLREDUCE_QUANT,
                       .alike.quant = {.forms = 0x55}};
    CHECK_EQ(ut_ring_submit(&hosts[0].submissions, &hosts[0].completions, &s), UT_OK);
    ut_engine_submissions(hosts[0].engine, hosts[0].session, now);
    run(now + UT_SECOND);
    CHECK_EQ(receipt(0).wire, 0x55);
    take(0, UT_SECOND);
    CHECK(!readable());
    CHECK_EQ(ut_events_due(&queue), UT_SECOND + UT_EVENTS_GATHER_NS);
    CHECK_EQ(polled().kind, UT_EVENT_OP_DONE);
    CHECK_EQ(polled().kind, UT_EVENT_QUANT);
    check_empty();
    close_all();
}

/* Who asks gets what has gathered, and then there is nothing to wake for. */
static void who_asks_is_told(void)
{
    open_all();
    one_op(0);
    take(0, UT_SECOND);
    CHECK(!readable());
    CHECK_EQ(polled().op_seq, 0);
    check_empty();
    take(0, 2 * UT_SECOND);
    check_empty();
    close_all();
}

static void all_else_is_told_at_once(void)
{
    open_all();
    one_op(0);
    take(0, UT_SECOND);
    CHECK(!readable());
    one_refusal();
    take(0, UT_SECOND + 1);
    CHECK(readable());
    CHECK_EQ(polled().kind, UT_EVENT_OP_DONE);
    CHECK(readable());
    CHECK_EQ(polled().kind, UT_EVENT_BAD_SUBMISSION);
    check_empty();
    close_all();
}

/* A daemon that has a say in when ops begin hears of their ends at once: |prompt| has a bit for its job alone. */
static void jobs_with_a_policy_do_not_wait(void)
{
    open_all();
    one_op(0);
    take(~UINT64_C(0) ^ (UINT64_C(1) << wired_job), UT_SECOND);
    CHECK(!readable());
    one_op(1);
    take(UINT64_C(1) << wired_job, UT_SECOND);
    CHECK(readable());
    polled();
    polled();
    check_empty();
    close_all();
}

/* Where many ops end within the time, the daemon is woken for some at once, long before room is wanting. */
static void many_do_not_wait(void)
{
    open_all();
    unsigned ops = 0;
    while (ops < UT_EVENTS_MAX && !readable()) {
        one_op(ops++);
        take(0, UT_SECOND);
    }
    CHECK_EQ(ops, UT_EVENTS_GATHER);
    for (uint64_t op = 0; op < ops; op++)
        CHECK_EQ(polled().op_seq, op);
    check_empty();
    close_all();
}

/* What found no room stays with the engine, and whoever makes room hears that there is more. */
static void what_finds_no_room_is_not_lost(void)
{
    open_all();
    for (unsigned i = 0; i < UT_EVENTS_MAX; i++)
        one_refusal();
    take(0, UT_SECOND);
    one_refusal();
    take(0, UT_SECOND);
    ut_event e;
    bool starved;
    CHECK(ut_events_poll(&queue, &e, &starved));
    CHECK(starved);
    take(0, UT_SECOND);
    unsigned left = 0;
    while (ut_events_poll(&queue, &e, &starved))
        left++;
    CHECK_EQ(left, UT_EVENTS_MAX);
    check_empty();
    close_all();
}

int main(void)
{
    RUN(ops_gather);
    RUN(what_ops_moved_gathers_too);
    RUN(who_asks_is_told);
    RUN(all_else_is_told_at_once);
    RUN(jobs_with_a_policy_do_not_wait);
    RUN(many_do_not_wait);
    RUN(what_finds_no_room_is_not_lost);
    return check_end();
}
