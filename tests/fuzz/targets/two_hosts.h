/* SPDX-License-Identifier: Apache-2.0
 *
 * Two hosts with a whole engine each, one trainer on each, and a wire between them that loses what a target says.
 */
#ifndef UT_FUZZ_TWO_HOSTS_H
#define UT_FUZZ_TWO_HOSTS_H

#include "fuzz.h"

#include "core/face/engine.h"

#ifndef ARENA_BYTES
#define ARENA_BYTES (1 << 14)
#endif

enum { HOSTS = 2, ARENA = ARENA_BYTES };

static struct host {
    ut_engine *engine;
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint8_t *arena;
    uint32_t session;
    uint64_t next;
} hosts[HOSTS];
static ut_ns now;
/* If it is set, it is asked of each burst that host |h| sends, and returns whether the burst shall not arrive. */
static bool (*instead)(uint32_t h, const ut_burst *b);

static inline void *block(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

static inline void attach(uint32_t h, const ut_engine_config *config, const ut_job_config *job)
{
    struct host *x = &hosts[h];
    memset(x, 0, sizeof *x);
    x->arena = block(ARENA);
    MUST(ut_engine_init(lazy(2 * h, ut_engine_bytes(config)), config, &x->engine) == UT_OK);
    MUST(ut_engine_job_add(x->engine, 0, job, lazy(2 * h + 1, ut_job_bytes(config, job))) == UT_OK);
    ut_session_memory m = {&x->submissions, &x->completions, x->arena, ARENA, 0, 0};
    MUST(ut_engine_session_add(x->engine, 0, &m, 0, &x->session) == UT_OK);
}

static inline void connect_both(void)
{
    uint32_t cid[HOSTS];
    for (uint32_t h = 0; h < HOSTS; h++)
        MUST(ut_engine_peer_listen(hosts[h].engine, 0, !h, &cid[h]) == UT_OK);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_addr a = {.len = 1, .bytes = {(uint8_t)!h}};
        MUST(ut_engine_peer_connect(hosts[h].engine, 0, !h, &a, &a, cid[!h], now) == UT_OK);
    }
}

/* Until |until|; a bit of |lost| for each of eight bursts in turn. */
static inline void run(ut_ns until, uint8_t lost)
{
    static ut_burst b;
    unsigned sent = 0;
    for (unsigned turns = 0; now < until && turns < 300; turns++) {
        ut_ns wake = until;
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_receipt r;
            ut_engine_tick(hosts[h].engine, now);
            while (ut_engine_output(hosts[h].engine, now, &b)) {
                MUST(b.bytes <= UT_BURST_BYTES && b.segments >= 1);
                if (instead && instead(h, &b))
                    continue;
                if (!(lost >> (sent++ & 7) & 1))
                    ut_engine_input(hosts[!h].engine, b.port, b.memory, b.bytes, b.segment_bytes, false, now);
            }
            for (unsigned i = 0; i < UT_RING_ENTRIES; i++) /* what is counted in the ring changes, too */
                (void)ut_ring_take_completion(&hosts[h].submissions, &hosts[h].completions, &r);
        }
        for (uint32_t h = 0; h < HOSTS; h++)
            wake = UT_MIN2(wake, ut_engine_next_wake(hosts[h].engine));
        now = UT_MAX2(wake, now + 20 * UT_US);
    }
}

/* Both trainers leave, and the jobs end. */
static inline void leave(void)
{
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_engine_session_remove(hosts[h].engine, hosts[h].session, now);
        free(hosts[h].arena); /* the engine has let go of it */
        ut_engine_tick(hosts[h].engine, now);
        ut_engine_job_remove(hosts[h].engine, 0, now);
    }
}

/* Gives a call to host |h|, if its ring has room. */
static inline void submit(uint32_t h, ut_submission s)
{
    struct host *x = &hosts[h];
    s.op_seq = x->next;
    x->next += ut_ring_submit(&x->submissions, &x->completions, &s) == UT_OK;
    ut_engine_submissions(x->engine, x->session, now);
}

#endif
