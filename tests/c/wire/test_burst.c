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
            ut_data_form form = ut_data_form_of(&h);
            ut_data_append(&b, &form, payload, lengths[i], i % 2 ? &h.payload_crc : NULL);
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

/* The header of each packet is made of the one before: number and offset go on, also over the ends of their ranges. */
static void data_append__goes_on(void)
{
    static uint8_t payload[3][FULL];
    static ut_burst b;
    ut_burst_begin(&b, &peer, UT_PORT_DATA, NULL, 0);
    ut_data first = header(UINT32_MAX, payload[0], FULL);
    first.op_seq = 0x12345678;
    first.ultima = (ut_ultima){0x5678, UINT32_MAX - 3 * FULL + 1, 0xffff, 1, 15};
    ut_data_form form = ut_data_form_of(&first);
    for (uint32_t i = 0; i < 3; i++) {
        for (size_t at = 0; at < FULL; at++)
            payload[i][at] = (uint8_t)check_random();
        ut_data_append(&b, &form, payload[i], FULL, NULL);
    }
    for (uint32_t i = 0; i < 3; i++) {
        ut_data h;
        CHECK_EQ(ut_data_decode(&h, b.memory + i * (UT_DATA_HEADER + FULL), UT_DATA_HEADER + FULL, UT_CHECK_SUM),
                 UT_OK);
        CHECK_EQ(h.pn, (uint32_t)(UINT32_MAX + i));
        CHECK_EQ(h.op_seq, 0x12345678);
        CHECK_EQ(h.ultima.offset, UINT32_MAX - (3 - i) * FULL + 1);
        CHECK_EQ(h.ultima.timeout, 0xffff);
        CHECK_EQ(h.ultima.last, 1);
        CHECK_EQ(h.ultima.incast, 15);
        CHECK_EQ(h.payload_crc, ut_crc32c(0, payload[i], FULL));
        CHECK_BYTES(h.payload, payload[i], FULL);
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
        ut_data_form form = ut_data_form_of(&h);
        ut_data_append(b, &form, payload, FULL, &h.payload_crc);
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
    RUN(data_append__goes_on);
    RUN(data_append__fills_a_burst);
    RUN(control__is_the_only_segment);
    return check_end();
}
