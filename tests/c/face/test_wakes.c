/* SPDX-License-Identifier: Apache-2.0
 *
 * What a host says and wakes up for beside the data of an op: as seldom as it can.
 */
#include "engines.h"

#include "core/face/engine_impl.h"

static ut_engine *engine;
static ut_job *job;

/* Hosts that have done an op and told each other. */
static void world(uint32_t among)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR, UT_TAR};
    n = among;
    begin(tar);
    engine = hosts[0].engine;
    job = engine->job[0];
    call_all(0);
    for (uint32_t h = 0; h < n; h++)
        CHECK_EQ(receipt(h).status, UT_COMPLETE);
}

/* Kinds of the feedback packets that host 0 sends now, a bit for each. */
static unsigned said(void)
{
    static ut_burst b;
    unsigned kinds = 0;
    while (ut_engine_output_feedback(engine, now, &b))
        kinds |= 1u << ut_wire_kind(b.memory, b.bytes);
    return kinds;
}

/* Host 0 calls the next op, and the others do not. */
static void call_alone(void)
{
    const ut_submission s = {.op_seq = 1,
                             .count = ELEMENTS,
                             .deadline_ns = now + 900 * UT_MS,
                             .dtype = UT_FLOAT32,
                             .redop = UT_SUM,
                             .mode = UT_BOUNDED};
    CHECK_EQ(ut_ring_submit(&hosts[0].submissions, &hosts[0].completions, &s), UT_OK);
    ut_engine_submissions(engine, hosts[0].session, now);
}

/* Who falls silent makes room in the pool. Nobody wakes for that unless somebody wants room. */
static void silence__is_waited_for_only_where_room_is_wanted(void)
{
    world(3);
    ut_conn *c = &job->conn[1];
    c->rx.time_at = now;
    ut_engine_tick(engine, now);
    CHECK(ut_conn_outstanding(c) > 0);
    CHECK_EQ(engine->credit_at, UT_NEVER);
    CHECK_EQ(ut_engine_next_wake(engine), UT_NEVER);

    call_alone();
    job->conn[1].rx.again_at = job->conn[2].rx.again_at = now + 10 * UT_SECOND; /* when grants are repeated */
    ut_engine_tick(engine, now);
    CHECK(!engine->pool.wanting);
    CHECK_EQ(engine->credit_at, now + 10 * UT_SECOND);
    c->rx.granted = c->rx.bytes + 1472;
    engine->pool.bytes = 0;
    engine->pool.quantum = 1472;
    ut_engine_tick(engine, now);
    CHECK(engine->pool.wanting);
    CHECK_EQ(engine->credit_at, c->rx.time_at + ut_job_patience(c));
    end();
}

static void grant__goes_with_a_feedback_that_is_due_soon(void)
{
    world(3);
    ut_conn *c = &job->conn[1];
    c->say.grant = true;
    c->say.at = now + UT_TIMER_MIN_NS;
    CHECK_EQ(said(), 1u << UT_KIND_FEEDBACK);
    CHECK(!c->say.grant && c->say.at > now + UT_TIMER_MIN_NS);
    c->say.grant = true;
    c->say.at = now + UT_TIMER_MIN_NS + 1;
    CHECK_EQ(said(), 1u << UT_KIND_GRANT);
    CHECK_EQ(c->say.at, now + UT_TIMER_MIN_NS + 1);
    end();
}

static void feedback__that_is_due_soon_goes_with_others(void)
{
    world(3);
    ut_conn *a = &job->conn[1], *b = &job->conn[2];
    a->say.at = b->say.at = now + 1;
    ut_engine_tick(engine, now);
    CHECK_EQ(said(), 0); /* one more packet may come until then */
    a->say.at = now;
    b->say.at = now + UT_TIMER_MIN_NS;
    ut_engine_tick(engine, now);
    CHECK_EQ(said(), 1u << UT_KIND_FEEDBACK);
    CHECK(a->say.at > now + UT_MS && b->say.at > now + UT_MS);
    a->say.at = now;
    b->say.at = now + UT_HOLD_NS;
    ut_engine_tick(engine, now);
    CHECK_EQ(said(), 1u << UT_KIND_FEEDBACK);
    CHECK_EQ(b->say.at, now + UT_HOLD_NS);
    end();
}

enum { TOLD_MOST = 64 };
static ut_ns told_at[TOLD_MOST]; /* when host 0 sent feedback */
static unsigned told;

static void note(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    (void)to, (void)packet, (void)len;
    if (from == 0 && port == UT_PORT_FEEDBACK && told < TOLD_MOST)
        told_at[told++] = now;
}

/* The last packets of an op are acknowledged with the news that it has ended, in the turn in which it does. */
static void end__is_told_at_once(uint32_t among)
{
    world(among);
    change = note;
    told = 0;
    for (uint32_t h = 1; h < n; h++)
        job->conn[h].tx.srtt = 8 * UT_MS; /* so that urgent news may wait for as long as they can */
    const ut_ns called = now;
    call_all(1);
    const ut_ns turn = called + receipt(0).elapsed_ns + 10 * UT_US; /* what came is answered in the next one */
    unsigned with = 0, after = 0;
    for (unsigned i = 0; i < told; i++) {
        with += told_at[i] == turn;
        after += told_at[i] > turn && told_at[i] <= turn + UT_TIMER_MIN_NS;
    }
    CHECK_EQ(with, among - 1);
    CHECK_EQ(after, 0);
    end();
}

static void end__is_told_at_once_to_one(void)
{
    end__is_told_at_once(2);
}

static void end__is_told_at_once_to_all(void)
{
    end__is_told_at_once(3);
}

/* Packets of data that host 0 sends now. */
static unsigned sent(void)
{
    static ut_burst b;
    unsigned packets = 0;
    while (ut_engine_output(engine, now, &b))
        packets += b.port == UT_PORT_DATA ? (unsigned)((b.bytes + b.segment_bytes - 1) / b.segment_bytes) : 0;
    return packets;
}

/* A transfer of five packets. Who has no credit or no window for more of them probes as soon as behind the last one;
 * who is held back by the administrator's limit goes on by himself. */
static void tail__is_where_no_more_may_fly(void)
{
    enum { CREDIT, WINDOW, LIMIT };
    for (unsigned short_of = CREDIT; short_of <= LIMIT; short_of++) {
        world(2);
        ut_conn *c = &job->conn[1];
        CHECK(!c->tx.stuck);
        const uint64_t grant = c->tx.grant, window = c->cc.window;
        call_alone();
        if (short_of == CREDIT)
            c->tx.grant = c->tx.bytes + 3 * 1500;
        else if (short_of == WINDOW)
            c->cc.window = 3 * 1500;
        else
            ut_tokens_init(&job->tokens, 1);
        const unsigned first = sent();
        CHECK_EQ(first, short_of == LIMIT ? 0 : 3);
        CHECK_EQ(c->tx.stuck, short_of != LIMIT);
        const ut_ns hold = short_of == LIMIT ? UT_HOLD_NS : UT_TIMER_MIN_NS;
        CHECK_EQ(ut_conn_silence(c), c->tx.srtt + 4 * c->tx.rttvar + hold);
        c->tx.grant = grant;
        c->cc.window = window;
        ut_tokens_init(&job->tokens, 0);
        CHECK(sent() > 0);
        CHECK(!c->tx.stuck);
        end();
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(silence__is_waited_for_only_where_room_is_wanted);
    RUN(grant__goes_with_a_feedback_that_is_due_soon);
    RUN(feedback__that_is_due_soon_goes_with_others);
    RUN(end__is_told_at_once_to_one);
    RUN(end__is_told_at_once_to_all);
    RUN(tail__is_where_no_more_may_fly);
    return check_end();
}
