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

static ut_ns speaks_at(const ut_conn *c)
{
    return ut_due_next(&c->say.due, UT_DUE_FEEDBACK);
}

/* All that |c| has to say is due at |at|. */
static void speaks(ut_conn *c, ut_ns at)
{
    ut_due_settle(&c->say.due);
    ut_conn_speak_at(c, at);
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
    run(now + 3 * UT_SECOND); /* all that is said has been answered */
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
    ut_conn *other = &job->conn[2]; /* it has all the room that there is, and was heard a moment later */
    other->rx.time_at = now + UT_SECOND;
    other->rx.granted = other->rx.bytes + (1 << 20);
    c->rx.granted = c->rx.bytes + 1472;
    engine->pool.rate = 0; /* the pool stays as it is */
    engine->pool.bytes = 64 << 10;
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
    speaks(c, now + UT_TIMER_MIN_NS);
    ut_due_at(&c->say.due, UT_DUE_CREDIT, now);
    CHECK_EQ(said(), 1u << UT_KIND_FEEDBACK);
    CHECK(ut_due_next(&c->say.due, UT_DUE_CREDIT) > now + UT_TIMER_MIN_NS);
    speaks(c, now + UT_TIMER_MIN_NS + 1);
    ut_due_at(&c->say.due, UT_DUE_CREDIT, now);
    CHECK_EQ(said(), 1u << UT_KIND_GRANT);
    CHECK_EQ(ut_due_next(&c->say.due, UT_DUE_CREDIT), now + UT_TIMER_MIN_NS + 1);
    end();
}

static void feedback__that_is_due_soon_goes_with_others(void)
{
    world(3);
    ut_conn *a = &job->conn[1], *b = &job->conn[2];
    speaks(a, now + 1);
    speaks(b, now + 1);
    ut_engine_tick(engine, now);
    CHECK_EQ(said(), 0); /* one more packet may come until then */
    speaks(a, now);
    speaks(b, now + UT_TIMER_MIN_NS);
    ut_engine_tick(engine, now);
    CHECK_EQ(said(), 1u << UT_KIND_FEEDBACK);
    CHECK(speaks_at(a) > now + UT_MS && speaks_at(b) > now + UT_MS);
    speaks(a, now);
    speaks(b, now + UT_HOLD_NS);
    ut_engine_tick(engine, now);
    CHECK_EQ(said(), 1u << UT_KIND_FEEDBACK);
    CHECK_EQ(speaks_at(b), now + UT_HOLD_NS);
    end();
}

/* The newest data of each host to host 0 and feedback of host 0 to each, by their place among all packets. */
static unsigned packets, came[MOST], told[MOST];
static ut_ns told_at[MOST];

static void note(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    packets++;
    if (to == 0 && ut_wire_kind(packet, len) == UT_KIND_DATA)
        came[from] = packets;
    if (from == 0 && port == UT_PORT_FEEDBACK && (told[to] < came[to] || told[to] == 0)) {
        told[to] = packets;
        told_at[to] = now;
    }
}

/* After a loss the last packets of an op are acknowledged with the news that it has ended, in the turn in which it
 * does, or with the last data to their sender if they came before. */
static void end__is_told_at_once(uint32_t among)
{
    world(among);
    change = note;
    packets = 0;
    memset(came, 0, sizeof came);
    memset(told, 0, sizeof told);
    for (uint32_t h = 1; h < n; h++) {
        job->conn[h].tx.srtt = 8 * UT_MS; /* so that urgent news may wait for as long as they can */
        hosts[h].engine->job[0]->conn[0].tx.hurry_to = now + UT_SECOND;
    }
    const ut_ns called = now;
    call_all(1);
    const ut_ns turn = called + receipt(0).elapsed_ns + 10 * UT_US; /* what came is answered in the next one */
    unsigned with = 0;
    for (uint32_t h = 1; h < n; h++) {
        CHECK(came[h] > 0 && told[h] > came[h]);
        CHECK_GE(turn, told_at[h]);
        with += told_at[h] == turn;
    }
    CHECK_GE(with, 1);
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

/* What host 0 has sent to each host, and when. */
static struct sent {
    ut_ns at;
    uint32_t to;
    unsigned kind;
    uint8_t flags;
} sent_by_0[256];
static unsigned sends;

static void note_all(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    ut_data h = {0};
    (void)port;
    if (from != 0 || sends == 256)
        return;
    unsigned kind = ut_wire_kind(packet, len);
    if (kind == UT_KIND_DATA)
        CHECK_EQ(ut_data_decode(&h, packet, len, UT_CHECK_SUM), UT_OK);
    sent_by_0[sends++] = (struct sent){.at = now, .to = to, .kind = kind, .flags = h.flags};
}

/* Data that went to the same host at the same time. */
static bool goes_with_data(const struct sent *s)
{
    bool with = false;
    for (unsigned i = 0; i < sends; i++)
        with = with || (sent_by_0[i].kind == UT_KIND_DATA && sent_by_0[i].to == s->to && sent_by_0[i].at == s->at);
    return with;
}

/* Where nothing is lost, all that a host says until the end of an op goes with its data: its record with the first
 * stage, the answer to what came and the credit for more with the second. What came last is answered a millisecond
 * later, if no other op takes it along. */
static void calm__all_that_is_said_goes_with_data(void)
{
    world(3);
    for (uint64_t op = 1; op < 4; op++) {
        unsigned said_with[MOST] = {0}, later[MOST] = {0};
        const ut_ns called = now;
        change = note_all;
        sends = 0;
        call_all(op);
        const ut_ns over = called + receipt(0).elapsed_ns;
        CHECK(sends < 256);
        for (unsigned i = 0; i < sends; i++) {
            const struct sent *s = &sent_by_0[i];
            CHECK(s->kind == UT_KIND_DATA || s->kind == UT_KIND_FEEDBACK);
            CHECK_MSG(s->at > over || s->kind == UT_KIND_DATA || goes_with_data(s), "op %u", (unsigned)op);
            CHECK(s->at <= over || s->at >= over + UT_HOLD_NS / 2);
            CHECK(!(s->flags & UT_FLAG_ASK));
            said_with[s->to] += s->kind == UT_KIND_FEEDBACK && s->at <= over;
            later[s->to] += s->kind == UT_KIND_FEEDBACK && s->at > over;
        }
        for (uint32_t h = 1; h < n; h++) {
            CHECK_EQ(said_with[h], 2);
            CHECK_EQ(later[h], 1);
        }
        for (uint32_t h = 1; h < n; h++)
            receipt(h);
    }
    end();
}

/* The next op takes along what is left to say of the one before. */
static void calm__news_waits_for_the_next_op(void)
{
    world(2);
    ut_conn *c = &job->conn[1];
    speaks(c, now + UT_HOLD_NS);
    c->rx.reported = c->rx.packets - 1;
    call_alone();
    ut_engine_tick(engine, now);
    speaks(c, now + UT_HOLD_NS); /* the record has been told */
    static ut_burst b;
    unsigned data = 0, feedback = 0;
    while (ut_engine_output(engine, now, &b)) {
        data += b.port == UT_PORT_DATA;
        feedback += b.port == UT_PORT_FEEDBACK;
        CHECK(b.port == UT_PORT_DATA || data > 0);
    }
    CHECK(data > 0);
    CHECK_EQ(feedback, 1);
    end();
}

/* A loss on one path, or an op whose end waits for the answer, and the last packets ask for one. */
static void hurry__is_for_all_paths_and_for_what_must_arrive(void)
{
    enum { CALM, LOSS, BEFORE, SCATTER };
    for (unsigned why = CALM; why <= SCATTER; why++) {
        world(3);
        job->conn[2].tx.hurry_to = why == LOSS ? now + 1 : why == BEFORE ? now : 0;
        ut_submission s = {.op_seq = 1,
                           .count = ELEMENTS,
                           .deadline_ns = now + 900 * UT_MS,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .collective = why == SCATTER ? UT_REDUCE_SCATTER : UT_ALLREDUCE,
                           .mode = why == SCATTER ? UT_RELIABLE : UT_BOUNDED};
        CHECK_EQ(ut_ring_submit(&hosts[0].submissions, &hosts[0].completions, &s), UT_OK);
        ut_engine_submissions(engine, hosts[0].session, now);
        ut_engine_tick(engine, now);
        static ut_burst b;
        unsigned last = 0, asked = 0;
        while (ut_engine_output(engine, now, &b))
            for (size_t at = 0; b.port == UT_PORT_DATA && at < b.bytes; at += b.segment_bytes) {
                ut_data h;
                CHECK_EQ(ut_data_decode(&h, b.memory + at, UT_MIN2(b.segment_bytes, b.bytes - at), UT_CHECK_SUM),
                         UT_OK);
                last += h.ultima.last > 0;
                asked += (h.flags & UT_FLAG_ASK) != 0;
            }
        CHECK_EQ(last, 2);
        CHECK_EQ(asked, why == CALM || why == BEFORE ? 0 : 2);
        for (uint32_t h = 1; h < n; h++) /* who asks misses an answer sooner */
            CHECK_EQ(ut_conn_silence(&job->conn[h]) >=
                         job->conn[h].tx.srtt + 4 * job->conn[h].tx.rttvar + (ut_ns)UT_HOLD_NS,
                     asked == 0);
        end();
    }
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

/* Feedbacks that came here from host 1. */
static uint64_t heard_of_1(void)
{
    ut_peer_stats stats;
    CHECK_EQ(ut_engine_peer_stats(engine, 0, 1, &stats), UT_OK);
    return stats.feedbacks_heard + stats.feedbacks_beside;
}

/* An idle host says nothing by itself, and answers each question at once; one that is cut off does not. */
static void ask__is_answered_without_an_op(void)
{
    world(2);
    run(now + 2 * UT_SECOND); /* all is told */
    for (unsigned turn = 0; turn < 4; turn++) {
        const uint64_t before = heard_of_1();
        run(now + 300 * UT_MS);
        CHECK_EQ(heard_of_1() - before, 0);
        CHECK_EQ(ut_engine_peer_ask(engine, 0, 1, now), UT_OK);
        silent = turn == 3 ? 1u << 1 : 0;
        run(now + 3 * UT_MS);
        CHECK_EQ(heard_of_1() - before, turn != 3);
    }
    silent = 0;
    CHECK_EQ(ut_engine_peer_ask(engine, 0, 0, now), UT_ERR_UNKNOWN);
    CHECK_EQ(ut_engine_peer_ask(engine, 0, n, now), UT_ERR_UNKNOWN);
    CHECK_EQ(ut_engine_peer_ask(engine, 1, 1, now), UT_ERR_UNKNOWN);
    unplug_all();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(silence__is_waited_for_only_where_room_is_wanted);
    RUN(grant__goes_with_a_feedback_that_is_due_soon);
    RUN(feedback__that_is_due_soon_goes_with_others);
    RUN(end__is_told_at_once_to_one);
    RUN(end__is_told_at_once_to_all);
    RUN(calm__all_that_is_said_goes_with_data);
    RUN(calm__news_waits_for_the_next_op);
    RUN(hurry__is_for_all_paths_and_for_what_must_arrive);
    RUN(tail__is_where_no_more_may_fly);
    RUN(ask__is_answered_without_an_op);
    return check_end();
}
