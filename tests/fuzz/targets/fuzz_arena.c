/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer whose arena and submission ring change while the engine reads them. There are two hosts with a whole engine
 * each; the trainer of the other one only calls again too early at times, and what reaches its host is well formed
 * whatever the first one writes. The first byte chooses the job; then come commands: a call, packets that are lost,
 * time that goes by.
 */
#include "shared.h"
#include "two_hosts.h"

#include "kernels/block.h"

enum { CALLS_MAX = 12 };

/* The same call on both hosts: sparse with the bits of |form|, or dense; entries are every |step|-th unit. */
static void call(input *in, uint8_t command, bool partial)
{
    static const uint16_t groups[] = {1, 1, 2, 16};
    uint8_t form = take8(in), step = (uint8_t)(1 + take8(in) % 5), group = (uint8_t)groups[form >> 2 & 3];
    uint32_t count = take16(in) % (ARENA / 8) / group * group, n = count / group / step;
    bool sparse = command & 8 && !partial;
    while (4 * n * (1u + group) > ARENA / 2)
        n--;
    for (uint32_t h = 0; h < HOSTS; h++) {
        struct host *x = &hosts[h];
        uint32_t *names = (uint32_t *)(void *)x->arena;
        for (uint32_t i = 0; i < (sparse ? n : 0); i++)
            names[i] = i * step;
        for (uint32_t i = sparse ? n : 0; i < ARENA / 8; i++)
            ((float *)(void *)x->arena)[i] = (float)(h + 1);
        ut_submission s = {.dst = sparse || command & 16 ? ARENA / 2 : 0,
                           .count = count,
                           .deadline_ns = now + (1 + (command >> 5)) * 4 * UT_MS,
                           .dtype = UT_FLOAT32,
                           .redop = command & 16 ? UT_AVG : UT_SUM,
                           .mode = UT_BOUNDED,
                           .flags = partial ? UT_SUBMIT_GIVE : 0};
        if (sparse) {
            s.collective = UT_ALLREDUCE_SPARSE;
            s.flags = form & 16 ? UT_SUBMIT_RETURN : 0;
            s.entries = n;
            s.alike.sparse.group = group;
            s.alike.sparse.form = form & 3;
            s.alike.sparse.down = form & 4 ? UT_VALUE_INT8 : 0;
        }
        submit(h, s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    uint8_t how = take8(&in), lost = 0;
    bool partial = how & 1;
    ut_engine_config config = {
        .packet_bytes = how & 2 ? 8928 : 1472, .segments_max = 7, .receive_buffer = 1 << 20, .seed = 1};
    now = UT_SECOND;
    memset(&shared, 0, sizeof shared);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_job_config job = {.hosts = HOSTS,
                             .self = h,
                             .local_ranks = 1,
                             .packet_bytes = how & 2   ? 8928
                                             : how & 4 ? 1472
                                                       : 256,
                             .bucket_bytes_max = ARENA,
                             .options.policy = partial ? UT_POLICY_SOLO : 0,
                             .options.hadamard = how & 8 && !partial ? UT_HADAMARD_ON : 0};
        attach(h, &config, &job);
    }
    connect_both();
    shared.script = in;
    share(hosts[0].arena, ARENA);
    share(&hosts[0].submissions, sizeof hosts[0].submissions);
    for (unsigned calls = 0; in.left && calls < CALLS_MAX; calls++) {
        uint8_t command = take8(&in);
        if (command & 4)
            lost = take8(&in);
        if (command & 3)
            call(&in, command, partial);
        run(now + (ut_ns)take8(&in) * 100 * UT_US, lost);
    }
    ut_stats stats;
    ut_engine_stats(hosts[1].engine, &stats);
    MUST(stats.malformed == 0);
    shared.regions = 0;
    leave();
    return 0;
}
