/* SPDX-License-Identifier: Apache-2.0
 *
 * The incast factor as a receiver enforces it: what its feedback grants to whom, read off the wire. Senders keep an
 * order of their own, so a whole job would show nothing if grants were too wide.
 */
#include "check.h"

#include "core/face/engine.h"
#include "core/op/op.h"
#include "core/wire/packets.h"

enum {
    HOSTS = 5,
    PACKET = 1472,
    TRICKLE = 2 * 4 * PACKET /* of each stage */,
    ELEMENTS = HOSTS * 40 * (PACKET - 32) / 4
};

static uint8_t arena[ELEMENTS * 4] __attribute__((aligned(64)));
static ut_submission_ring submissions;
static ut_completion_ring completions;
static ut_engine *engine;
static void *memory[2];
static ut_ns now;

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

/* Host 0 of a job, with an op open. Nobody else is there. */
static void begin(uint8_t incast)
{
    ut_engine_config config = {.packet_bytes = PACKET, .segments_max = 8, .receive_buffer = 8 << 20, .seed = 1};
    ut_job_config job = {.hosts = HOSTS,
                         .local_ranks = 1,
                         .packet_bytes = PACKET,
                         .bucket_bytes_max = sizeof arena,
                         .options = {.incast = incast}};
    now = 7 * UT_SECOND;
    memset(&submissions, 0, sizeof submissions);
    memset(&completions, 0, sizeof completions);
    memory[0] = zeroed(ut_engine_bytes(&config));
    memory[1] = zeroed(ut_job_bytes(&config, &job));
    CHECK_EQ(ut_engine_init(memory[0], &config, &engine), UT_OK);
    CHECK_EQ(ut_engine_job_add(engine, 0, &job, memory[1]), UT_OK);
    ut_session_memory m = {&submissions, &completions, arena, sizeof arena, 0, 0};
    uint32_t session, cid;
    CHECK_EQ(ut_engine_session_add(engine, 0, &m, 0, &session), UT_OK);
    for (uint8_t p = 1; p < HOSTS; p++) {
        ut_addr a = {.len = 1, .bytes = {p}};
        CHECK_EQ(ut_engine_peer_listen(engine, 0, p, &cid), UT_OK);
        CHECK_EQ(ut_engine_peer_connect(engine, 0, p, &a, &a, p, now), UT_OK);
    }
    ut_submission s = {.count = ELEMENTS,
                       .deadline_ns = now + 100 * UT_SECOND,
                       .dtype = UT_FLOAT32,
                       .redop = UT_SUM,
                       .mode = UT_BOUNDED};
    CHECK_EQ(ut_ring_submit(&submissions, &completions, &s), UT_OK);
    ut_engine_submissions(engine, session, now);
}

static void end(void)
{
    ut_engine_job_remove(engine, 0, now);
    free(memory[0]);
    free(memory[1]);
}

/* Time goes on to |at|; the peers that may send more than a trickle then, bit per host. */
static unsigned granted(ut_ns at)
{
    static uint64_t grant[HOSTS];
    static ut_burst burst;
    static ut_feedback f;
    unsigned mask = 0;
    memset(grant, 0, sizeof grant);
    for (; now <= at; now += UT_MS) {
        ut_engine_tick(engine, now);
        while (ut_engine_output(engine, now, &burst)) {
            if (burst.port != UT_PORT_FEEDBACK)
                continue;
            ut_grant g;
            if (ut_wire_kind(burst.memory, burst.bytes) == UT_KIND_GRANT) {
                CHECK_EQ(ut_grant_decode(&g, burst.memory, burst.bytes, UT_CHECK_SUM), UT_OK);
                grant[burst.to.bytes[0]] = UT_MAX2(grant[burst.to.bytes[0]], g.grant);
            } else {
                CHECK_EQ(ut_feedback_decode(&f, burst.memory, burst.bytes, UT_CHECK_SUM), UT_OK);
                grant[burst.to.bytes[0]] = UT_MAX2(grant[burst.to.bytes[0]], f.grant);
            }
        }
    }
    for (unsigned p = 1; p < HOSTS; p++) {
        CHECK(grant[p] > 0); /* nobody is shut out */
        mask |= grant[p] > TRICKLE ? 1u << p : 0;
    }
    return mask;
}

static void incast__gives_windows_to_as_many_as_the_factor_says(void)
{
    for (uint8_t factor = 1; factor < HOSTS; factor++) {
        begin(factor);
        CHECK_EQ((unsigned)__builtin_popcount(granted(now + UT_MS)), factor);
        end();
    }
}

static void incast__lets_another_in_for_one_that_is_silent(void)
{
    begin(1);
    unsigned first = granted(now + UT_MS), later = granted(now + 20 * UT_MS);
    CHECK_EQ((unsigned)__builtin_popcount(first), 1);
    CHECK_EQ(later & first, first); /* it keeps its window */
    CHECK((unsigned)__builtin_popcount(later) > 1);
    end();
}

/* An op of host 0 that ended: |done| of ten slots came from each of the others. The rest was overtaken by these, or
 * was behind them. */
static void learn(ut_job *j, const uint32_t *done, bool overtaken)
{
    static ut_op op;
    static uint64_t came[HOSTS];
    memset(&op, 0, sizeof op);
    op.plan.schedule.steps = HOSTS - 1;
    for (uint32_t p = 1; p < HOSTS; p++) {
        op.plan.schedule.step[p - 1] = (ut_step){.kind = UT_STEP_RECEIVE, .peer = (uint8_t)p, .bytes = 10 * 1440};
        came[p] = ((1ULL << done[p]) - 1) << (overtaken ? 10 - done[p] : 0);
        ut_transfer *t = &op.plan.transfer[p - 1];
        t->slots = 10;
        t->done = done[p];
        t->bytes_last = 1440;
        t->bits = &came[p];
        t->why = done[p] < 10 ? UT_MISSING_LOST : 0;
    }
    ut_op_incast_learn(j, &op);
}

/* Several that are short mean that too many send at once; one alone has a trouble of its own and stops to count. */
static void incast__learns_from_several_not_from_one(void)
{
    static ut_job j;
    static const struct {
        uint32_t done[HOSTS];
        uint8_t from, factor;
        uint64_t slow;
    } rows[] = {
        {{0, 10, 10, 10, 10}, 2, 3, 0},     {{0, 10, 10, 10, 10}, 4, 4, 0}, /* there are no more */
        {{0, 10, 3, 5, 10}, 3, 2, 0},       {{0, 1, 1, 1, 1}, 1, 1, 0},
        {{0, 10, 3, 10, 10}, 3, 3, 1 << 2}, {{0, 9, 0, 10, 9}, 3, 3, 1 << 2}, /* most of what is missing is its */
        {{0, 10, 10, 10, 10}, 3, 4, 0},                                       /* it has caught up */
    };
    memset(&j, 0, sizeof j);
    j.config.hosts = HOSTS;
    j.payload = 1440;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        j.incast.dynamic = rows[i].from;
        learn(&j, rows[i].done, true);
        CHECK_MSG(j.incast.dynamic == rows[i].factor && j.incast.slow == rows[i].slow, "row %zu: %u, %zx", i,
                  j.incast.dynamic, (size_t)j.incast.slow);
    }
}

/* What was only behind the newest was cut off: a bound that is too short says nothing of too many senders. */
static void incast__learns_nothing_from_what_was_cut_off(void)
{
    static ut_job j;
    static const uint32_t some[HOSTS] = {0, 1, 3, 5, 2};
    memset(&j, 0, sizeof j);
    j.config.hosts = HOSTS;
    j.payload = 1440;
    j.incast.dynamic = HOSTS - 1;
    learn(&j, some, false);
    CHECK_EQ(j.incast.dynamic, HOSTS - 1);
    learn(&j, some, true);
    CHECK_EQ(j.incast.dynamic, HOSTS - 2);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(incast__gives_windows_to_as_many_as_the_factor_says);
    RUN(incast__lets_another_in_for_one_that_is_silent);
    RUN(incast__learns_from_several_not_from_one);
    RUN(incast__learns_nothing_from_what_was_cut_off);
    return check_end();
}
