/* SPDX-License-Identifier: Apache-2.0
 *
 * Up to eight whole engines, one trainer each, over a wire that on request loses packets, holds them up or doubles
 * them.
 */
#ifndef UT_TEST_ENGINES_H
#define UT_TEST_ENGINES_H

#include "check.h"

#include "core/face/engine.h"
#include "core/wire/seal.h"

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
static uint32_t late_ppm; /* of all packets: held up to 2 ms, every other one of them doubled */
static void (*change)(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len); /* on its way */

static const ut_cipher *cipher;  /* of the job; NULL: none */
static uint8_t keys[MOST][MOST]; /* [from][to]: what it is given for that direction */
/* If it is set, it says instead what host |h| is given for both directions to and from |p|. */
static void *(*keys_of)(uint32_t h, uint32_t p, uint32_t cid_out, uint32_t cid_in);

/* What is held. */
static struct parcel {
    ut_ns due; /* 0: free */
    uint32_t to, port;
    size_t len;
    uint8_t bytes[1472];
} parcels[512];

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

/* The daemon of host |h| starts, and its trainer, where the job stands at op |first|. */
static void born(uint32_t h, ut_job_options options, uint64_t first)
{
    struct host *x = &hosts[h];
    ut_engine_config config = {
        .packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = check_random()};
    ut_job_config job = {.hosts = n,
                         .self = h,
                         .local_ranks = 1,
                         .packet_bytes = 1472,
                         .bucket_bytes_max = ELEMENTS * 8,
                         .first_op_seq = first,
                         .options = options,
                         .cipher = cipher};
    memset(x, 0, sizeof *x);
    x->engine_memory = zeroed(ut_engine_bytes(&config));
    x->job_memory = zeroed(ut_job_bytes(&config, &job));
    CHECK_EQ(ut_engine_init(x->engine_memory, &config, &x->engine), UT_OK);
    CHECK_EQ(ut_engine_job_add(x->engine, 0, &job, x->job_memory), UT_OK);
    ut_session_memory m = {&x->submissions, &x->completions, x->arena, ARENA, 0, 0};
    CHECK_EQ(ut_engine_session_add(x->engine, 0, &m, first, &x->session), UT_OK);
}

/* |n| hosts, host h with algorithm[h]. */
__attribute__((unused)) static void begin(const uint8_t *algorithm)
{
    uint32_t cid[MOST][MOST];
    now = 7 * UT_SECOND;
    silent = loss_ppm = late_ppm = 0;
    change = NULL;
    memset(parcels, 0, sizeof parcels);
    for (uint32_t h = 0; h < n; h++) {
        struct host *x = &hosts[h];
        born(h, (ut_job_options){.algorithm = algorithm[h]}, 0);
        for (uint32_t p = 0; p < n; p++)
            if (p != h)
                CHECK_EQ(ut_engine_peer_listen(x->engine, 0, p, &cid[h][p]), UT_OK);
    }
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++) {
            ut_addr a = {.len = 1, .bytes = {(uint8_t)p}};
            if (p != h && cipher && keys_of) {
                void *both = keys_of(h, p, cid[p][h], cid[h][p]);
                CHECK_EQ(ut_engine_peer_keys(hosts[h].engine, 0, p, both, both), UT_OK);
            } else if (p != h && cipher)
                CHECK_EQ(ut_engine_peer_keys(hosts[h].engine, 0, p, &keys[h][p], &keys[p][h]), UT_OK);
            if (p != h)
                CHECK_EQ(ut_engine_peer_connect(hosts[h].engine, 0, p, &a, &a, cid[p][h], now), UT_OK);
        }
}

__attribute__((unused)) static void end(void)
{
    for (uint32_t h = 0; h < n; h++) {
        ut_engine_job_remove(hosts[h].engine, 0, now);
        free(hosts[h].engine_memory);
        free(hosts[h].job_memory);
    }
}

/* True if the packet is kept for later; not if there is no room, or it is to come twice. */
static bool hold_up(uint32_t to, uint32_t port, const uint8_t *bytes, size_t len)
{
    struct parcel *p = &parcels[check_below(512)];
    if (check_below(1000000) >= late_ppm || p->due)
        return false;
    *p = (struct parcel){.due = now + check_below(2 * UT_MS) + 1, .to = to, .port = port, .len = len};
    memcpy(p->bytes, bytes, len);
    return check_below(2);
}

/* Delivers what is due; returns when the next will be. */
static ut_ns release(void)
{
    ut_ns next = UT_NEVER;
    for (size_t i = 0; i < 512; i++) {
        struct parcel *p = &parcels[i];
        if (p->due && p->due <= now) {
            p->due = 0;
            ut_engine_input(hosts[p->to].engine, p->port, p->bytes, p->len, 0, false, now);
        }
        next = p->due ? UT_MIN2(next, p->due) : next;
    }
    return next;
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
        size_t bytes = UT_MIN2(len - at, (size_t)b->segment_bytes);
        if (change)
            change(from, to, b->port, flat + at, bytes);
        if (!lost && !hold_up(to, b->port, flat + at, bytes))
            ut_engine_input(hosts[to].engine, b->port, flat + at, bytes, 0, false, now);
    }
}

__attribute__((unused)) static void run(ut_ns until)
{
    static ut_burst b;
    while (now < until) {
        bool moved = false;
        ut_ns wake = release();
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

/* One op of all hosts, and a second for it: element i of host h is 2^h + i. */
__attribute__((unused)) static void call_all(uint64_t op)
{
    for (uint32_t h = 0; h < n; h++) {
        float *a = (float *)(void *)hosts[h].arena;
        for (unsigned i = 0; i < ELEMENTS; i++)
            a[i] = (float)((1u << h) + i);
        ut_submission s = {.op_seq = op,
                           .count = ELEMENTS,
                           .deadline_ns = now + 900 * UT_MS,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED};
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
    }
    run(now + UT_SECOND);
}

__attribute__((unused)) static ut_receipt receipt(uint32_t h)
{
    ut_receipt r = {0};
    CHECK_EQ(ut_ring_take_completion(&hosts[h].submissions, &hosts[h].completions, &r), 1);
    CHECK_EQ(r.bytes_expected, r.bytes_used + r.bytes_missing);
    return r;
}

#endif
