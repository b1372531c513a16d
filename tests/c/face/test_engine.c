/* SPDX-License-Identifier: Apache-2.0
 *
 * Two whole engines over a perfect wire that the test may cut: what strangers, wild trainers, deaths and late ranks can
 * do to an op. Timing, loss and reordering at large are the simulator's.
 */
#include "pair.h"

static void engine__sum_and_avg(void)
{
    world(1, 0);
    for (uint64_t op = 0; op < 6; op++) {
        unsigned redop = op % 2 ? UT_AVG : UT_SUM;
        fill(0, 0, 100);
        fill(1, 0, 1000);
        submit(0, 0, call_of(op, ELEMENTS, redop, UT_BOUNDED, UT_SECOND));
        submit(1, 0, call_of(op, ELEMENTS, redop, UT_BOUNDED, UT_SECOND));
        run(now + 20 * UT_MS);
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_receipt r = receipt(h, 0);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.op_seq, op);
            CHECK_EQ(r.bytes_expected, r.bytes_used + r.bytes_missing);
            CHECK_HEX(r.full_mask, 3);
            check_values(h, 0, redop == UT_AVG ? 550 : 1100, redop == UT_AVG ? 1 : 2, 1);
        }
    }
    end_world();
}

/* Strangers: every datagram in one class, nothing comes back, nothing is folded. */
static void engine__garbage_is_counted_and_never_answered(void)
{
    static uint8_t junk[2000];
    static ut_burst b;
    world(1, 0);
    run(now + 300 * UT_MS); /* greetings are over */
    fill(0, 0, 1);
    fill(1, 0, 2);
    ut_stats before, after;
    ut_engine_stats(hosts[0].engine, &before);
    for (int k = 0; k < 5000; k++) {
        size_t len = check_below(4) ? check_below(1600) : check_below(80);
        for (size_t i = 0; i < len; i++)
            junk[i] = (uint8_t)check_random();
        if (len && check_below(2))
            junk[0] = (uint8_t)(UT_WIRE_VERSION << 4 | (UT_KIND_DATA + check_below(4)));
        ut_engine_input(hosts[0].engine, (uint32_t)check_below(2), junk, len, check_below(3) ? 0 : 1 + check_below(99),
                        false, now);
    }
    CHECK(!ut_engine_output(hosts[0].engine, now, &b));
    CHECK(!ut_engine_output(hosts[0].engine, now + UT_SECOND, &b));
    ut_engine_stats(hosts[0].engine, &after);
    CHECK_EQ(received(&after), after.packets_received);
    CHECK_EQ(after.malformed + after.bad_checksum + after.unknown - before.malformed - before.bad_checksum -
                 before.unknown,
             after.packets_received - before.packets_received);
    check_values(0, 0, 1, 1, 1);
    end_world();
}

/* A stranger is turned away before its checksum is computed: what is both unknown and spoilt counts as unknown. */
static void engine__strangers_cost_no_checksum(void)
{
    static uint8_t junk[1472];
    world(1, 0);
    run(now + 300 * UT_MS);
    ut_stats before, after;
    ut_engine_stats(hosts[0].engine, &before);
    for (uint32_t k = 0; k < 100; k++) {
        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (uint8_t)check_random();
        junk[0] = (uint8_t)(UT_WIRE_VERSION << 4 | (UT_KIND_DATA + k % 4));
        junk[6] = 0x03, junk[7] = 0xff; /* a job that does not exist */
        ut_engine_input(hosts[0].engine, k % 2, junk, k % 2 ? 200 : sizeof junk, 0, false, now);
    }
    ut_engine_stats(hosts[0].engine, &after);
    CHECK_EQ(after.unknown - before.unknown, 100);
    CHECK_EQ(after.bad_checksum, before.bad_checksum);
    end_world();
}

/* Every packet of op 0, twice more, while op 1 runs: op 1 is as if nothing had been. */
static void engine__replay_of_an_earlier_op(void)
{
    world(1, 0);
    fill(0, 0, 10);
    fill(1, 0, 20);
    recording = true;
    for (uint32_t h = 0; h < HOSTS; h++)
        submit(h, 0, call_of(0, ELEMENTS, UT_SUM, UT_BOUNDED, UT_SECOND));
    run(now + 20 * UT_MS);
    recording = false;
    for (uint32_t h = 0; h < HOSTS; h++)
        CHECK_EQ(receipt(h, 0).status, UT_COMPLETE);
    fill(0, 0, 3);
    fill(1, 0, 4);
    for (uint32_t h = 0; h < HOSTS; h++)
        submit(h, 0, call_of(1, ELEMENTS, UT_SUM, UT_BOUNDED, UT_SECOND));
    ut_stats before[HOSTS], after;
    for (uint32_t h = 0; h < HOSTS; h++)
        ut_engine_stats(hosts[h].engine, &before[h]);
    uint64_t data[HOSTS] = {0, 0};
    for (int twice = 0; twice < 2; twice++)
        for (size_t i = 0; i < records; i++) {
            uint8_t *r = recorded[i];
            data[r[2]] += r[3] == UT_PORT_DATA;
            ut_engine_input(hosts[r[2]].engine, r[3], r + 4, (size_t)(r[0] << 8 | r[1]), 0, false, now);
        }
    CHECK_GE(records, 50);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_engine_stats(hosts[h].engine, &after);
        CHECK_EQ(after.replayed - before[h].replayed, data[h]);
    }
    run(now + 20 * UT_MS);
    for (uint32_t h = 0; h < HOSTS; h++) {
        CHECK_EQ(receipt(h, 0).status, UT_COMPLETE);
        check_values(h, 0, 7, 2, 1);
    }
    end_world();
}

static void engine__bad_submissions(void)
{
    ut_submission good = {.count = 10, .dtype = UT_FLOAT64, .redop = UT_SUM, .mode = UT_BOUNDED};
    struct {
        const char *name;
        ut_submission s;
        int error;
    } rows[15];
    size_t n = 0;
#define ROW(error_, ...)                                                                                               \
    do {                                                                                                               \
        ut_submission s = good;                                                                                        \
        __VA_ARGS__;                                                                                                   \
        rows[n].name = #__VA_ARGS__;                                                                                   \
        rows[n].s = s;                                                                                                 \
        rows[n++].error = error_;                                                                                      \
    } while (0)
    ROW(UT_ERR_DTYPE, s.dtype = 0);
    ROW(UT_ERR_DTYPE, s.dtype = 255);
    ROW(UT_ERR_REDOP, s.redop = UT_REDOPS_END);
    ROW(UT_ERR_REDOP, s.redop = UT_MIN);
    ROW(UT_ERR_ARGUMENT, s.mode = 0);
    ROW(UT_ERR_ARGUMENT, s.flags = UT_SUBMIT_NOWAIT);
    ROW(UT_ERR_DTYPE, s.mode = UT_BEST_EFFORT, s.dtype = UT_INT64);
    ROW(UT_ERR_REDOP, s.mode = UT_BEST_EFFORT, s.redop = UT_MIN);
    ROW(UT_ERR_TOO_LARGE, s.count = ELEMENTS + 1);
    ROW(UT_ERR_TOO_LARGE, s.count = UINT64_MAX);
    ROW(UT_ERR_RANGE, s.src = s.dst = ARENA - 79);
    ROW(UT_ERR_RANGE, s.src = UINT64_MAX - 7);
    ROW(UT_ERR_RANGE, s.dst = 4);
    ROW(UT_ERR_RANGE, s.dst = 72); /* overlaps src */
    ROW(UT_ERR_RANGE, s.src = ARENA + 8);
#undef ROW
    world(1, 0);
    for (size_t i = 0; i < n; i++) {
        ut_submission s = rows[i].s;
        s.op_seq = i;
        if (s.deadline_ns != UT_NEVER)
            s.deadline_ns = now + UT_SECOND;
        submit(0, 0, s);
        ut_receipt r = receipt(0, 0);
        CHECK_MSG(r.status == UT_FAILED && r.error == rows[i].error, "%s: status %u error %d", rows[i].name, r.status,
                  r.error);
        CHECK_EQ(r.op_seq, i);
    }
    submit(0, 0, call_of(n + 1, 10, UT_SUM, UT_BOUNDED, UT_SECOND));
    CHECK_EQ(receipt(0, 0).error, UT_ERR_SEQUENCE);
    ut_stats s;
    ut_engine_stats(hosts[0].engine, &s);
    CHECK_EQ(s.bad_submissions, n + 1);
    /* The session is not spoilt: the right number goes through; the peer was past those ops and comes along. */
    for (uint64_t op = 0; op <= n; op++) {
        submit(1, 0, call_of(op, 10, UT_SUM, UT_BOUNDED, UT_SECOND));
        if (op == n)
            submit(0, 0, call_of(op, 10, UT_SUM, UT_BOUNDED, UT_SECOND));
        run(now + 100 * UT_MS);
        CHECK_EQ(receipt(1, 0).status, op == n ? UT_COMPLETE : UT_INSUFFICIENT);
    }
    CHECK_EQ(receipt(0, 0).status, UT_COMPLETE);
    end_world();
}

static void engine__desync_names_host_and_field(void)
{
    static const struct {
        unsigned field, dtype, redop, mode;
        uint64_t count;
        uint8_t portion;
    } rows[] = {
        /* 1 */ {UT_FIELD_DTYPE, UT_INT64, UT_SUM, UT_BOUNDED, 100, 0},
        /* 2 */ {UT_FIELD_REDOP, UT_FLOAT64, UT_AVG, UT_BOUNDED, 100, 0},
        /* 3 */ {UT_FIELD_COUNT, UT_FLOAT64, UT_SUM, UT_BOUNDED, 99, 0},
        /* 4 */ {UT_FIELD_COUNT, UT_FLOAT64, UT_SUM, UT_BOUNDED, 0, 0},
        /* 5 */ {UT_FIELD_MODE, UT_FLOAT64, UT_SUM, UT_RELIABLE, 100, 0},
        /* 6 */ {UT_FIELD_SPLIT, UT_FLOAT64, UT_SUM, UT_BOUNDED, 100, 0x20},
    };
    world(1, 0);
    for (uint64_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_submission b = call_of(i, rows[i].count, rows[i].redop, rows[i].mode, UT_SECOND);
        b.dtype = (uint8_t)rows[i].dtype;
        b.portion = rows[i].portion;
        submit(0, 0, call_of(i, 100, UT_SUM, UT_BOUNDED, UT_SECOND));
        submit(1, 0, b);
        run(now + 100 * UT_MS);
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_receipt r = receipt(h, 0);
            CHECK_EQ(r.status, UT_FAILED);
            CHECK_EQ(r.error, UT_ERR_DESYNC);
            CHECK_EQ(r.culprit, 1 - h);
            CHECK_EQ(r.field, rows[i].field);
            CHECK_NE(r.value_here, r.value_there);
        }
    }
    end_world();
}

/* Two ranks of host 0 differ: it fails there, and host 1, which agrees with the one of them, is told of both. */
static void engine__desync_on_one_host_reaches_all(void)
{
    world(2, 0);
    submit(0, 0, call_of(0, 100, UT_SUM, UT_BOUNDED, UT_SECOND));
    submit(1, 0, call_of(0, 100, UT_SUM, UT_BOUNDED, UT_SECOND));
    run(now + UT_MS);
    submit(0, 1, call_of(0, 99, UT_SUM, UT_BOUNDED, UT_SECOND));
    run(now + 100 * UT_MS);
    for (uint32_t h = 0; h < HOSTS; h++)
        for (uint32_t r = 0; r < hosts[h].ranks; r++) {
            ut_receipt x = receipt(h, r);
            CHECK_EQ(x.error, UT_ERR_DESYNC);
            CHECK_EQ(x.culprit, 0);
            CHECK_EQ(x.field, UT_FIELD_COUNT);
            CHECK_EQ(x.value_here, 100);
            CHECK_EQ(x.value_there, 99);
        }
    end_world();
}

static bool drop_first_broadcast(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    return from == 0 && b->port == UT_PORT_DATA && stage_of(packet) == 2 && !(packet[1] >> 6 & UT_FLAG_REPAIR);
}

/* Host 0 has its receipt and scribbles over its buffer; what host 1 still lacks of host 0's shard must come right all
 * the same. */
static void engine__repairs_come_from_the_linger_copy(void)
{
    world(1, 0);
    fill(0, 0, 10);
    fill(1, 0, 20);
    drop = drop_first_broadcast;
    for (uint32_t h = 0; h < HOSTS; h++)
        submit(h, 0, call_of(0, ELEMENTS, UT_SUM, UT_BOUNDED, UT_SECOND));
    for (int k = 0; k < 100 && hosts[0].rank[0].completions.head == 0; k++)
        run(now + 50 * UT_US);
    CHECK_EQ(receipt(0, 0).status, UT_COMPLETE);
    no_receipt(1, 0);
    memset(hosts[0].rank[0].arena, 0xa5, ARENA);
    run(now + 200 * UT_MS);
    ut_receipt r = receipt(1, 0);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_GE(r.bytes_repaired, ELEMENTS / 2 * 8);
    check_values(1, 0, 30, 2, 1);
    ut_stats before, after;
    ut_engine_stats(hosts[0].engine, &before);
    ut_engine_job_remove(hosts[0].engine, 3, now);
    ut_engine_stats(hosts[0].engine, &after);
    CHECK(before.lost_packets > 0 && after.lost_packets == before.lost_packets); /* it outlives the job */
    end_world();
}

static bool drop_from_1(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    (void)b;
    (void)packet;
    return from == 1;
}

/* Nothing of host 1 arrives at host 0: it ends at its deadline with its own value, and says so. */
static void engine__silence_ends_at_the_deadline(void)
{
    world(1, 0);
    fill(0, 0, 10);
    fill(1, 0, 20);
    drop = drop_from_1;
    for (uint32_t h = 0; h < HOSTS; h++)
        submit(h, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, 100 * UT_MS));
    ut_ns deadline = now + 100 * UT_MS;
    run(deadline);
    no_receipt(0, 0);
    run(deadline + UT_US * 20);
    ut_receipt r = receipt(0, 0);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    CHECK_EQ(r.stage_end[0], UT_END_DEADLINE);
    CHECK_EQ(r.bytes_missing, r.bytes_expected);
    CHECK_EQ(r.culprit, 1);
    CHECK_EQ(r.peer[1].why, UT_MISSING_SILENT);
    CHECK_HEX(r.any_mask, 1);
    CHECK_EQ(r.weight_min, 1);
    check_values(0, 0, 10, 1, 1);
    end_world();
}

static void engine__an_absent_host_is_not_waited_for(void)
{
    world(1, 0);
    fill(0, 0, 10);
    submit(0, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, 10 * UT_SECOND));
    run(now + UT_MS);
    no_receipt(0, 0);
    ut_engine_peer_absent(hosts[0].engine, 3, 1, now);
    ut_receipt r = receipt(0, 0);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    CHECK_EQ(r.peer[1].why, UT_MISSING_ABSENT);
    check_values(0, 0, 10, 1, 1);
    submit(0, 0, call_of(1, ELEMENTS, UT_SUM, UT_RELIABLE, 10 * UT_SECOND));
    CHECK_EQ(receipt(0, 0).error, UT_ERR_ABSENT);
    end_world();
}

/* Three ranks on host 0: combined before the network, each gets the result. */
static void engine__local_ranks_are_combined(void)
{
    world(3, 0);
    for (uint32_t r = 0; r < 3; r++)
        fill(0, r, 100 * (r + 1));
    fill(1, 0, 1000);
    for (uint32_t r = 0; r < 3; r++)
        submit(0, r, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    submit(1, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    run(now + 50 * UT_MS);
    for (uint32_t r = 0; r < 3; r++) {
        ut_receipt x = receipt(0, r);
        CHECK_EQ(x.status, UT_COMPLETE);
        CHECK_EQ(x.peer[0].weight, 3);
        CHECK_EQ(x.weight_min, 4);
        check_values(0, r, 400, 1, 1); /* (100 + 200 + 300 + 1000) / 4 */
    }
    CHECK_EQ(receipt(1, 0).status, UT_COMPLETE);
    check_values(1, 0, 400, 1, 1);
    end_world();
}

/* One of them never calls: the others are averaged without it in time; when it comes it gets its own value. */
static void engine__a_late_local_rank_is_left_out(void)
{
    world(3, 0);
    for (uint32_t r = 0; r < 3; r++)
        fill(0, r, 100 * (r + 1));
    fill(1, 0, 1000);
    submit(0, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    submit(0, 1, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    submit(1, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    run(now + 990 * UT_MS);
    for (uint32_t r = 0; r < 2; r++) {
        ut_receipt x = receipt(0, r);
        CHECK_EQ(x.status, UT_PARTIAL);
        CHECK_EQ(x.weight_min, 3);
        CHECK_HEX(x.full_mask, 3);
        check_values(0, r, 1300, 3, 3);
    }
    CHECK_EQ(receipt(1, 0).weight_min, 3);
    submit(0, 2, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    ut_receipt late = receipt(0, 2);
    CHECK_EQ(late.status, UT_INSUFFICIENT);
    check_values(0, 2, 300, 1, 1);
    end_world();
}

/* A trainer dies while others on its host have called, and while the op runs from its own memory. */
static void engine__a_dead_trainer_frees_its_op(void)
{
    world(2, 0);
    fill(0, 0, 100);
    fill(1, 0, 1000);
    submit(0, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    submit(1, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    run(now + 10 * UT_MS);
    no_receipt(0, 0);
    ut_engine_session_remove(hosts[0].engine, hosts[0].rank[1].session, now);
    run(now + 50 * UT_MS);
    CHECK_EQ(receipt(0, 0).status, UT_PARTIAL);
    check_values(1, 0, 550, 1, 1);
    CHECK_EQ(receipt(1, 0).weight_min, 2);

    submit(0, 0, call_of(1, ELEMENTS, UT_AVG, UT_BOUNDED, 10 * UT_SECOND));
    submit(1, 0, call_of(1, ELEMENTS, UT_AVG, UT_BOUNDED, 10 * UT_SECOND));
    ut_engine_session_remove(hosts[0].engine, hosts[0].rank[0].session, now);
    memset(hosts[0].rank[0].arena, 0xff, ARENA);
    run(now + 100 * UT_MS); /* long before the deadline: host 0 said that it sends no more */
    ut_receipt r = receipt(1, 0);
    CHECK_NE(r.status, UT_COMPLETE);
    CHECK_EQ(r.peer[0].why, UT_MISSING_CLOSED);
    end_world();
}

/* A job's share of the link is kept over any stretch longer than its burst. */
static void engine__rate_of_a_job_is_kept(void)
{
    enum { RATE = 1000000 };
    world(1, RATE);
    fill(0, 0, 1);
    fill(1, 0, 2);
    ut_ns start = now;
    for (uint32_t h = 0; h < HOSTS; h++)
        submit(h, 0, call_of(0, ELEMENTS, UT_SUM, UT_BOUNDED, 10 * UT_SECOND));
    while (hosts[0].rank[0].completions.head == 0 && now < start + 5 * UT_SECOND)
        run(now + UT_MS);
    ut_stats s;
    ut_engine_stats(hosts[0].engine, &s);
    CHECK_EQ(receipt(0, 0).status, UT_COMPLETE);
    CHECK_LE(s.data_sent_bytes, (double)(now - start) / 1e9 * RATE + (128 << 10) + 1472);
    CHECK_LE(now - start, (ut_ns)(1.3e9 * (double)s.data_sent_bytes / RATE)); /* and it is used */
    end_world();
}

/* Of host 1's data to host 0 so many packets come of each stage. */
static unsigned left[2];
static bool drop_beyond_left(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    ut_data h;
    if (from != 1 || b->port != UT_PORT_DATA || ut_data_decode(&h, packet, b->segment_bytes, UT_CHECK_NOTHING))
        return false;
    left[h.stage - 1] -= left[h.stage - 1] > 0;
    return left[h.stage - 1] == 0;
}

/* A shard here is 14 packets, which come once in stage 1 and once in stage 2. */
static void engine_awaited__is_of_the_stage_that_is_nearest_to_its_end(void)
{
    static const unsigned rows[][2] = {{5, 14 - 5}, {14, 14}}; /* packets that come of stage 1, and what is awaited */
    world(1, 0);
    run(now + 300 * UT_MS);
    CHECK_EQ(ut_engine_awaited(hosts[0].engine), 0);
    for (uint64_t op = 0; op < 2; op++) {
        drop = drop_beyond_left;
        left[0] = 1 + rows[op][0];
        left[1] = 0;
        for (uint32_t h = 0; h < HOSTS; h++)
            submit(h, 0, call_of(op, ELEMENTS, UT_SUM, UT_RELIABLE, 9 * UT_SECOND));
        run(now + 200 * UT_US);
        CHECK_EQ(ut_engine_awaited(hosts[0].engine), rows[op][1]);
        drop = NULL;
        run(now + 2 * UT_SECOND);
        CHECK_EQ(ut_engine_awaited(hosts[0].engine), 0);
        CHECK_EQ(receipt(0, 0).status, UT_COMPLETE);
    }
    end_world();
}

static uint32_t segments_most;
static bool note_segments(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    (void)packet;
    segments_most = from == 0 && b->port == UT_PORT_DATA ? UT_MAX2(segments_most, b->segments) : segments_most;
    return false;
}

static void engine_limit_bursts__from_one_packet_to_the_most(void)
{
    static const uint64_t rows[][2] = {{3, 3}, {0, 1}, {UINT64_MAX, 8}}; /* asked, and the longest burst then */
    world(1, 0);
    run(now + 300 * UT_MS);
    drop = note_segments;
    for (uint64_t op = 0; op < 3; op++) {
        segments_most = 0;
        ut_engine_limit_bursts(hosts[0].engine, rows[op][0]);
        for (uint32_t h = 0; h < HOSTS; h++)
            submit(h, 0, call_of(op, ELEMENTS, UT_SUM, UT_BOUNDED, UT_SECOND));
        run(now + 20 * UT_MS);
        CHECK_EQ(segments_most, rows[op][1]);
        CHECK_EQ(receipt(0, 0).status, UT_COMPLETE);
    }
    end_world();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(engine__sum_and_avg);
    RUN(engine__garbage_is_counted_and_never_answered);
    RUN(engine__strangers_cost_no_checksum);
    RUN(engine__replay_of_an_earlier_op);
    RUN(engine__bad_submissions);
    RUN(engine__desync_names_host_and_field);
    RUN(engine__desync_on_one_host_reaches_all);
    RUN(engine__repairs_come_from_the_linger_copy);
    RUN(engine__silence_ends_at_the_deadline);
    RUN(engine__an_absent_host_is_not_waited_for);
    RUN(engine__local_ranks_are_combined);
    RUN(engine__a_late_local_rank_is_left_out);
    RUN(engine__a_dead_trainer_frees_its_op);
    RUN(engine__rate_of_a_job_is_kept);
    RUN(engine_awaited__is_of_the_stage_that_is_nearest_to_its_end);
    RUN(engine_limit_bursts__from_one_packet_to_the_most);
    return check_end();
}
