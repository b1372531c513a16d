/* SPDX-License-Identifier: Apache-2.0
 *
 * A grant packet is the half of a feedback that gives credit: taken like it, in any order and again, and bounded like
 * it.
 */
#include "engines.h"

#include "core/face/engine_impl.h"

static uint32_t named;       /* the id on feedbacks from host 1 to host 0 */
static uint64_t number_seen; /* of the newest of them */

static void note(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    ut_feedback f;
    if (from == 1 && to == 0 && port == UT_PORT_FEEDBACK) {
        CHECK_EQ(ut_feedback_decode(&f, packet, len, UT_CHECK_SUM), UT_OK);
        named = f.cid;
        number_seen = f.number;
    }
}

static uint64_t credit(void)
{
    return hosts[0].engine->job[0]->conn[1].tx.grant;
}

static void say(uint64_t number, uint64_t grant, bool spoilt)
{
    uint8_t packet[UT_GRANT_BYTES];
    ut_grant_encode(packet, &(ut_grant){.cid = named, .number = number, .grant = grant});
    packet[UT_GRANT_BYTES - 1] ^= spoilt;
    ut_engine_input(hosts[0].engine, UT_PORT_FEEDBACK, packet, sizeof packet, 0, false, now);
}

static bool violated(void)
{
    bool found = false;
    for (ut_event e; ut_engine_poll_event(hosts[0].engine, &e);)
        found = found || e.kind == UT_EVENT_VIOLATION;
    return found;
}

static void grant__is_taken_as_a_feedback_says_it(void)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR};
    n = 2;
    begin(tar);
    change = note;
    run(now + 200 * UT_MS);
    CHECK(named != 0 && number_seen > 0);
    uint64_t before = credit();
    ut_stats was, is;
    ut_engine_stats(hosts[0].engine, &was);
    say(number_seen + 3, before + 5000, false);
    CHECK_EQ(credit(), before + 5000);
    say(number_seen + 4, before + 1000, false); /* an older one that was overtaken */
    say(number_seen + 3, before + 5000, false); /* the same again */
    CHECK_EQ(credit(), before + 5000);
    say(number_seen + 5, before + 9000, true);
    CHECK_EQ(credit(), before + 5000);
    ut_engine_stats(hosts[0].engine, &is);
    CHECK_EQ(is.feedback_received - was.feedback_received, 3);
    CHECK_EQ(is.bad_checksum - was.bad_checksum, 1);
    /* It moves no feedback number: those that it overtook are still heard. */
    run(now + 200 * UT_MS);
    ut_engine_stats(hosts[0].engine, &is);
    CHECK_EQ(is.feedback_old, was.feedback_old);
    CHECK(!violated());
    say(number_seen + 6, UT_GRANT_AHEAD_MAX + (1 << 20), false);
    CHECK(violated());
    end();
}

/* A feedback that others have overtaken is good for what it acknowledges, and for nothing else; one that no honest peer
 * can have sent is told of, however old it is. */
static void grant__a_feedback_that_was_overtaken_acknowledges_still(void)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR};
    n = 2;
    begin(tar);
    change = note;
    run(now + 200 * UT_MS);
    ut_conn *c = &hosts[0].engine->job[0]->conn[1];
    CHECK_EQ(c->tx.flying, 0);
    const uint64_t first = ut_conn_sending(c, &(ut_sent){.op_seq = UINT32_MAX, .step = 0, .slot = 0, .bytes = 100}, 3,
                                           false, now),
                   acked = c->tx.acked_packets;
    ut_feedback old = {.cid = named, .number = c->peer.feedback - 1, .ack_words = 1, .grant = c->tx.grant + 5000};
    const uint64_t before = c->peer.feedback, grant = c->tx.grant;
    ut_stats was, is;
    ut_engine_stats(hosts[0].engine, &was);
    for (unsigned wild = 0; wild < 2; wild++) {
        static uint8_t packet[UT_FEEDBACK_MAX];
        old.highest_pn = (uint32_t)first + 1 + 9 * wild; /* the last one was never sent */
        old.ack[0] = 1;
        const size_t len = ut_feedback_encode(packet, &old);
        ut_engine_input(hosts[0].engine, UT_PORT_FEEDBACK, packet, len, 0, false, now);
        CHECK_EQ(c->tx.acked_packets - acked, 1);
        CHECK_EQ(c->tx.flying, 2);
        CHECK_EQ(violated(), wild == 1);
    }
    ut_engine_stats(hosts[0].engine, &is);
    CHECK_EQ(is.feedback_old - was.feedback_old, 2);
    CHECK_EQ(c->peer.feedback, before);
    CHECK_EQ(c->tx.grant, grant);
    end();
}

/* Two senders have half of the link each, so what is on the way in the mean of their round trips keeps it busy. */
static void grant__the_pool_holds_the_mean_round_trip_of_its_peers(void)
{
    enum { RATE = 125000000, PACKETS = 2000, PACKET = 1472 };
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR, UT_TAR};
    n = 3;
    begin(tar);
    run(now + 200 * UT_MS);
    ut_engine *e = hosts[0].engine;
    ut_pool_init(&e->pool, PACKET, 1 << 20);
    e->late = 0;
    for (unsigned i = 0; i < 3; i++) { /* the first one begins a sample */
        e->job[0]->conn[1].cc.base_rtt = 100 * UT_US;
        e->job[0]->conn[2].cc.base_rtt = 300 * UT_US;
        ut_engine_credit_tick(e, now);
        now += e->waited.longest = (ut_ns)PACKETS * PACKET * UT_SECOND / RATE;
        e->came.bytes += PACKETS * PACKET;
        e->came.packets += PACKETS;
        e->came.numbers += PACKETS;
    }
    uint64_t want = RATE / 1000000 * 200 + UT_POOL_PACKETS * PACKET;
    CHECK_MSG(e->pool.bytes > want - want / 50 && e->pool.bytes < want + want / 50, "%zu, want %zu",
              (size_t)e->pool.bytes, (size_t)want);
    end();
}

static void call(uint32_t h, uint64_t op, uint64_t count)
{
    ut_submission s = {.op_seq = op,
                       .count = count,
                       .deadline_ns = now + 900 * UT_MS,
                       .dtype = UT_FLOAT64,
                       .redop = UT_SUM,
                       .mode = UT_BOUNDED};
    CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
    ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
}

static void call_doubles(uint64_t op, uint64_t count)
{
    for (uint32_t h = 0; h < n; h++)
        call(h, op, count);
    run(now + UT_SECOND);
    CHECK_EQ(receipt(0).status, UT_COMPLETE);
}

/* Packets that host 0 may send, with nothing to send. */
static uint64_t unasked(void)
{
    return (credit() - hosts[0].engine->job[0]->conn[1].tx.bytes) / 1472;
}

/* A bucket of 17 packets goes to the parameter server and comes back: more than the usual standing credit, and no grant
 * is waited for from the second op on, nor in its second stage. When four ops in a row were smaller, credit is as
 * before. */
static void grant__ops_as_small_as_the_last_ones_wait_for_none(void)
{
    enum { USUAL = UT_POOL_PACKETS / 4, WHOLE = 17, OPS_KEPT = UT_OPS_MAX };
    static const uint8_t ps[MOST] = {UT_PS, UT_PS};
    n = 2;
    begin(ps);
    run(now + 200 * UT_MS);
    CHECK_EQ(unasked(), USUAL);
    call_doubles(0, ELEMENTS);
    for (uint64_t op = 1; op < OPS_KEPT; op++) {
        CHECK_EQ(unasked(), 2 * WHOLE);
        call_doubles(op, 2);
    }
    call_doubles(OPS_KEPT, 2);
    CHECK_EQ(hosts[1].engine->pool.standing, USUAL * 1472);
    end();
}

/* A host that works takes many short turns with little to read, one that sleeps a long one with much. */
static void grant__lateness_is_that_of_packets_and_not_of_turns(void)
{
    enum { ASLEEP = 500 * UT_US, AWAKE = 2 * UT_US, EACH = 1000 };
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR};
    n = 2;
    begin(tar);
    ut_engine *e = hosts[0].engine;
    e->late = 0;
    e->waited = (ut_engine_wait){.packets = e->came.packets};
    for (unsigned round = 0; round < 20; round++) {
        ut_engine_waited(e, ASLEEP);
        e->came.packets += EACH;
        for (unsigned turn = 0; turn < EACH / 10; turn++) {
            ut_engine_waited(e, AWAKE);
            e->came.packets += 10;
        }
        ut_engine_waited(e, ASLEEP); /* of which nothing is new */
    }
    CHECK_MSG(e->late > ASLEEP / 5 && e->late < ASLEEP * 4 / 5, "%zu of %d", (size_t)e->late, ASLEEP);
    for (unsigned turn = 0; turn < 20; turn++) {
        ut_engine_waited(e, AWAKE);
        e->came.packets += EACH;
    }
    CHECK_MSG(e->late < 2 * AWAKE, "%zu", (size_t)e->late);
    end();
}

/* What comes unasked may come before its op is open here: no more of it than the path keeps. */
static void grant__nothing_may_come_unasked_that_would_not_be_kept(void)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR};
    n = 2;
    begin(tar);
    run(now + 200 * UT_MS);
    ut_engine *e = hosts[0].engine;
    uint32_t kept = (uint32_t)(e->job[0]->conn[1].rx.stash_size / (1472 + 2));
    CHECK_GE(kept, 2 * UT_POOL_STANDING_MAX);
    e->pool.bytes = 1 << 30;
    e->job[0]->largest[2] = kept;
    ut_engine_credit_tick(e, now);
    CHECK_EQ(e->pool.standing, kept * 1472);
    e->job[0]->largest[2] = kept / 2;
    ut_engine_credit_tick(e, now);
    CHECK_EQ(e->pool.standing, kept / 2 * 2 * 1472);
    e->job[0]->largest[1] = kept + 1; /* beside the other, which would fit */
    ut_engine_credit_tick(e, now);
    CHECK_EQ(e->pool.standing, e->pool.few);
    CHECK_GE(UT_POOL_STANDING_MAX * 1472, e->pool.few);
    end();
}

static uint64_t early_packets(void)
{
    return hosts[1].engine->job[0]->conn[0].rx.stash_bytes / 1472;
}

/* Host 0 calls, and host 1 much later: the part of stage 1 is there by then, whatever the standing credit. */
static void grant__what_a_peer_tells_of_may_come_before_the_op_is_open(void)
{
    enum { UNASKED = 2, PART = 8 }; /* whole packets of half of the bucket */
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR};
    n = 2;
    begin(tar);
    for (uint32_t h = 0; h < n; h++) {
        hosts[h].engine->pool.few = UNASKED * 1472;
        hosts[h].engine->pool.bytes = hosts[h].engine->pool.share = hosts[h].engine->pool.quantum = 1472;
    }
    run(now + 200 * UT_MS);
    CHECK_EQ(unasked(), UNASKED);
    double *x = (double *)(void *)hosts[0].arena, *y = (double *)(void *)hosts[1].arena;
    for (unsigned i = 0; i < ELEMENTS; i++) {
        x[i] = i;
        y[i] = 10000;
    }
    call(0, 0, ELEMENTS);
    run(now + 100 * UT_MS);
    CHECK_GE(early_packets(), PART);
    call(1, 0, ELEMENTS);
    run(now + 100 * UT_MS);
    CHECK_EQ(receipt(1).status, UT_COMPLETE);
    for (unsigned i = 0; i < ELEMENTS; i++)
        CHECK(x[i] == i + 10000.0 && y[i] == i + 10000.0);
    ut_stats s;
    ut_engine_stats(hosts[1].engine, &s);
    CHECK_EQ(s.data_refused, 0);
    CHECK_EQ(early_packets(), 0);
    end();
}

/* A record is a peer's word. One that no op can be like gives no credit, and the daemon lives on. */
static void grant__nonsense_in_a_record_gives_none(void)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR};
    n = 2;
    begin(tar);
    run(now + 200 * UT_MS);
    ut_job *j = hosts[1].engine->job[0];
    ut_inlet inlet;
    ut_ns again = UT_NEVER, silent = UT_NEVER;
    const ut_record good = {.op_seq = j->next_open,
                            .count = ELEMENTS,
                            .dtype = UT_FLOAT64,
                            .algorithm = UT_TAR,
                            .collective = UT_ALLREDUCE};
    ut_record told[6];
    for (unsigned i = 0; i < 6; i++)
        told[i] = good;
    told[1].dtype = 0;
    told[2].dtype = UINT8_MAX;
    told[3].count = UINT64_MAX / 8 + ELEMENTS;
    told[4].op_seq = j->next_open + UT_OPS_MAX * UT_OPS_MAX;
    told[5].algorithm = UT_RING;
    for (unsigned i = 0; i < 6; i++) {
        j->ledger.row[0].seen[0] = true;
        j->ledger.row[0].record[0] = told[i];
        CHECK_EQ(ut_job_inlets(j, now, &inlet, &again, &silent), 1);
        CHECK_EQ(inlet.told, i ? 0 : 8 * 1472);
    }
    CHECK(inlet.kept > 0 && inlet.kept <= (ut_job_keeps(j) - UT_POOL_STANDING_MAX) * (uint64_t)1472);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(grant__nothing_may_come_unasked_that_would_not_be_kept);
    RUN(grant__is_taken_as_a_feedback_says_it);
    RUN(grant__a_feedback_that_was_overtaken_acknowledges_still);
    RUN(grant__the_pool_holds_the_mean_round_trip_of_its_peers);
    RUN(grant__ops_as_small_as_the_last_ones_wait_for_none);
    RUN(grant__what_a_peer_tells_of_may_come_before_the_op_is_open);
    RUN(grant__nonsense_in_a_record_gives_none);
    RUN(grant__lateness_is_that_of_packets_and_not_of_turns);
    return check_end();
}
