/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire/burst.h"

#include "check.h"
#include "kernels/kernels.h"

enum { FULL = 1440 };

static const ut_cipher cipher = {.name = "room for a tag", .overhead = 16};
static const ut_seal sealed = {.cipher = &cipher};
static const ut_addr peer = {.len = 2, .bytes = {3, 1}};

static ut_data header(uint32_t pn, const uint8_t *payload, size_t len)
{
    return (ut_data){.stage = 1, .coverage = 1, .cid = 7, .pn = pn, .payload_crc = ut_crc32c(0, payload, len)};
}

/* Packets follow each other with room for a tag behind each, and hold what the payload was when they were added: a
 * trainer may write its buffer before the burst is sent. */
static void data_append__copies(void)
{
    static uint8_t payload[FULL], kept[3][FULL];
    static const size_t lengths[] = {FULL, FULL, 100};
    static ut_burst b;
    for (unsigned k = 0; k < 2; k++) {
        const uint32_t overhead = k ? 16 : 0, stride = UT_DATA_HEADER + FULL + overhead;
        ut_burst_begin(&b, &peer, UT_PORT_DATA, k ? &sealed : NULL, 40);
        b.segment_bytes = stride;
        for (uint32_t i = 0; i < 3; i++) {
            for (size_t at = 0; at < FULL; at++)
                kept[i][at] = payload[at] = (uint8_t)check_random();
            const ut_data h = header(40 + i, payload, lengths[i]);
            ut_data_append(&b, &h, payload, lengths[i]);
        }
        memset(payload, 0xee, sizeof payload);
        CHECK_EQ(b.segments, 3);
        CHECK_EQ(b.bytes, 2 * stride + UT_DATA_HEADER + 100 + overhead);
        for (uint32_t i = 0; i < 3; i++) {
            ut_data h;
            const uint8_t *packet = b.memory + i * stride;
            CHECK_EQ(ut_data_decode(&h, packet, UT_DATA_HEADER + lengths[i], UT_CHECK_SUM), UT_OK);
            CHECK_EQ(h.pn, 40 + i);
            CHECK_BYTES(packet + UT_DATA_HEADER, kept[i], lengths[i]);
        }
    }
}

/* As many packets as an engine may have in a burst fill it and no more: the sanitizers would see a byte behind it. */
static void data_append__fills_a_burst(void)
{
    static uint8_t payload[FULL];
    ut_burst *b = malloc(sizeof *b);
    const uint32_t most = UT_BURST_BYTES / (UT_DATA_HEADER + FULL);
    ut_burst_begin(b, &peer, UT_PORT_DATA, NULL, 0);
    for (uint32_t i = 0; i < most; i++) {
        const ut_data h = header(i, payload, FULL);
        ut_data_append(b, &h, payload, FULL);
    }
    CHECK_EQ(b->segments, most);
    CHECK_EQ(b->bytes, most * (UT_DATA_HEADER + FULL));
    free(b);
}

static void control__is_the_only_segment(void)
{
    static ut_burst b;
    for (unsigned k = 0; k < 2; k++) {
        const uint32_t overhead = k ? 16 : 0;
        ut_burst_begin(&b, &peer, UT_PORT_FEEDBACK, k ? &sealed : NULL, 9);
        const ut_grant grant = {.cid = 7, .number = 9, .grant = 123456};
        ut_grant_append(&b, &grant);
        ut_grant g;
        CHECK_EQ(b.segments, 1);
        CHECK_EQ(b.segment_bytes, UT_GRANT_BYTES + overhead);
        CHECK_EQ(b.bytes, UT_GRANT_BYTES + overhead);
        CHECK_EQ(ut_grant_decode(&g, b.memory, UT_GRANT_BYTES, UT_CHECK_SUM), UT_OK);
        CHECK_EQ(g.grant, 123456);
        ut_burst_begin(&b, &peer, UT_PORT_FEEDBACK, k ? &sealed : NULL, 10);
        const ut_feedback feedback = {.cid = 7, .number = 10, .grant = 5};
        ut_feedback_append(&b, &feedback);
        ut_feedback f;
        CHECK_EQ(b.segments, 1);
        CHECK_EQ(b.bytes, b.segment_bytes);
        CHECK_EQ(ut_feedback_decode(&f, b.memory, b.bytes - overhead, UT_CHECK_SUM), UT_OK);
        CHECK_EQ(f.grant, 5);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(data_append__copies);
    RUN(data_append__fills_a_burst);
    RUN(control__is_the_only_segment);
    return check_end();
}
