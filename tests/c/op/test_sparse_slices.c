/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes over sparse tensors are cut into turns, as those over others are (core/base/work.h): whatever a trainer
 * brings, a turn does so much and no more. Counted in turns: a pass that is done at once takes none of its own.
 */
#include "check.h"

#include "core/face/engine.h"
#include "kernels/block.h"

enum { COUNT = 4 << 20, ENTRIES = 1 << 20, RANKS = 2 };
enum { SRC_BYTES = 8 * ENTRIES, ARENA = SRC_BYTES + 4 * COUNT };
/* What is read to find the scale, cleared, and added entry by entry. */
enum { PASSES = 4 * ENTRIES + 4 * COUNT + 8 * ENTRIES };

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

static void begin(uint32_t ranks)
{
    ut_engine_config config = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = 1};
    ut_job_config job = {
        .hosts = 1, .local_ranks = ranks, .world = ranks, .packet_bytes = 1472, .bucket_bytes_max = 4 * COUNT};
    now = UT_SECOND;
    engine_memory = zeroed(ut_engine_bytes(&config));
    job_memory = zeroed(ut_job_bytes(&config, &job));
    CHECK_EQ(ut_engine_init(engine_memory, &config, &engine), UT_OK);
    CHECK_EQ(ut_engine_job_add(engine, 0, &job, job_memory), UT_OK);
    for (uint32_t r = 0; r < ranks; r++) {
        struct trainer *t = &trainers[r];
        memset(t, 0, sizeof *t);
        t->arena = zeroed(ARENA);
        ut_session_memory m = {&t->submissions, &t->completions, t->arena, ARENA, r, 0};
        CHECK_EQ(ut_engine_session_add(engine, 0, &m, 0, &t->session), UT_OK);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            ((uint32_t *)(void *)t->arena)[i] = 4 * i;
            ((float *)(void *)t->arena)[ENTRIES + i] = (float)(1 + r);
        }
        memset(t->arena + SRC_BYTES, 0x7f, 4 * COUNT);
    }
}

static void end(uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        ut_engine_session_remove(engine, trainers[r].session, now);
        free(trainers[r].arena);
    }
    ut_engine_job_remove(engine, 0, now);
    free(engine_memory);
    free(job_memory);
}

static void submit(struct trainer *t, ut_ns patience)
{
    ut_submission s = {.dst = SRC_BYTES,
                       .count = COUNT,
                       .deadline_ns = now + patience,
                       .dtype = UT_FLOAT32,
                       .redop = UT_SUM,
                       .mode = UT_BOUNDED,
                       .collective = UT_ALLREDUCE_SPARSE,
                       .entries = ENTRIES,
                       .alike.sparse = {.group = 1, .form = UT_VALUE_FLOAT8}};
    CHECK_EQ(ut_ring_submit(&t->submissions, &t->completions, &s), UT_OK);
    ut_engine_submissions(engine, t->session, now);
}

/* The turns until the trainer's call is answered. */
static unsigned turns(struct trainer *t, ut_receipt *ret)
{
    static ut_burst b;
    for (unsigned n = 1; n < 10000; n++) {
        ut_engine_tick(engine, now);
        while (ut_engine_output(engine, now, &b))
            ;
        if (ut_ring_take_completion(&t->submissions, &t->completions, ret))
            return n;
        now += 10 * UT_US;
    }
    return 0;
}

static void check_result(const struct trainer *t, float value)
{
    const float *x = (const float *)(const void *)(t->arena + SRC_BYTES);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        wrong += x[i] != (i % 4 ? 0 : value);
    CHECK_EQ(wrong, 0);
}

static void contribution__is_looked_at_in_slices(void)
{
    ut_receipt r;
    begin(1);
    submit(&trainers[0], 10 * UT_SECOND);
    CHECK_LE(PASSES / UT_TURN_BYTES - 2, turns(&trainers[0], &r));
    CHECK_EQ(r.status, UT_COMPLETE);
    check_result(&trainers[0], 1);
    end(1);
}

/* A rank that calls when its host has gone on without it gets its own value. */
static void late_call__is_answered_in_slices(void)
{
    ut_receipt r;
    begin(2);
    submit(&trainers[1], UT_MS);
    CHECK(turns(&trainers[1], &r) > 0);
    submit(&trainers[0], 10 * UT_SECOND);
    CHECK_LE(PASSES / UT_TURN_BYTES - 2, turns(&trainers[0], &r));
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    check_result(&trainers[0], 1);
    end(2);
}

/* Of a large range without a value a block tells a part, as each of it must be looked at. */
static void block__looks_at_so_much_and_no_more(void)
{
    static uint8_t bytes[1440];
    float *chunk = zeroed(4 * COUNT);
    ut_block_shape s = {.units = COUNT, .group = 1, .form = UT_VALUE_FLOAT16};
    uint32_t blocks = 0, granules;
    for (uint32_t first = 0; first < ut_block_granules(&s); first += granules, blocks++)
        (void)ut_block_encode(bytes, sizeof bytes, chunk, &s, first, 1, &granules);
    CHECK_EQ(blocks, COUNT / UT_BLOCK_ELEMENTS_MAX);
    CHECK_LE(blocks, ut_block_count_most(&s, sizeof bytes));
    free(chunk);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(contribution__is_looked_at_in_slices);
    RUN(late_call__is_answered_in_slices);
    RUN(block__looks_at_so_much_and_no_more);
    return check_end();
}
