/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole engines on schedules that forward: every algorithm gives the same sums; a host that is gone leaves exactly the
 * hole that the schedule says, and the receipts say it; hosts that were told different algorithms do not mix.
 */
#include "check.h"

#include "../../transport_c/core/engine.h"

enum { MOST = 8, ELEMENTS = 3000, ARENA = 2 * ELEMENTS * 8 };

static struct host {
    ut_engine *engine;
    void *engine_memory, *job_memory;
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint32_t session;
    uint8_t arena[ARENA] __attribute__((aligned(64)));
} hosts[MOST];
static uint32_t n;
static ut_ns now;
static uint32_t silent;   /* bit per host: nothing comes from it or reaches it */
static uint32_t loss_ppm; /* of data packets */

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

/* |n| hosts, host h with algorithm[h]. */
static void begin(const uint8_t *algorithm)
{
    uint32_t cid[MOST][MOST];
    now = 7 * UT_SECOND;
    silent = loss_ppm = 0;
    for (uint32_t h = 0; h < n; h++) {
        struct host *x = &hosts[h];
        ut_engine_config config = {
            .packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = check_random()};
        ut_job_config job = {.hosts = n,
                             .self = h,
                             .local_ranks = 1,
                             .packet_bytes = 1472,
                             .bucket_bytes_max = ELEMENTS * 8,
                             .options = {.algorithm = algorithm[h]}};
        memset(x, 0, sizeof *x);
        x->engine_memory = zeroed(ut_engine_bytes(&config));
        x->job_memory = zeroed(ut_job_bytes(&config, &job));
        CHECK_EQ(ut_engine_init(x->engine_memory, &config, &x->engine), UT_OK);
        CHECK_EQ(ut_engine_job_add(x->engine, 0, &job, x->job_memory), UT_OK);
        ut_session_memory m = {&x->submissions, &x->completions, x->arena, ARENA};
        CHECK_EQ(ut_engine_session_add(x->engine, 0, &m, 0, &x->session), UT_OK);
        for (uint32_t p = 0; p < n; p++)
            if (p != h)
                CHECK_EQ(ut_engine_peer_listen(x->engine, 0, p, &cid[h][p]), UT_OK);
    }
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
    }
}

static void deliver(uint32_t from, const ut_burst *b)
{
    static uint8_t flat[65536];
    size_t len = 0;
    uint32_t to = b->to.bytes[0];
    for (uint32_t i = 0; i < b->iovs; i++) {
        memcpy(flat + len, b->iov[i].base, b->iov[i].len);
        len += b->iov[i].len;
    }
    for (size_t at = 0; at < len; at += b->segment_bytes) {
        bool lost = (silent >> from | silent >> to) & 1;
        lost = lost || (b->port == UT_PORT_DATA && check_below(1000000) < loss_ppm);
        if (!lost)
            ut_engine_input(hosts[to].engine, b->port, flat + at, UT_MIN2(len - at, (size_t)b->segment_bytes), 0, false,
                            now);
    }
}

static void run(ut_ns until)
{
    static ut_burst b;
    while (now < until) {
        bool moved = false;
        ut_ns wake = UT_NEVER;
        for (uint32_t h = 0; h < n; h++) {
            ut_engine_tick(hosts[h].engine, now);
            while (ut_engine_output(hosts[h].engine, now, &b)) {
                moved = true;
                deliver(h, &b);
            }
        }
        for (uint32_t h = 0; h < n; h++)
            wake = UT_MIN2(wake, ut_engine_next_wake(hosts[h].engine));
        now = moved ? now + 10 * UT_US : UT_MAX2(UT_MIN2(wake, until), now + 1);
    }
}

/* Host h brings 10^h in each element, so that a sum reads as the hosts in it. */
static void submit(uint64_t op_seq, uint64_t count, unsigned redop, unsigned mode, bool in_place)
{
    for (uint32_t h = 0; h < n; h++) {
        int64_t *src = (int64_t *)hosts[h].arena, value = 1;
        for (uint32_t k = 0; k < h; k++)
            value *= 10;
        for (uint64_t i = 0; i < count; i++)
            src[i] = value;
        ut_submission s = {.op_seq = op_seq,
                           .dst = in_place ? 0 : ELEMENTS * 8,
                           .count = count,
                           .deadline_ns = now + UT_SECOND,
                           .dtype = UT_INT64,
                           .redop = (uint8_t)redop,
                           .mode = (uint8_t)mode};
        if (silent >> h & 1)
            continue;
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
    }
}

static ut_receipt receipt(uint32_t h)
{
    ut_receipt r = {0};
    CHECK_EQ(ut_ring_take_completion(&hosts[h].submissions, &hosts[h].completions, &r), 1);
    CHECK_EQ(r.bytes_expected, r.bytes_used + r.bytes_missing);
    return r;
}

static const int64_t *result(uint32_t h, bool in_place)
{
    return (const int64_t *)(hosts[h].arena + (in_place ? 0 : ELEMENTS * 8));
}

static void engine__every_algorithm_sums_all(void)
{
    for (unsigned algorithm = UT_TAR; algorithm < UT_ALGORITHMS_END; algorithm++)
        for (n = 1; n <= MOST; n++) {
            uint8_t same[MOST];
            int64_t all = 0;
            memset(same, (int)algorithm, sizeof same);
            begin(same);
            for (uint32_t h = 0, p = 1; h < n; h++, p *= 10)
                all += p;
            for (uint64_t op = 0; op < 8; op++) {
                loss_ppm = op < 2 ? 0 : 50000;
                uint64_t count = op == 0 ? ELEMENTS : check_below(op == 1 ? n + 1 : ELEMENTS);
                submit(op, count, UT_SUM, op % 2 ? UT_BOUNDED : UT_RELIABLE, op % 4 < 2);
                run(now + 900 * UT_MS);
                for (uint32_t h = 0; h < n; h++) {
                    ut_receipt r = receipt(h);
                    CHECK_MSG(r.status == UT_COMPLETE, "algorithm %u, %u hosts, op %d: status %u", algorithm, n,
                              (int)op, r.status);
                    CHECK_HEX(r.full_mask, (1u << n) - 1);
                    for (uint64_t i = 0; i < count; i++)
                        CHECK_EQ(result(h, op % 4 < 2)[i], all);
                }
            }
            end();
        }
}

/* Host 1 of a ring of four says nothing. Chunk r sets out at r + 1: what passes host 1, or ends there, ends. */
static void engine__a_silent_host_cuts_the_ring_where_it_stands(void)
{
    static const uint8_t ring[MOST] = {UT_RING, UT_RING, UT_RING, UT_RING};
    for (int in_place = 0; in_place < 2; in_place++) {
        n = 4;
        begin(ring);
        silent = 1 << 1;
        submit(0, 4, UT_SUM, UT_BOUNDED, in_place);
        run(now + 1100 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            if (h == 1)
                continue;
            ut_receipt r = receipt(h);
            uint64_t least = 4;
            uint64_t everywhere = 15, anywhere = 0;
            CHECK_EQ(r.status, h == 2 ? UT_INSUFFICIENT : UT_PARTIAL); /* all that 2 hears comes from 1 */
            CHECK_LE(r.elapsed_ns, UT_SECOND + UT_MS);
            for (uint32_t c = 0; c < 4; c++) {
                int64_t x = result(h, in_place)[c];
                uint64_t hosts_in = 0, ranks = 0;
                for (uint32_t p = 0; p < 4; p++, x /= 10) {
                    CHECK_LE(x % 10, 1); /* nobody twice */
                    hosts_in |= (uint64_t)(x % 10) << p;
                    ranks += (uint64_t)(x % 10);
                }
                CHECK_EQ(x, 0);
                CHECK(hosts_in != 0 && !(hosts_in & 2));
                least = UT_MIN2(least, ranks);
                everywhere &= hosts_in;
                anywhere |= hosts_in;
            }
            CHECK_EQ(r.weight_min, least);
            CHECK_HEX(r.full_mask & ~everywhere, 0);
            CHECK_HEX(r.any_mask & ~anywhere, 0);
        }
        /* Chunk 0 sets out at 1. Host 2 gives 1 up first, so that its sum still passes 3 and reaches the owner. */
        CHECK_EQ(result(0, in_place)[0], 1101);
        end();
    }
}

/* The same with host 1 known to be gone: nobody waits for the deadline, and what comes after the break is what the
 * first host behind it holds. */
static void engine__an_absent_host_is_not_waited_for(void)
{
    for (unsigned algorithm = UT_TAR; algorithm < UT_ALGORITHMS_END; algorithm++) {
        uint8_t same[MOST];
        memset(same, (int)algorithm, sizeof same);
        n = 4;
        begin(same);
        silent = 1 << 1;
        for (uint32_t h = 0; h < n; h++)
            if (h != 1)
                ut_engine_peer_absent(hosts[h].engine, 0, 1, now);
        submit(0, ELEMENTS, UT_SUM, UT_BOUNDED, true);
        run(now + 1100 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            if (h == 1)
                continue;
            ut_receipt r = receipt(h);
            CHECK_EQ(r.status, algorithm == UT_RING && h == 2 ? UT_INSUFFICIENT : UT_PARTIAL);
            CHECK_LE(r.elapsed_ns, 300 * UT_MS);
            CHECK_HEX(r.any_mask & 2, 0);
        }
        end();
    }
}

static void engine__other_algorithms_are_a_desync(void)
{
    for (unsigned a = UT_TAR; a < UT_ALGORITHMS_END; a++)
        for (unsigned b = UT_TAR; b < UT_ALGORITHMS_END; b++) {
            uint8_t each[MOST] = {(uint8_t)a, (uint8_t)b, (uint8_t)a};
            if (a == b)
                continue;
            n = 3;
            begin(each);
            submit(0, ELEMENTS, UT_SUM, UT_BOUNDED, false);
            run(now + 100 * UT_MS);
            for (uint32_t h = 0; h < n; h++) {
                ut_receipt r = receipt(h);
                CHECK_EQ(r.error, UT_ERR_DESYNC);
                CHECK_EQ(r.field, UT_FIELD_ALGORITHM);
                CHECK_EQ(r.value_here, each[h]);
                CHECK_EQ(r.value_there, h == 1 ? a : b);
                CHECK(h == 1 ? r.culprit != 1 : r.culprit == 1);
            }
            end();
        }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(engine__every_algorithm_sums_all);
    RUN(engine__a_silent_host_cuts_the_ring_where_it_stands);
    RUN(engine__an_absent_host_is_not_waited_for);
    RUN(engine__other_algorithms_are_a_desync);
    return check_end();
}
