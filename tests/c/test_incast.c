/* SPDX-License-Identifier: Apache-2.0
 *
 * The incast factor as a receiver enforces it: what its feedback grants to whom, read off the wire. Senders keep an
 * order of their own, so a whole job would show nothing if grants were too wide.
 */
#include "check.h"

#include "../../transport_c/core/engine.h"
#include "../../transport_c/core/wire.h"

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
    ut_session_memory m = {&submissions, &completions, arena, sizeof arena};
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
            CHECK_EQ(ut_feedback_decode(&f, burst.packet, burst.bytes), UT_OK);
            grant[burst.to.bytes[0]] = f.grant;
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

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(incast__gives_windows_to_as_many_as_the_factor_says);
    RUN(incast__lets_another_in_for_one_that_is_silent);
    return check_end();
}
