/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer that writes anything at all into the ring that it shares with the engine, its counters included.
 */
#include "fuzz.h"

#include "core/face/engine.h"

enum { ARENA = 1 << 13, RANKS = 2 };

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static ut_submission_ring submissions[RANKS];
    static ut_completion_ring completions[RANKS];
    static ut_burst burst;
    input in = {bytes, size};
    uint8_t how = take8(&in);
    ut_engine_config config = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = 1};
    ut_job_config job = {.hosts = 1,
                         .local_ranks = RANKS,
                         .world = RANKS,
                         .packet_bytes = 1472,
                         .bucket_bytes_max = ARENA,
                         .options.policy = how & 1 ? UT_POLICY_SOLO : 0};
    ut_engine *engine;
    ut_ns now = UT_SECOND;
    void *engine_memory = lazy(0, ut_engine_bytes(&config)), *job_memory = lazy(1, ut_job_bytes(&config, &job));
    uint8_t *arena[RANKS];
    uint32_t session[RANKS];
    MUST(ut_engine_init(engine_memory, &config, &engine) == UT_OK);
    MUST(ut_engine_job_add(engine, 0, &job, job_memory) == UT_OK);
    for (uint32_t i = 0; i < RANKS; i++) {
        memset(&submissions[i], 0, sizeof submissions[i]);
        memset(&completions[i], 0, sizeof completions[i]);
        arena[i] = zeroed(ARENA);
        ut_session_memory m = {&submissions[i], &completions[i], arena[i], ARENA, i, 0};
        MUST(ut_engine_session_add(engine, 0, &m, 0, &session[i]) == UT_OK);
    }
    for (unsigned n = 0; in.left && n < 200; n++) {
        uint8_t command = take8(&in), rank = command & 1;
        ut_submission_ring *ring = &submissions[rank];
        ut_submission *entry = &ring->entries[ring->head % UT_RING_ENTRIES];
        switch (command >> 1 & 3) {
        case 0: /* an entry as it likes */
            take(&in, entry, sizeof *entry);
            ring->head++;
            break;
        case 1: /* one that is nearly good */
            *entry = (ut_submission){.op_seq = take8(&in),
                                     .src = take16(&in) & ~7u,
                                     .dst = take16(&in) & ~7u,
                                     .count = take16(&in),
                                     .deadline_ns = now + (ut_ns)take8(&in) * UT_MS,
                                     .dtype = take8(&in) % 9,
                                     .redop = take8(&in) % 7,
                                     .mode = take8(&in) % 5,
                                     .flags = take8(&in),
                                     .collective = take8(&in) % 7};
            ring->head++;
            break;
        case 2:
            take(&in, &ring->head, command & 64 ? 8 : 1);
            take(&in, &ring->completions_taken, command & 128 ? 8 : 1);
            break;
        default:
            now += take8(&in) * UT_MS;
            break;
        }
        ut_engine_submissions(engine, session[rank], now);
        ut_engine_tick(engine, now);
        while (ut_engine_output(engine, now, &burst))
            ;
        (void)ut_engine_take_wakeups(engine);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        ut_engine_session_remove(engine, session[i], now);
        free(arena[i]);
    }
    ut_engine_job_remove(engine, 0, now);
    return 0;
}
