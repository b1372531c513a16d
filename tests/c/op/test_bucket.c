/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of the largest buckets: up to 4 GiB - 1 every offset, slot and length is what it is in 64 bits. A cast
 * to 32 signed bits anywhere on the way shows here.
 */
#include "check.h"
#include "core/face/engine.h"
#include "core/plan/schedule.h"
#include "core/plan/transfer.h"

static ut_schedule schedule;

static void check_largest(uint32_t hosts, uint32_t self, uint64_t bucket, size_t element, uint32_t payload)
{
    const uint64_t count = bucket / element;
    ut_schedule_tar(&schedule, &(ut_layout){hosts, self, count, element}, 1, 7, UINT64_MAX);
    uint64_t own = 0, placed = 0, sent = 0;
    for (uint32_t i = 0; i < schedule.steps; i++) {
        const ut_step *s = &schedule.step[i];
        const uint32_t slots = ut_slots(s->bytes, payload);
        const uint64_t last = (uint64_t)(slots - 1) * payload;
        CHECK(s->bytes > 0 && s->offset + s->bytes <= bucket);
        CHECK(last < s->bytes && s->bytes <= last + payload);
        CHECK_EQ((uint64_t)(uint32_t)(s->offset + last), s->offset + last); /* as the ULTIMA header holds it */
        if (s->kind == UT_STEP_RECEIVE && s->stage == 1)
            own = s->bytes; /* all contributions to the shard that this host reduces */
        if (s->kind == UT_STEP_RECEIVE && s->stage == 2)
            placed += s->bytes;
        if (s->kind == UT_STEP_SEND && s->stage == 1)
            sent += s->bytes;
    }
    CHECK_EQ(placed + own, count * element);
    CHECK_EQ(sent + own, count * element);
}

static void bucket__offsets_and_slots(void)
{
    static const uint32_t hosts[] = {2, 3, 4, 5, 8, 64};
    static const uint64_t buckets[] = {UT_BUCKET_MAX, ((uint64_t)1 << 31) + 8, ((uint64_t)1 << 31) - 8,
                                       ((uint64_t)3 << 30) + 1000};
    static const size_t elements[] = {2, 4, 8};
    static const uint32_t payloads[] = {64, 1440, 8968};
    for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h++)
        for (size_t b = 0; b < sizeof buckets / sizeof *buckets; b++)
            for (size_t e = 0; e < sizeof elements / sizeof *elements; e++)
                for (size_t p = 0; p < sizeof payloads / sizeof *payloads; p++)
                    for (uint32_t self = 0; self < hosts[h]; self += UT_MAX2(1, hosts[h] / 3))
                        check_largest(hosts[h], self, buckets[b], elements[e], payloads[p]);
}

static void bucket__memory_grows_with_it(void)
{
    const ut_engine_config engine = {.packet_bytes = 1472, .segments_max = 1, .receive_buffer = 8 << 20};
    ut_job_config job = {.hosts = 2, .local_ranks = 1, .packet_bytes = 1472, .world = 2};
    uint64_t before = 0;
    for (uint64_t bucket = (uint64_t)1 << 20; bucket <= UT_BUCKET_MAX; bucket = bucket * 2 - (bucket >> 31)) {
        job.bucket_bytes_max = bucket;
        const uint64_t bytes = ut_job_bytes(&engine, &job);
        CHECK(bytes > before && bytes > bucket / 2); /* at least the linger copy of one op's own shard */
        before = bytes;
    }
    job.bucket_bytes_max = (uint64_t)UT_BUCKET_MAX + 1;
    CHECK_EQ(ut_job_bytes(&engine, &job), 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(bucket__offsets_and_slots);
    RUN(bucket__memory_grows_with_it);
    return check_end();
}
