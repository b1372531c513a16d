/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole engines and the wire between them, in virtual time: what the worlds of engines.h, crew.h and pair.h have alike.
 * Address of a host is its number. What happens to a packet on its way is the world's own.
 */
#ifndef UT_WIRED_H
#define UT_WIRED_H

#include "check.h"

#include "core/face/engine.h"

enum { WIRED_MOST = 16 };

static struct wired {
    ut_engine *engine;
    void *engine_memory, *job_memory;
} wired[WIRED_MOST];
static uint32_t wired_hosts, wired_job;      /* their number, and the engines' number of the one job */
static uint32_t cid[WIRED_MOST][WIRED_MOST]; /* [h][p]: on packets from p to h */
static ut_ns now;
static ut_ns (*released)(void); /* delivers what the world has held up, and says when more is due; NULL: nothing */

/* The world's: a packet of |b| on its way. */
static void carry(uint32_t from, const ut_burst *b, uint8_t *packet, size_t len);

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

/* A new engine on host |job->self|, with that job; what is left of an earlier one is the caller's to end. */
static ut_engine *plug_in(const ut_job_config *job)
{
    struct wired *x = &wired[job->self];
    ut_engine_config config = {
        .packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = check_random()};
    x->engine_memory = zeroed(ut_engine_bytes(&config));
    x->job_memory = zeroed(ut_job_bytes(&config, job));
    CHECK_EQ(ut_engine_init(x->engine_memory, &config, &x->engine), UT_OK);
    CHECK_EQ(ut_engine_job_add(x->engine, wired_job, job, x->job_memory), UT_OK);
    wired_hosts = job->hosts;
    return x->engine;
}

static void unplug(uint32_t h)
{
    ut_engine_job_remove(wired[h].engine, wired_job, now);
    free(wired[h].engine_memory);
    free(wired[h].job_memory);
    wired[h] = (struct wired){0};
}

static void unplug_all(void)
{
    for (uint32_t h = 0; h < wired_hosts; h++)
        if (wired[h].engine)
            unplug(h);
}

/* |h| takes packets from |p| from now on; and sends to it, once |p| does. */
static void listen_to(uint32_t h, uint32_t p)
{
    CHECK_EQ(ut_engine_peer_listen(wired[h].engine, wired_job, p, &cid[h][p]), UT_OK);
}
static void reach(uint32_t h, uint32_t p)
{
    ut_addr a = {.len = 2, .bytes = {(uint8_t)p}};
    CHECK_EQ(ut_engine_peer_connect(wired[h].engine, wired_job, p, &a, &a, cid[p][h], now), UT_OK);
}

static void listen_all(void)
{
    for (uint32_t h = 0; h < wired_hosts; h++)
        for (uint32_t p = 0; p < wired_hosts; p++)
            if (p != h)
                listen_to(h, p);
}

/* A path between both, the former one forgotten. */
__attribute__((unused)) static void new_path(uint32_t a, uint32_t b)
{
    listen_to(a, b);
    listen_to(b, a);
    reach(a, b);
    reach(b, a);
}

/* If it is set, packets of one length that reach a host one after the other are given to its engine in one piece, the
 * last perhaps shorter, as the kernel does with GRO. */
static bool joins;
static struct {
    uint8_t bytes[65536];
    size_t len, each;
    uint32_t to, port;
} joined;

static void give_joined(void)
{
    if (joined.len)
        ut_engine_input(wired[joined.to].engine, joined.port, joined.bytes, joined.len, joined.each, false, now);
    joined.len = 0;
}

static void arrive(uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    if (!joins) {
        ut_engine_input(wired[to].engine, port, packet, len, 0, false, now);
        return;
    }
    if (joined.to != to || joined.port != port || len > joined.each || joined.len + len > sizeof joined.bytes)
        give_joined();
    if (joined.len == 0)
        joined.to = to, joined.port = port, joined.each = len;
    memcpy(joined.bytes + joined.len, packet, len);
    joined.len += len;
    if (len < joined.each)
        give_joined();
}

static void deliver(uint32_t from, const ut_burst *b)
{
    static uint8_t flat[UT_BURST_BYTES];
    CHECK_LE(b->bytes, UT_BURST_BYTES);
    memcpy(flat, b->memory, b->bytes);
    for (size_t at = 0; at < b->bytes; at += b->segment_bytes)
        carry(from, b, flat + at, UT_MIN2(b->bytes - at, (size_t)b->segment_bytes));
    give_joined();
}

/* Runs all engines until |until|. */
static void run_until(ut_ns until)
{
    static ut_burst b;
    while (now < until) {
        bool moved = false;
        ut_ns wake = released ? released() : UT_NEVER;
        give_joined();
        for (uint32_t h = 0; h < wired_hosts; h++) {
            ut_engine_tick(wired[h].engine, now);
            while (ut_engine_output(wired[h].engine, now, &b)) {
                moved = true;
                deliver(h, &b);
            }
        }
        for (uint32_t h = 0; h < wired_hosts; h++)
            wake = UT_MIN2(wake, ut_engine_next_wake(wired[h].engine));
        now = moved ? now + 10 * UT_US : UT_MAX2(UT_MIN2(wake, until), now + 1);
    }
}

#endif
