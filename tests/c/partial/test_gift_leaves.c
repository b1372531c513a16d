/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer goes while an op reads what it gave. The op goes on with that, for others are owed its results, and no turn
 * of the engine has more to do than another for it (core/base/work.h). The trainer's memory is unmapped as soon as the
 * engine says that it reads none of it.
 */
#include "check.h"

#include <sys/mman.h>

#include "core/face/engine.h"

enum { COUNT = 4 << 20, BYTES = 4 * COUNT, ARENA = 2 * BYTES, RANKS = 2 };

static ut_engine *engine;
static struct trainer {
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint8_t *arena;
    uint32_t session;
} trainers[RANKS];
static void *engine_memory, *job_memory;
static ut_ns now;

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

/* One engine, whose host has both ranks; of |hosts| hosts the others are silent. */
static void begin(uint32_t hosts)
{
    ut_engine_config config = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = 1};
    ut_job_config job = {.hosts = hosts,
                         .local_ranks = RANKS,
                         .world = hosts * RANKS,
                         .packet_bytes = 1472,
                         .bucket_bytes_max = BYTES,
                         .options = {.policy = UT_POLICY_SOLO}};
    const ut_addr somewhere = {.bytes = {1}, .len = 1};
    uint32_t cid;
    now = UT_SECOND;
    engine_memory = zeroed(ut_engine_bytes(&config));
    job_memory = zeroed(ut_job_bytes(&config, &job));
    CHECK_EQ(ut_engine_init(engine_memory, &config, &engine), UT_OK);
    CHECK_EQ(ut_engine_job_add(engine, 0, &job, job_memory), UT_OK);
    for (uint32_t h = 1; h < hosts; h++) {
        CHECK_EQ(ut_engine_peer_listen(engine, 0, h, &cid), UT_OK);
        CHECK_EQ(ut_engine_peer_connect(engine, 0, h, &somewhere, &somewhere, cid, now), UT_OK);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        struct trainer *t = &trainers[r];
        memset(t, 0, sizeof *t);
        t->arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(t->arena != MAP_FAILED);
        for (uint32_t i = 0; i < COUNT; i++)
            ((float *)(void *)t->arena)[i] = (float)(1 + r + i % 3);
        memset(t->arena + BYTES, 0x7f, BYTES);
        ut_session_memory m = {&t->submissions, &t->completions, t->arena, ARENA, r, 0};
        CHECK_EQ(ut_engine_session_add(engine, 0, &m, 0, &t->session), UT_OK);
    }
}

static void submit(struct trainer *t, unsigned flags, ut_ns patience)
{
    ut_submission s = {.dst = BYTES,
                       .count = COUNT,
                       .deadline_ns = now + patience,
                       .dtype = UT_FLOAT32,
                       .redop = UT_AVG,
                       .mode = UT_BOUNDED,
                       .flags = (uint8_t)flags};
    CHECK_EQ(ut_ring_submit(&t->submissions, &t->completions, &s), UT_OK);
    ut_engine_submissions(engine, t->session, now);
}

static void turn(void)
{
    static ut_burst b;
    ut_engine_tick(engine, now);
    while (ut_engine_output(engine, now, &b))
        ;
    now += 10 * UT_US;
}

static void leave(struct trainer *t)
{
    CHECK_EQ(munmap(t->arena, ARENA), 0);
    t->arena = NULL;
}

/* Runs until nothing reads the trainer's memory, and takes that away. Returns the turns. */
static unsigned let_go(struct trainer *t)
{
    unsigned turns = 0;
    ut_engine_session_remove(engine, t->session, now);
    for (; !ut_engine_has_let_go(engine, 0) && turns < 10000; turns++)
        turn();
    leave(t);
    return turns;
}

static void end(void)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        if (!trainers[r].arena)
            continue;
        ut_engine_session_remove(engine, trainers[r].session, now);
        leave(&trainers[r]);
    }
    ut_engine_job_remove(engine, 0, now);
    free(engine_memory);
    free(job_memory);
}

/* The result that the second rank asks for: what the first has given, whose average over one rank is itself. */
static void check_result(uint32_t status)
{
    struct trainer *t = &trainers[1];
    ut_receipt r;
    uint32_t wrong = 0, turns = 0;
    submit(t, 0, 2 * UT_SECOND);
    while (!ut_ring_take_completion(&t->submissions, &t->completions, &r) && turns++ < 200000)
        turn();
    CHECK_EQ(r.status, status);
    const float *x = (const float *)(const void *)(t->arena + BYTES);
    for (uint32_t i = 0; i < COUNT; i++)
        wrong += x[i] != (float)(1 + i % 3);
    CHECK_EQ(wrong, 0);
}

/* A host that is alone has nobody to wait for: it reads the gift to its end, and then lets go of it. */
static void gift__is_read_to_its_end_by_a_host_that_is_alone(void)
{
    begin(1);
    submit(&trainers[0], UT_SUBMIT_GIVE, UT_SECOND);
    turn();
    turn();
    unsigned turns = let_go(&trainers[0]);
    CHECK_LE(2, turns);
    CHECK_LE(turns, 4 * BYTES / UT_TURN_BYTES);
    check_result(UT_COMPLETE);
    end();
}

/* With peers the op may last, so the gift is copied, a slice in each turn. */
static void gift__is_copied_in_slices(void)
{
    begin(2);
    submit(&trainers[0], UT_SUBMIT_GIVE, UT_SECOND);
    for (unsigned k = 0; k < 4; k++)
        turn();
    unsigned turns = let_go(&trainers[0]);
    CHECK_LE(BYTES / UT_TURN_BYTES - 2, turns);
    CHECK_LE(turns, 2 * BYTES / UT_TURN_BYTES);
    check_result(UT_INSUFFICIENT); /* no other rank is in it */
    end();
}

/* The job ends before the copy does: nothing reads on. */
static void gift__is_let_go_with_its_job(void)
{
    begin(2);
    submit(&trainers[0], UT_SUBMIT_GIVE, UT_SECOND);
    turn();
    ut_engine_session_remove(engine, trainers[0].session, now);
    CHECK(!ut_engine_has_let_go(engine, 0));
    ut_engine_job_remove(engine, 0, now);
    CHECK(ut_engine_has_let_go(engine, 0));
    leave(&trainers[0]);
    turn();
    leave(&trainers[1]);
    free(engine_memory);
    free(job_memory);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(gift__is_read_to_its_end_by_a_host_that_is_alone);
    RUN(gift__is_copied_in_slices);
    RUN(gift__is_let_go_with_its_job);
    return check_end();
}
