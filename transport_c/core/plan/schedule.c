/* SPDX-License-Identifier: Apache-2.0
 *
 * What all builders share: how the bucket is cut, and who owns which chunk.
 */
#include "core/plan/schedule.h"

uint64_t ut_shard_bound(uint64_t count, uint32_t hosts, uint32_t j)
{
    assert(hosts > 0 && j <= hosts && count <= UT_BUCKET_MAX);
    return count * j / hosts;
}

uint32_t ut_shard_of(uint32_t host, uint64_t op_seq, uint32_t hosts)
{
    assert(hosts > 0);
    return (uint32_t)((host + op_seq % hosts) % hosts);
}

void ut_schedule_cut(ut_schedule *s, uint32_t chunks, uint64_t count, size_t element_bytes)
{
    assert(chunks >= 1 && chunks <= UT_HOSTS_MAX && element_bytes > 0);
    s->chunks = chunks;
    for (uint32_t c = 0; c <= chunks; c++)
        s->from[c] = ut_shard_bound(count, chunks, c) * element_bytes;
    s->own = UT_CHUNK_NONE;
    s->own_offset = s->own_bytes = 0;
}

void ut_schedule_own(ut_schedule *s, uint32_t chunk)
{
    assert(chunk < s->chunks);
    s->own = (uint16_t)chunk;
    s->own_offset = s->from[chunk];
    s->own_bytes = s->from[chunk + 1] - s->from[chunk];
}

ut_step ut_schedule_step(const ut_schedule *s, enum ut_step_kind kind, unsigned stage, uint32_t round, uint32_t peer,
                         uint32_t chunk)
{
    assert(chunk < s->chunks && peer < UT_HOSTS_MAX && (stage == 1 || stage == 2));
    return (ut_step){.kind = (uint8_t)kind,
                     .stage = (uint8_t)stage,
                     .chunk = (uint16_t)chunk,
                     .round = (uint16_t)round,
                     .peer = (uint16_t)peer,
                     .offset = s->from[chunk],
                     .bytes = s->from[chunk + 1] - s->from[chunk]};
}
