/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of a host that is in the job and lies: whichever ranges of a chunk they cover, and in which order, its owner
 * folds what it takes, and tells the other host in blocks that are well formed who is in each range. The first bytes
 * choose the size of packets, the form of values and the tensor; then come blocks. They go out under the header of the
 * first packet that the lying host's engine sends to the owner, each with the next number and slot.
 */
/* A chunk has as many slots as its blocks need when each is full: for many small ones it must be large. */
#define ARENA_BYTES (1 << 22)
#include "two_hosts.h"

#include "core/wire/packets.h"
#include "kernels/block.h"
#include "kernels/kernels.h"

enum { BLOCKS_MAX = 400 };

static input blocks;
static ut_block_shape shape; /* as a whole; a chunk has the half of it */
static uint32_t sent, payload;

static void put32(uint8_t *at, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(x >> 8 * i);
}

/* One that is nearly good: |granules| from |first| on, all of its units there or none. Returns its bytes. */
static size_t make(uint8_t *out, size_t room, uint32_t first, uint32_t granules, uint8_t how)
{
    float scale = 1;
    size_t head = UT_BLOCK_HEADER,
           values = how & 1 ? (size_t)granules * ut_granule_units(shape.group) * shape.group : 0;
    memset(out, 0, room);
    out[0] = (uint8_t)((how & 1 ? UT_INDEX_DENSE : UT_INDEX_ELIAS_FANO) | shape.form << 4);
    out[1] = how >> 1 & 1;
    put32(out + 4, first);
    put32(out + 8, granules);
    if (shape.form == UT_VALUE_FLOAT8) {
        memcpy(out + head, &scale, sizeof scale);
        head += sizeof scale;
    }
    size_t bytes = head + values * ut_value_bytes(shape.form);
    for (size_t i = head; i < bytes && i < room; i++)
        out[i] = (uint8_t)(how * i);
    return bytes < room ? bytes : room;
}

/* The owner gets blocks of the input in the place of what the liar's engine sends it. */
static bool lie(uint32_t h, const ut_burst *b)
{
    ut_data d;
    if (h != 1 || b->port != UT_PORT_DATA || ut_wire_kind(b->memory, b->segment_bytes) != UT_KIND_DATA ||
        ut_data_decode(&d, b->memory, UT_MIN2(b->segment_bytes, b->bytes), UT_CHECK_SUM) || d.stage != 1)
        return false;
    size_t head = (size_t)(d.payload - b->memory), room = payload;
    uint8_t *packet = malloc(head + room);
    for (uint32_t first = 0, i = 0; blocks.left && sent < BLOCKS_MAX; i++) {
        uint8_t how = take8(&blocks), repeat = how & 4 ? take8(&blocks) : 1;
        uint32_t granules = 1 + (how & 8 ? take8(&blocks) : 0), gap = how & 16 ? 1 : how & 32 ? take8(&blocks) : 0;
        first = how & 64 ? take16(&blocks) : first;
        for (; repeat && sent < BLOCKS_MAX; repeat--, sent++, first += granules + gap) {
            size_t len = make(packet + head, room, first, granules, how);
            for (uint8_t flips = how & 128 ? take8(&blocks) % 4 : 0; flips; flips--)
                packet[head + take8(&blocks) % len] = take8(&blocks);
            ut_data own = d;
            own.pn = d.pn + sent;
            own.ultima.offset = d.ultima.offset + sent * (uint32_t)room;
            own.payload_crc = ut_crc32c(0, packet + head, len);
            ut_data_encode(packet, &own, len);
            ut_engine_input(hosts[0].engine, UT_PORT_DATA, packet, head + len, 0, false, now);
        }
    }
    free(packet);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t packets[] = {256, 1472, 8928, 9216};
    static const uint32_t groups[] = {1, 1, 2, 17};
    blocks = (input){data, size};
    uint8_t how = take8(&blocks), flags = take8(&blocks);
    shape = (ut_block_shape){.group = groups[how >> 2 & 3], .form = how >> 4 & 3};
    const uint8_t down = flags & 4 ? UT_VALUE_INT8 : 0; /* of answers */
    uint32_t most = 3 * (ARENA / 4) / 4 / shape.group, count = (1 + take16(&blocks) * 10u % most) * shape.group;
    ut_engine_config config = {.packet_bytes = 9216, .segments_max = 7, .receive_buffer = 1 << 20, .seed = 1};
    now = UT_SECOND;
    sent = 0;
    payload = ut_wire_payload(packets[how & 3], 0);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_job_config job = {
            .hosts = HOSTS, .self = h, .local_ranks = 1, .packet_bytes = packets[how & 3], .bucket_bytes_max = ARENA};
        attach(h, &config, &job);
    }
    connect_both();
    instead = lie;
    uint32_t n = count / shape.group < 100 ? count / shape.group : 100;
    for (uint32_t h = 0; h < HOSTS; h++) {
        for (uint32_t i = 0; i < n; i++)
            ((uint32_t *)(void *)hosts[h].arena)[i] = i * (count / shape.group / n);
        for (uint32_t i = n; i < n * (1 + shape.group); i++)
            ((float *)(void *)hosts[h].arena)[i] = 1;
        submit(h, (ut_submission){.dst = ARENA / 4,
                                  .count = count,
                                  .deadline_ns = now + 10 * UT_MS,
                                  .dtype = UT_FLOAT32,
                                  .redop = flags & 1 ? UT_AVG : UT_SUM,
                                  .mode = UT_BOUNDED,
                                  .flags = flags & 2 ? UT_SUBMIT_RETURN : 0,
                                  .collective = UT_ALLREDUCE_SPARSE,
                                  .entries = n,
                                  .alike.sparse = {.group = shape.group, .form = shape.form, .down = down}});
    }
    run(now + 15 * UT_MS, 0);
    ut_stats stats;
    ut_engine_stats(hosts[1].engine, &stats);
    MUST(stats.malformed == 0 && stats.data_refused == 0);
    leave();
    return 0;
}
