/* SPDX-License-Identifier: Apache-2.0
 *
 * Up to eight whole engines, one trainer each, over a wire that on request loses packets, holds them up or doubles
 * them.
 */
#ifndef UT_TEST_ENGINES_H
#define UT_TEST_ENGINES_H

#include "wired.h"

#include "core/wire/seal.h"

enum { MOST = 8, ELEMENTS = 3000, ARENA = 2 * ELEMENTS * 8 };

static struct host {
    ut_engine *engine;
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint32_t session;
    uint8_t arena[ARENA] __attribute__((aligned(64)));
} hosts[MOST];
static uint32_t n;
static bool ordered;      /* jobs are deterministic */
static uint32_t silent;   /* bit per host: nothing comes from it or reaches it */
static uint32_t loss_ppm; /* of data packets */
static uint32_t late_ppm; /* of all packets: held up to 2 ms, every other one of them doubled */
static void (*change)(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len); /* on its way */

/* If it is set, it says whether the packet arrives. */
static bool (*way)(uint32_t from, const ut_burst *b, const uint8_t *packet, size_t len);

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

/* The daemon of host |h| starts where the job stands at op |first|, and its trainer when it stands at |joins|. */
static void born_to(uint32_t h, ut_job_options options, uint64_t first, uint64_t joins)
{
    struct host *x = &hosts[h];
    ut_job_config job = {.hosts = n,
                         .self = h,
                         .local_ranks = 1,
                         .packet_bytes = 1472,
                         .bucket_bytes_max = ELEMENTS * 8,
                         .first_op_seq = first,
                         .options = options,
                         .cipher = cipher};
    memset(x, 0, sizeof *x);
    x->engine = plug_in(&job);
    ut_session_memory m = {&x->submissions, &x->completions, x->arena, ARENA, 0, 0};
    CHECK_EQ(ut_engine_session_add(x->engine, 0, &m, joins, &x->session), UT_OK);
}

static void born(uint32_t h, ut_job_options options, uint64_t first)
{
    born_to(h, options, first, first);
}

static uint64_t first_op[MOST]; /* of host h, which comes to a job under way if that is not 0 */

/* |n| hosts, host h with algorithm[h]. */
__attribute__((unused)) static void begin(const uint8_t *algorithm)
{
    now = 7 * UT_SECOND;
    silent = loss_ppm = late_ppm = 0;
    change = NULL;
    way = NULL;
    memset(parcels, 0, sizeof parcels);
    for (uint32_t h = 0; h < n; h++)
        born(h, (ut_job_options){.algorithm = algorithm[h], .deterministic = 1 + ordered}, first_op[h]);
    listen_all();
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++) {
            if (p != h && cipher && keys_of) {
                void *both = keys_of(h, p, cid[p][h], cid[h][p]);
                CHECK_EQ(ut_engine_peer_keys(hosts[h].engine, 0, p, both, both), UT_OK);
            } else if (p != h && cipher)
                CHECK_EQ(ut_engine_peer_keys(hosts[h].engine, 0, p, &keys[h][p], &keys[p][h]), UT_OK);
            if (p != h)
                reach(h, p);
        }
}

__attribute__((unused)) static void end(void)
{
    unplug_all();
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
            arrive(p->to, p->port, p->bytes, p->len);
        }
        next = p->due ? UT_MIN2(next, p->due) : next;
    }
    return next;
}

static void carry(uint32_t from, const ut_burst *b, uint8_t *packet, size_t len)
{
    uint32_t to = b->to.bytes[0], port = b->port;
    bool lost = (silent >> from | silent >> to) & 1;
    lost = lost || (b->port == UT_PORT_DATA && check_below(1000000) < loss_ppm);
    if (change)
        change(from, to, b->port, packet, len);
    if (way && !way(from, b, packet, len))
        return;
    if (port == UT_PORT_FEEDBACK && b->beside.len && check_below(2)) { /* as shells send it behind data */
        CHECK_EQ(b->beside.bytes[0], to);
        port = UT_PORT_DATA;
    }
    if (!lost && !hold_up(to, port, packet, len))
        arrive(to, port, packet, len);
}

__attribute__((unused)) static void run(ut_ns until)
{
    released = release;
    run_until(until);
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
