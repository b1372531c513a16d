/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer that writes what it likes into its submission ring. Arenas are heap blocks of their own and are given back
 * when their trainer goes, so that the sanitizer sees every byte that the engine touches beyond, before or after them.
 */
#include "check.h"

#include "core/face/engine.h"

enum { ARENA = 1 << 14, RANKS = 3, BUCKET = ARENA };

static ut_engine *engine;
static void *engine_memory, *job_memory;
static const ut_engine_config config = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = 1};
static ut_ns now;

static struct trainer {
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint8_t *arena;
    uint32_t session;
    uint64_t next;
} trainers[RANKS];

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

static void attach(uint32_t place, uint64_t first)
{
    struct trainer *t = &trainers[place];
    memset(t, 0, sizeof *t);
    t->arena = zeroed(ARENA);
    t->next = first;
    ut_session_memory m = {&t->submissions, &t->completions, t->arena, ARENA, place, 0};
    CHECK_EQ(ut_engine_session_add(engine, 0, &m, first, &t->session), UT_OK);
}

static void hang_up(uint32_t place)
{
    ut_engine_session_remove(engine, trainers[place].session, now);
    free(trainers[place].arena);
    trainers[place].arena = NULL;
}

static void begin(uint32_t ranks, unsigned policy)
{
    ut_job_config job = {.hosts = 1,
                         .local_ranks = ranks,
                         .world = ranks,
                         .packet_bytes = 1472,
                         .bucket_bytes_max = BUCKET,
                         .options.policy = (uint8_t)policy};
    now = UT_SECOND;
    engine_memory = zeroed(ut_engine_bytes(&config));
    job_memory = zeroed(ut_job_bytes(&config, &job));
    CHECK_EQ(ut_engine_init(engine_memory, &config, &engine), UT_OK);
    CHECK_EQ(ut_engine_job_add(engine, 0, &job, job_memory), UT_OK);
    for (uint32_t i = 0; i < ranks; i++)
        attach(i, 0);
}

static void end(uint32_t ranks)
{
    for (uint32_t i = 0; i < ranks; i++)
        if (trainers[i].arena)
            hang_up(i);
    ut_engine_job_remove(engine, 0, now);
    free(engine_memory);
    free(job_memory);
}

static void take_all(struct trainer *t)
{
    ut_receipt r;
    while (ut_ring_take_completion(&t->submissions, &t->completions, &r))
        ;
}

/* Puts |s| into the ring whatever the ring holds, and rings. */
static void submit(struct trainer *t, ut_submission s)
{
    s.op_seq = t->next++;
    t->submissions.entries[t->submissions.head % UT_RING_ENTRIES] = s;
    t->submissions.head++;
    ut_engine_submissions(engine, t->session, now);
}

static void run(ut_ns until)
{
    static ut_burst b;
    while (now < until) {
        ut_engine_tick(engine, now);
        while (ut_engine_output(engine, now, &b))
            ;
        now = UT_MAX2(UT_MIN2(ut_engine_next_wake(engine), until), now + 10 * UT_US);
    }
    for (ut_event e; ut_engine_poll_event(engine, &e);)
        ;
}

static ut_submission good(uint64_t count)
{
    return (ut_submission){.count = count,
                           .dst = ARENA / 2,
                           .deadline_ns = now + 20 * UT_MS,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED};
}

/* A1: hosts of two ranks and of none have as many ranks as hosts, and are no job whose buffers are laid out by host. */
static void ring__hosts_without_ranks_are_no_job(void)
{
    ut_job_config job = {
        .hosts = 2, .local_ranks = 2, .world = 2, .packet_bytes = 1472, .bucket_bytes_max = BUCKET, .ranks_of = {2, 0}};
    CHECK_EQ(ut_job_bytes(&config, &job), 0);
    memset(job.ranks_of, 0, sizeof job.ranks_of);
    CHECK_EQ(ut_job_bytes(&config, &job), 0);
    job.local_ranks = 1;
    CHECK(ut_job_bytes(&config, &job) > 0);
}

/* A1: where ranks share a host, no collective but allreduce and barrier is taken, whatever the world counts. */
static void ring__collectives_are_for_who_is_alone_on_its_host(void)
{
    begin(2, 0);
    for (unsigned collective = UT_REDUCE_SCATTER; collective < UT_BARRIER; collective++) {
        ut_submission s = good(64);
        s.collective = (uint8_t)collective;
        s.mode = UT_RELIABLE;
        s.redop = collective == UT_REDUCE_SCATTER ? UT_SUM : 0;
        s.dst = collective == UT_BROADCAST ? 0 : s.dst;
        submit(&trainers[0], s);
        submit(&trainers[1], s);
        run(now + 50 * UT_MS);
        for (unsigned i = 0; i < 2; i++) {
            ut_receipt r = {0};
            CHECK_EQ(ut_ring_take_completion(&trainers[i].submissions, &trainers[i].completions, &r), 1);
            CHECK_EQ(r.status, UT_FAILED);
            CHECK_EQ(r.error, UT_ERR_ARGUMENT);
        }
    }
    end(2);
}

/* A2: what is refused moves a rank on, so that its next call gathers at any place; it must not outlive the rank. */
static void ring__a_call_does_not_outlive_its_trainer(void)
{
    for (unsigned refused = 0; refused < 20; refused++) {
        begin(2, 0);
        for (unsigned i = 0; i < refused; i++) {
            ut_submission bad = good(16);
            bad.dtype = 99;
            submit(&trainers[0], bad);
        }
        submit(&trainers[0], good(1000));
        hang_up(0); /* its memory is gone: the sanitizer knows */
        for (unsigned i = 0; i <= refused; i++)
            submit(&trainers[1], good(1000));
        run(now + 100 * UT_MS);
        take_all(&trainers[1]);
        end(2);
    }
}

static ut_submission wild(void)
{
    ut_submission s = good(check_below(3000));
    uint64_t numbers[] = {0, 1, 63, 64, ARENA - 1, ARENA, ARENA + 1, 1ull << 31, 1ull << 32, 1ull << 63, UINT64_MAX};
    uint8_t *bytes = (uint8_t *)&s;
    uint64_t *fields[] = {&s.src, &s.dst, &s.count, &s.deadline_ns, &s.wanted};
    for (unsigned k = (unsigned)check_below(4); k-- > 0;) {
        if (check_below(2))
            *fields[check_below(5)] = numbers[check_below(11)] + check_below(3) * 4;
        else
            bytes[40 + check_below(8)] = (uint8_t)(check_below(2) ? check_below(9) : check_below(256));
    }
    if (check_below(4) == 0)
        s.flags = (uint8_t)check_below(128);
    return s;
}

/* Anything, from ranks that come and go: nothing outside of living arenas is touched, and the others' ops end. */
static void ring__anything_may_be_submitted(void)
{
    for (unsigned round = 0; round < 60; round++) {
        check_reseed(round);
        uint32_t ranks = 1 + (uint32_t)check_below(RANKS);
        begin(ranks, check_below(2) ? UT_POLICY_NONE : UT_POLICY_SOLO);
        for (unsigned step = 0; step < 150; step++) {
            struct trainer *t = &trainers[check_below(ranks)];
            if (!t->arena) {
                attach((uint32_t)(t - trainers), 0);
                t->next = 0;
            } else if (check_below(40) == 0) {
                hang_up((uint32_t)(t - trainers));
                continue;
            }
            if (check_below(30) == 0)
                t->submissions.head += check_below(200) - 100; /* it runs away, or backwards */
            if (check_below(30) == 0)
                t->next += check_below(5);
            submit(t, check_below(3) ? wild() : good(check_below(2000)));
            if (check_below(3) == 0)
                run(now + check_below(30) * UT_MS);
            if (check_below(4))
                take_all(t);
        }
        run(now + UT_SECOND);
        ut_stats stats;
        ut_engine_stats(engine, &stats);
        CHECK_MSG(stats.oldest_open_ns == UT_NEVER || stats.oldest_deadline_ns == UT_NEVER ||
                      stats.oldest_deadline_ns > now,
                  "round %u: an op is open beyond its deadline", round);
        end(ranks);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ring__hosts_without_ranks_are_no_job);
    RUN(ring__collectives_are_for_who_is_alone_on_its_host);
    RUN(ring__a_call_does_not_outlive_its_trainer);
    RUN(ring__anything_may_be_submitted);
    return check_end();
}
