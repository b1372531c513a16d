/* SPDX-License-Identifier: Apache-2.0
 *
 * What a coded step sends, to what an uncoded allreduce of the same bucket does, in virtual time: whole engines on
 * links of 1 Gbit/s each way, 50 us apart, whose ranks give within 100 us of each other. With one straggler a group,
 * stage 1 needs N / 2 - 1 shares for each owner and not N - 1.
 */
#include "check.h"

#include "core/face/engine.h"

enum {
    MOST = 16,
    ELEMENTS = 1 << 17,
    BYTES = ELEMENTS * 4,
    PACKETS = 1 << 12,
    PACKET = 1472,
    STEPS = 2,
    TICK = 5 * 1000,
    DELAY = 50 * 1000,
    BACKLOG = 100 * 1000, /* of an up-link, in ns */
};

typedef struct packet {
    ut_ns at;
    uint32_t to, port, len;
    uint8_t bytes[PACKET];
} packet;

static struct host {
    ut_engine *engine;
    void *engine_memory, *job_memory;
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint8_t *arena;
    uint32_t session;
    ut_ns up, down, calls_at;
    bool called;
} hosts[MOST];
static packet *queue[MOST]; /* by receiver, in the order of arrival: a ring */
static uint32_t first[MOST], queued[MOST];
static uint32_t n;
static ut_ns now;

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

static void begin(uint32_t hosts_, ut_job_options options)
{
    uint32_t cid[MOST][MOST];
    n = hosts_;
    now = UT_SECOND;
    for (uint32_t h = 0; h < n; h++) {
        struct host *x = &hosts[h];
        memset(x, 0, sizeof *x);
        ut_engine_config config = {
            .packet_bytes = PACKET, .segments_max = 8, .receive_buffer = 4 << 20, .seed = check_random()};
        ut_job_config job = {.hosts = n,
                             .self = h,
                             .local_ranks = 1,
                             .world = n,
                             .packet_bytes = PACKET,
                             .bucket_bytes_max = BYTES,
                             .options = options};
        x->engine_memory = zeroed(ut_engine_bytes(&config));
        x->job_memory = zeroed(ut_job_bytes(&config, &job));
        x->arena = zeroed(2 * BYTES);
        CHECK_EQ(ut_engine_init(x->engine_memory, &config, &x->engine), UT_OK);
        CHECK_EQ(ut_engine_job_add(x->engine, 0, &job, x->job_memory), UT_OK);
        ut_session_memory m = {&x->submissions, &x->completions, x->arena, 2 * BYTES, 0, 0};
        CHECK_EQ(ut_engine_session_add(x->engine, 0, &m, 0, &x->session), UT_OK);
        queue[h] = malloc(sizeof(packet) * PACKETS);
        first[h] = queued[h] = 0;
    }
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++)
            if (p != h)
                CHECK_EQ(ut_engine_peer_listen(hosts[h].engine, 0, p, &cid[h][p]), UT_OK);
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++) {
            ut_addr a = {.len = 1, .bytes = {(uint8_t)p}};
            if (p != h)
                CHECK_EQ(ut_engine_peer_connect(hosts[h].engine, 0, p, &a, &a, cid[p][h], now), UT_OK);
        }
}

static void end(void)
{
    for (uint32_t h = 0; h < n; h++) {
        ut_engine_job_remove(hosts[h].engine, 0, now);
        free(hosts[h].engine_memory);
        free(hosts[h].job_memory);
        free(hosts[h].arena);
        free(queue[h]);
    }
}

/* 8 ns a byte, on the sender's link and then on the receiver's. */
static void send_on(uint32_t from, const ut_burst *b)
{
    uint32_t to = b->to.bytes[0];
    for (uint32_t at = 0; at < b->bytes; at += b->segment_bytes) {
        uint32_t bytes = UT_MIN2(b->bytes - at, b->segment_bytes);
        CHECK(queued[to] < PACKETS);
        packet *p = &queue[to][(first[to] + queued[to]++) % PACKETS];
        hosts[from].up = UT_MAX2(hosts[from].up, now) + bytes * 8;
        hosts[to].down = UT_MAX2(hosts[to].down, hosts[from].up + DELAY) + bytes * 8;
        *p = (packet){.at = hosts[to].down, .to = to, .port = b->port, .len = bytes};
        memcpy(p->bytes, b->memory + at, bytes);
    }
}

static void call(uint32_t h, uint64_t step, bool coded)
{
    struct host *x = &hosts[h];
    ut_submission s = {.op_seq = step,
                       .dst = BYTES,
                       .count = ELEMENTS,
                       .deadline_ns = now + 4 * UT_SECOND,
                       .dtype = UT_FLOAT32,
                       .redop = UT_SUM,
                       .mode = UT_BOUNDED};
    if (coded) {
        s.flags = UT_SUBMIT_GIVE;
        s.wanted = step;
        s.oldest_step = s.newest_step = (uint32_t)step;
    }
    CHECK_EQ(ut_ring_submit(&x->submissions, &x->completions, &s), UT_OK);
    ut_engine_submissions(x->engine, x->session, now);
    x->called = true;
}

/* One step of all ranks. False if one has no whole result. */
static bool step_of_all(uint64_t step, bool coded)
{
    static ut_burst b;
    ut_receipt r;
    uint32_t done = 0;
    for (uint32_t h = 0; h < n; h++) {
        hosts[h].called = false;
        hosts[h].calls_at = now + check_below(100) * UT_US;
    }
    for (ut_ns until = now + UT_SECOND; now < until && done < n; now += TICK)
        for (uint32_t h = 0; h < n; h++) {
            struct host *x = &hosts[h];
            if (!x->called && now >= x->calls_at)
                call(h, step, coded);
            for (; queued[h] && queue[h][first[h]].at <= now; queued[h]--, first[h] = (first[h] + 1) % PACKETS)
                ut_engine_input(x->engine, queue[h][first[h]].port, queue[h][first[h]].bytes, queue[h][first[h]].len, 0,
                                false, now);
            ut_engine_tick(x->engine, now);
            while (x->up < now + BACKLOG && ut_engine_output(x->engine, now, &b))
                send_on(h, &b);
            if (ut_ring_take_completion(&x->submissions, &x->completions, &r) == 1) {
                CHECK_EQ(r.status, UT_COMPLETE);
                CHECK_EQ(r.bytes_expected, r.bytes_used + r.bytes_redundant + r.bytes_missing);
                done++;
            }
        }
    return done == n;
}

static double bytes_of(uint32_t hosts_, uint32_t stragglers)
{
    double sum = 0;
    begin(hosts_, stragglers ? (ut_job_options){.policy = UT_POLICY_CODED, .stragglers = (uint8_t)stragglers}
                             : (ut_job_options){0});
    for (uint64_t step = 0; step < STEPS; step++)
        CHECK_MSG(step_of_all(step, stragglers), "%u hosts, step %u: no result", hosts_, (unsigned)step);
    for (uint32_t h = 0; h < n; h++) {
        ut_stats stats;
        ut_engine_stats(hosts[h].engine, &stats);
        sum += (double)stats.data_sent_bytes;
    }
    end();
    return sum;
}

static void bytes__to_uncoded(void)
{
    static const struct {
        uint32_t hosts, stragglers;
        double ratio;
    } rows[] = {{4, 1, 0.67}, {8, 1, 0.71}, {16, 1, 0.73}, {8, 3, 0.57}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double ratio = bytes_of(rows[i].hosts, rows[i].stragglers) / bytes_of(rows[i].hosts, 0);
        if (getenv("UT_TEST_SHOWS"))
            printf("%u hosts, %u stragglers: %.3f, expected %.2f\n", rows[i].hosts, rows[i].stragglers, ratio,
                   rows[i].ratio);
        CHECK_MSG(ratio < 1.1 * rows[i].ratio && ratio > 0.9 * rows[i].ratio, "%u hosts, %u stragglers: %.3f, not %.2f",
                  rows[i].hosts, rows[i].stragglers, ratio, rows[i].ratio);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(bytes__to_uncoded);
    return check_end();
}
