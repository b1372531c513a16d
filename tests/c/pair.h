/* SPDX-License-Identifier: Apache-2.0
 *
 * Two whole engines over a perfect wire that a test may cut or record: host 0 with some ranks, host 1 with one.
 */
#ifndef UT_PAIR_H
#define UT_PAIR_H

#include "core/wire/packets.h"
#include "wired.h"

enum { HOSTS = 2, RANKS_MAX = 3, ELEMENTS = 5000, ARENA = 2 * ELEMENTS * 8 };

typedef struct rank {
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint32_t session;
    uint64_t next;
    uint8_t arena[ARENA] __attribute__((aligned(64)));
} rank;

typedef struct host {
    ut_engine *engine;
    uint32_t ranks;
    rank rank[RANKS_MAX];
} host;

static host hosts[HOSTS];
static bool (*drop)(uint32_t from, const ut_burst *b, const uint8_t *packet);
static uint8_t *recorded[4096]; /* u16 length, u8 to, u8 port, bytes */
static size_t records;
static bool recording;

/* The stage that a whole data packet is of. */
__attribute__((unused)) static unsigned stage_of(const uint8_t *packet)
{
    ut_data h;
    return ut_data_decode(&h, packet, UT_DATA_HEADER + 1, UT_CHECK_NOTHING) ? 0 : h.stage;
}

static void world(uint32_t ranks_of_0, uint64_t rate)
{
    now = 7 * UT_SECOND;
    drop = NULL;
    recording = false;
    wired_job = 3;
    for (uint32_t h = 0; h < HOSTS; h++) {
        host *x = &hosts[h];
        memset(x->rank, 0, sizeof x->rank);
        x->ranks = h == 0 ? ranks_of_0 : 1;
        ut_job_config job = {.hosts = HOSTS,
                             .self = h,
                             .local_ranks = x->ranks,
                             .packet_bytes = 1472,
                             .world = ranks_of_0 + 1,
                             .bucket_bytes_max = ELEMENTS * 8,
                             .rate_bytes_per_s = rate};
        x->engine = plug_in(&job);
        CHECK_EQ(ut_engine_job_add(x->engine, 3, &job, wired[h].job_memory), UT_ERR_EXISTS);
        for (uint32_t r = 0; r < x->ranks; r++) {
            ut_session_memory m = {&x->rank[r].submissions, &x->rank[r].completions, x->rank[r].arena, ARENA, r, 0};
            CHECK_EQ(ut_engine_session_add(x->engine, 3, &m, 0, &x->rank[r].session), UT_OK);
        }
        CHECK_EQ(ut_engine_peer_listen(x->engine, 3, h, &cid[h][h]), UT_ERR_UNKNOWN); /* not to oneself */
    }
    listen_all();
    new_path(0, 1); /* a host may listen anew before it is connected */
}

static void end_world(void)
{
    unplug_all();
    while (records)
        free(recorded[--records]);
}

__attribute__((unused)) static uint64_t received(const ut_stats *s)
{
    return s->data_used + s->data_duplicate + s->data_late + s->data_stashed + s->data_refused + s->feedback_received +
           s->feedback_old + s->replayed + s->unknown + s->malformed + s->bad_checksum + s->data_pieces -
           s->stash_replayed;
}

static void carry(uint32_t from, const ut_burst *b, uint8_t *packet, size_t len)
{
    uint32_t to = b->to.bytes[0];
    if (recording && records < sizeof recorded / sizeof *recorded) {
        uint8_t *r = malloc(len + 4);
        r[0] = (uint8_t)(len >> 8), r[1] = (uint8_t)len, r[2] = (uint8_t)to, r[3] = (uint8_t)b->port;
        memcpy(r + 4, packet, len);
        recorded[records++] = r;
    }
    if (!drop || !drop(from, b, packet))
        arrive(to, b->port, packet, len);
}

static void run(ut_ns until)
{
    run_until(until);
}

static ut_submission call_of(uint64_t seq, uint64_t count, unsigned redop, unsigned mode, ut_ns budget)
{
    return (ut_submission){.op_seq = seq,
                           .count = count,
                           .deadline_ns = now + budget,
                           .dtype = UT_FLOAT64,
                           .redop = (uint8_t)redop,
                           .mode = (uint8_t)mode};
}

static void submit(uint32_t h, uint32_t r, ut_submission s)
{
    rank *x = &hosts[h].rank[r];
    CHECK_EQ(ut_ring_submit(&x->submissions, &x->completions, &s), UT_OK);
    ut_engine_submissions(hosts[h].engine, x->session, now);
}

__attribute__((unused)) static double *values(uint32_t h, uint32_t r)
{
    return (double *)(void *)hosts[h].rank[r].arena;
}

__attribute__((unused)) static void fill(uint32_t h, uint32_t r, double v)
{
    for (int i = 0; i < ELEMENTS; i++)
        values(h, r)[i] = v + i;
}

/* Element i is (sum + n * i) / divisor. */
__attribute__((unused)) static void check_values(uint32_t h, uint32_t r, double sum, double n, double divisor)
{
    double *v = values(h, r);
    for (int i = 0; i < ELEMENTS; i++)
        if (!CHECK_DOUBLE(v[i], (sum + n * i) / divisor))
            return;
}

static ut_receipt receipt(uint32_t h, uint32_t r)
{
    ut_receipt x;
    memset(&x, 0, sizeof x);
    CHECK_EQ(ut_ring_take_completion(&hosts[h].rank[r].submissions, &hosts[h].rank[r].completions, &x), 1);
    return x;
}

__attribute__((unused)) static void no_receipt(uint32_t h, uint32_t r)
{
    ut_receipt x;
    CHECK_EQ(ut_ring_take_completion(&hosts[h].rank[r].submissions, &hosts[h].rank[r].completions, &x), 0);
}

#endif
