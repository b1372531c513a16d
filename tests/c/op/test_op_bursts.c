/* SPDX-License-Identifier: Apache-2.0
 *
 * What a burst is made of, read off the wire between two hosts: the packets of a transfer are made one of the other and
 * taken in together, but each must say of itself what it would say alone.
 */
#include "wired.h"

#include "core/face/ring.h"
#include "core/wire/packets.h"

enum { HOSTS = 2, PAYLOAD = 1440, FULL = PAYLOAD / 4, SLOTS = 300, ELEMENTS = HOSTS * SLOTS * FULL };

static struct host {
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint32_t session;
    float arena[ELEMENTS] __attribute__((aligned(64)));
} hosts[HOSTS];
static uint64_t current;                         /* op */
static uint32_t shard;                           /* bytes of each host's */
static uint64_t seen[HOSTS];                     /* bytes of payload that came from each host */
static uint8_t said[HOSTS][2][SLOTS];            /* Last%ile of each slot, by sender and stage, plus one */
static bool (*loses)(uint32_t from, uint32_t n); /* of the data packets that |from| sends the |n|-th; NULL: none */
static uint32_t sent[HOSTS];

static void carry(uint32_t from, const ut_burst *b, uint8_t *packet, size_t len)
{
    ut_data h;
    if (b->port == UT_PORT_DATA && loses && loses(from, sent[from]++))
        return;
    if (ut_wire_kind(packet, len) == UT_KIND_DATA && CHECK_EQ(ut_data_decode(&h, packet, len, UT_CHECK_SUM), UT_OK) &&
        h.op_seq == current) {
        const uint32_t second = h.ultima.offset >= shard, slot = (h.ultima.offset - second * shard) / PAYLOAD;
        CHECK_EQ(h.ultima.offset, second * shard + slot * PAYLOAD);
        CHECK_EQ(h.payload_len, UT_MIN2((uint32_t)PAYLOAD, shard - slot * PAYLOAD));
        CHECK_EQ(h.coverage, h.stage == 1);
        const float *values = (const float *)(const void *)h.payload;
        for (size_t i = 0; i < h.payload_len / 4; i++)
            if (!CHECK(values[i] == (float)(h.ultima.offset / 4 + i) * (h.stage == 1 ? (float)(1 + from) : 3)))
                break;
        if (!(h.flags & UT_FLAG_REPAIR))
            CHECK_EQ(said[from][h.stage - 1][slot], 0);
        said[from][h.stage - 1][slot] = h.ultima.last + 1;
        seen[from] += h.payload_len;
    }
    arrive(b->to.bytes[0], b->port, packet, len);
}

/* An allreduce of |count| numbers: number i of host h is (1 + h) * i. */
static void allreduce(uint64_t op, uint32_t count, bool in_runs)
{
    ut_receipt r[HOSTS];
    const uint32_t slots = (count * 2 + PAYLOAD - 1) / PAYLOAD;
    current = op;
    shard = count / HOSTS * 4;
    joins = in_runs;
    memset(seen, 0, sizeof seen);
    memset(said, 0, sizeof said);
    memset(sent, 0, sizeof sent);
    for (uint32_t h = 0; h < HOSTS; h++) {
        for (uint32_t i = 0; i < count; i++)
            hosts[h].arena[i] = (float)(1 + h) * (float)i;
        ut_submission s = {.op_seq = op,
                           .count = count,
                           .deadline_ns = now + 10 * UT_SECOND,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED};
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(wired[h].engine, hosts[h].session, now);
    }
    run_until(now + 500 * UT_MS);
    joins = false;
    for (uint32_t h = 0; h < HOSTS; h++) {
        CHECK_EQ(ut_ring_take_completion(&hosts[h].submissions, &hosts[h].completions, &r[h]), 1);
        CHECK_EQ(r[h].status, UT_COMPLETE);
        CHECK_GE(r[h].wire_received, 2 * shard);
        CHECK_GE(r[h].wire_sent, shard); /* all of stage 1; the last of stage 2 may go after the receipt */
        if (!loses)
            CHECK_EQ(seen[h], 2 * shard);
        for (uint32_t i = 0; i < count; i++)
            if (!CHECK(hosts[h].arena[i] == 3 * (float)i))
                break;
        for (unsigned stage = 0; stage < 2; stage++)
            for (uint32_t slot = 0; slot < slots; slot++)
                CHECK_EQ(said[h][stage][slot], 1 + (slot + 1 == slots ? 15 : slot >= slots * 99 / 100));
    }
}

static bool every_seventh(uint32_t from, uint32_t n)
{
    return (n + from) % 7 == 0;
}

static void bursts__say_of_each_packet_what_it_would_say_alone(void)
{
    static const uint32_t counts[] = {ELEMENTS, ELEMENTS - HOSTS * 5, HOSTS * 200 * FULL, HOSTS * FULL, HOSTS * 3};
    now = 7 * UT_SECOND;
    wired_job = 0;
    memset(hosts, 0, sizeof hosts);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_job_config job = {.hosts = HOSTS,
                             .self = h,
                             .local_ranks = 1,
                             .packet_bytes = 1472,
                             .bucket_bytes_max = sizeof hosts[h].arena};
        plug_in(&job);
        ut_session_memory m = {
            &hosts[h].submissions, &hosts[h].completions, (uint8_t *)hosts[h].arena, sizeof hosts[h].arena, 0, 0};
        CHECK_EQ(ut_engine_session_add(wired[h].engine, 0, &m, 0, &hosts[h].session), UT_OK);
    }
    listen_all();
    reach(0, 1);
    reach(1, 0);
    uint64_t op = 0;
    for (unsigned way = 0; way < 3; way++) {
        loses = way == 2 ? every_seventh : NULL;
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            allreduce(op++, counts[i], way > 0);
    }
    unplug_all();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(bursts__say_of_each_packet_what_it_would_say_alone);
    return check_end();
}
