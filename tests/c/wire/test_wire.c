/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire, byte by byte: the header of docs/papers.md, section 1.9, round trips, and that nothing damaged is let
 * through.
 */
#include "check.h"

#include "core/face/ring.h"
#include "core/path/parity.h"
#include "core/wire/run.h"
#include "kernels/kernels.h"

static void ut_ultima__spec_vectors(void)
{
    static const struct {
        ut_ultima h;
        uint8_t bytes[9];
    } rows[] = {
        /* 1 */ {{0x1234, 0x89abcdef, 0x0102, 3, 2}, {0x12, 0x34, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x02, 0x32}},
        /* 2 */ {{7, 26213000, 3200, 1, 2}, {0x00, 0x07, 0x01, 0x8f, 0xfa, 0x88, 0x0c, 0x80, 0x12}},
        /* 3 */ {{0xffff, 0xffffffff, 0xffff, 15, 15}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
        /* 4 */ {{0, 0, 0, 0, 0}, {0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t out[9];
        ut_ultima back;
        ut_ultima_encode(out, &rows[i].h);
        CHECK_BYTES(out, rows[i].bytes, 9);
        ut_ultima_decode(&back, rows[i].bytes);
        CHECK_EQ(back.bucket, rows[i].h.bucket);
        CHECK_EQ(back.offset, rows[i].h.offset);
        CHECK_EQ(back.timeout, rows[i].h.timeout);
        CHECK_EQ(back.last, rows[i].h.last);
        CHECK_EQ(back.incast, rows[i].h.incast);
    }
}

static size_t some_data(uint8_t *packet, ut_data *h, size_t payload)
{
    *h = (ut_data){.flags = (uint8_t)check_below(UT_FLAGS + 1),
                   .stage = (uint8_t)(1 + check_below(2)),
                   .coverage = (uint16_t)(1 + check_below(UT_COVERAGE_MAX)),
                   .cid = (uint32_t)check_random(),
                   .pn = (uint32_t)check_random(),
                   .op_seq = check_random() & UT_OP_SEQ_MAX,
                   .view = (uint16_t)check_random(),
                   .time_us = (uint32_t)check_random() & UT_TIME_MASK};
    h->ultima = (ut_ultima){.bucket = (uint16_t)h->op_seq,
                            .offset = (uint32_t)check_random(),
                            .timeout = (uint16_t)check_random(),
                            .last = (uint8_t)check_below(16),
                            .incast = (uint8_t)check_below(16)};
    for (size_t i = 0; i < payload; i++)
        packet[UT_DATA_HEADER + i] = (uint8_t)check_random();
    h->payload_crc = ut_crc32c(0, packet + UT_DATA_HEADER, payload);
    ut_data_encode(packet, h, payload);
    return UT_DATA_HEADER + payload;
}

/* Packets that a sender makes one of the other are a run, and each is as it decodes by itself; what differs in any bit
 * of its header is not of the run, and what differs in its payload is spoilt. */
static void ut_run__of_what_follows(void)
{
    enum { PAYLOAD = 1440, GAP = 16, EACH = UT_DATA_HEADER + PAYLOAD + GAP, PACKETS = UT_RUN_MOST + 1 };
    static uint8_t room[PACKETS * EACH];
    for (int round = 0; round < 20; round++) {
        const size_t payload = round % 2 ? PAYLOAD : 1 + check_below(PAYLOAD);
        ut_data h;
        ut_data_run r;
        const size_t len = some_data(room, &h, payload);
        h.ultima.offset /= 2; /* no bucket ends behind the range of offsets */
        ut_data_form form = ut_data_form_of(&h);
        for (uint32_t i = 0; i < PACKETS; i++) {
            uint8_t *packet = room + i * EACH;
            for (size_t k = 0; k < payload; k++)
                packet[UT_DATA_HEADER + k] = (uint8_t)check_random();
            ut_data_form_encode(packet, &form, ut_crc32c(0, packet + UT_DATA_HEADER, payload), payload);
        }
        CHECK_EQ(ut_data_decode(&h, room, len, UT_CHECK_SUM), UT_OK);
        ut_run_begin(&r, &h, room, EACH);
        CHECK(!ut_run_goes_on(&r, room + 2 * EACH, len)); /* one is left out */
        for (uint32_t i = 1; i < UT_RUN_MOST; i++) {
            uint8_t *packet = room + i * EACH;
            CHECK(!ut_run_goes_on(&r, packet, len - 1));
            for (unsigned bit = 0; bit < 8 * UT_DATA_HEADER; bit++) {
                if (bit / 32 == UT_CHECKSUM_AT / 4)
                    continue; /* which tells of the payload as well */
                packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
                CHECK(!ut_run_goes_on(&r, packet, len));
                packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
            }
            size_t at = UT_CHECKSUM_AT + check_below(4) + (i % 2 ? UT_DATA_HEADER - UT_CHECKSUM_AT : 0);
            at = UT_MIN2(at, len - 1);
            packet[at] ^= 4;
            CHECK(ut_run_goes_on(&r, packet, len));
            CHECK_EQ(ut_run_add(&r, UT_CHECK_SUM), UT_ERR_CHECKSUM);
            CHECK_EQ(r.packets, i);
            packet[at] ^= 4;
            CHECK_EQ(ut_run_add(&r, UT_CHECK_SUM), UT_OK);
        }
        CHECK(!ut_run_goes_on(&r, room + UT_RUN_MOST * EACH, len)); /* it is full */
        for (uint32_t i = 0; i < UT_RUN_MOST; i++) {
            ut_data alone;
            CHECK_EQ(ut_data_decode(&alone, room + i * EACH, len, UT_CHECK_SUM), UT_OK);
            const ut_data of_run = ut_run_packet(&r, i);
            CHECK_EQ(of_run.pn, alone.pn);
            CHECK_EQ(of_run.payload_crc, alone.payload_crc);
            CHECK(of_run.payload == alone.payload && of_run.payload_len == alone.payload_len);
            CHECK(of_run.flags == alone.flags && of_run.stage == alone.stage && of_run.coverage == alone.coverage);
            CHECK(of_run.cid == alone.cid && of_run.view == alone.view && of_run.time_us == alone.time_us);
            CHECK_EQ(of_run.op_seq, alone.op_seq);
            CHECK(of_run.ultima.offset == alone.ultima.offset && of_run.ultima.last == alone.ultima.last);
            CHECK(of_run.ultima.timeout == alone.ultima.timeout && of_run.ultima.incast == alone.ultima.incast);
        }
    }
}

static void ut_data__golden(void)
{
    /* The fields at their places; the checksum is that of the packet with zeros in its field. */
    uint8_t packet[UT_DATA_HEADER + 4], plain[UT_DATA_HEADER + 4];
    const uint8_t payload[4] = {1, 2, 3, 4};
    ut_data h = {.flags = 1,
                 .stage = 2,
                 .coverage = 0x0507,
                 .cid = 0xa1b2c3d4,
                 .pn = 0x01020304,
                 .op_seq = 0xabc00051234,
                 .view = 0x9876,
                 .time_us = 0x002bcdef,
                 .ultima = {0x1234, 0x89abcdef, 0x0102, 3, 2}};
    static const uint8_t want[UT_DATA_HEADER] = {0x41, 0x6b, 0xcd, 0xef, 0xa1, 0xb2, 0xc3, 0xd4, 0x01, 0x02, 0x03,
                                                 0x04, 0,    0,    0,    0,    0xab, 0xc0, 0x00, 0x5d, 0x07, 0x98,
                                                 0x76, 0x12, 0x34, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x02, 0x32};
    h.payload_crc = ut_crc32c(0, payload, 4);
    ut_data_encode(packet, &h, 4);
    memcpy(packet + UT_DATA_HEADER, payload, 4);
    memcpy(plain, want, UT_DATA_HEADER);
    memcpy(plain + UT_DATA_HEADER, payload, 4);
    uint32_t crc = ut_crc32c(0, plain, sizeof plain);
    CHECK_BYTES(packet, want, 12);
    CHECK_BYTES(packet + 16, want + 16, 16);
    CHECK_HEX((uint32_t)packet[12] << 24 | packet[13] << 16 | packet[14] << 8 | packet[15], crc);
}

static void ut_data__round_trip(void)
{
    uint8_t packet[1472];
    for (int k = 0; k < 500; k++) {
        ut_data h, back;
        size_t len = some_data(packet, &h, 1 + check_below(1440));
        CHECK_EQ(ut_data_decode(&back, packet, len, UT_CHECK_SUM), UT_OK);
        CHECK_EQ(back.flags, h.flags);
        CHECK_EQ(back.stage, h.stage);
        CHECK_EQ(back.coverage, h.coverage);
        CHECK_HEX(back.cid, h.cid);
        CHECK_HEX(back.pn, h.pn);
        CHECK_HEX(back.op_seq, h.op_seq);
        CHECK_HEX(back.view, h.view);
        CHECK_HEX(back.ultima.bucket, h.ultima.bucket);
        CHECK_HEX(back.time_us, h.time_us);
        CHECK_HEX(back.ultima.offset, h.ultima.offset);
        CHECK_HEX(back.payload_crc, ut_crc32c(0, packet + UT_DATA_HEADER, len - UT_DATA_HEADER));
    }
}

/* One flipped bit anywhere, or one byte more or less, is never let through. */
static void ut_data__damage_is_found(void)
{
    uint8_t packet[200];
    ut_data h, back;
    size_t len = some_data(packet, &h, 90);
    for (size_t bit = 0; bit < len * 8; bit++) {
        packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_MSG(ut_data_decode(&back, packet, len, UT_CHECK_SUM) != UT_OK, "bit %zu", bit);
        packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < len; n++)
        CHECK_MSG(ut_data_decode(&back, packet, n, UT_CHECK_SUM) != UT_OK, "%zu bytes", n);
    packet[len] = 0;
    CHECK_NE(ut_data_decode(&back, packet, len + 1, UT_CHECK_SUM), UT_OK);
    CHECK_EQ(ut_data_decode(&back, packet, len, UT_CHECK_SUM), UT_OK);
}

/* The connection id is read before anything is computed: a damaged packet still names its path, a short one names none.
 */
static void ut_wire_peek__reads_the_path_and_no_more(void)
{
    uint8_t packet[200];
    ut_data h;
    uint32_t cid = 0;
    size_t len = some_data(packet, &h, 90);
    packet[len - 1] ^= 1;
    CHECK_EQ(ut_wire_peek(packet, len, UT_KIND_DATA, &cid), UT_OK);
    CHECK_EQ(cid, h.cid);
    CHECK_EQ(ut_wire_peek(packet, UT_DATA_HEADER, UT_KIND_DATA, &cid), UT_ERR_MALFORMED);
    CHECK_EQ(ut_wire_peek(packet, len, UT_KIND_FEEDBACK, &cid), UT_ERR_MALFORMED);
    packet[0] ^= 0x30; /* of another version */
    CHECK_EQ(ut_wire_peek(packet, len, UT_KIND_DATA, &cid), UT_ERR_MALFORMED);
    CHECK_EQ(ut_wire_peek(packet, 0, UT_KIND_DATA, &cid), UT_ERR_MALFORMED);
}

static void ut_data__inconsistent_is_malformed(void)
{
    uint8_t packet[64];
    ut_data h, back;
    size_t len = some_data(packet, &h, 8);
    h.stage = 1;
    h.coverage = 0;
    ut_data_encode(packet, &h, 8);
    CHECK_EQ(ut_data_decode(&back, packet, len, UT_CHECK_SUM), UT_ERR_MALFORMED);
    CHECK_EQ(ut_data_decode(&back, packet, UT_DATA_HEADER, UT_CHECK_SUM), UT_ERR_MALFORMED); /* no payload */
}

/* A collective, and what it says for itself. */
static void some_collective(ut_record *r)
{
    r->collective = (uint8_t)check_below(UT_ALLREDUCE_SPARSE + 1);
    if (r->collective == UT_BROADCAST) {
        r->redop = 0;
        r->alike.root = (uint8_t)check_random();
    } else if (r->collective == UT_BARRIER) {
        r->count = 0;
        r->alike.note = check_random();
    } else if (r->collective == UT_ALLREDUCE_SPARSE) {
        r->alike.sparse.hint = (uint32_t)check_random();
        r->alike.sparse.group = (uint16_t)check_random();
        r->alike.sparse.form = (uint8_t)check_below(16);
        r->alike.sparse.down = (uint8_t)check_below(16);
    }
}

static ut_feedback some_feedback(void)
{
    ut_feedback f = {.records = (uint8_t)check_below(UT_OPS_MAX + 1),
                     .incast = 3,
                     .cid = (uint32_t)check_random(),
                     .number = (uint32_t)check_random(),
                     .grant = check_random(),
                     .received = check_random(),
                     .rx_floor = check_random(),
                     .tx_floor = check_random(),
                     .highest_pn = (uint32_t)check_random(),
                     .ce_packets = 5,
                     .kernel_drops = 6,
                     .echo_us = UINT32_MAX,
                     .hold_us = 77,
                     .loss = (uint16_t)check_random(),
                     .state = (uint32_t)check_random(),
                     .state_seen = (uint32_t)check_random(),
                     .ack_words = (uint8_t)check_below(UT_ACK_WORDS + 1)};
    for (unsigned i = 0; i < f.records; i++)
        f.record[i] = (ut_record){.op_seq = check_random(),
                                  .count = check_random(),
                                  .dtype = 1,
                                  .redop = 2,
                                  .mode = 3,
                                  .flags = 0x7f,
                                  .weight = 9,
                                  .field = 3,
                                  .agree = 1,
                                  .time_left_us = 1234,
                                  .digest = (uint32_t)check_random(),
                                  .full_mask = check_random(),
                                  .any_mask = check_random(),
                                  .fresh = (uint16_t)check_random(),
                                  .stale = (uint16_t)check_random(),
                                  .oldest_step = (uint32_t)check_random(),
                                  .initiator = (uint16_t)check_random(),
                                  .policy = UT_POLICY_QUORUM,
                                  .submitted = UT_SUBMIT_WORLD,
                                  .attached = (uint16_t)check_random(),
                                  .view = (uint16_t)check_random(),
                                  .portion = (uint8_t)check_random(),
                                  .epoch = check_random()};
    for (unsigned i = 0; i < f.records; i++)
        some_collective(&f.record[i]);
    for (unsigned i = 0; i < f.ack_words; i++)
        f.ack[i] = check_random();
    return f;
}

static void ut_feedback__round_trip_and_damage(void)
{
    uint8_t packet[UT_FEEDBACK_MAX + 1], again[UT_FEEDBACK_MAX];
    for (int k = 0; k < 100; k++) {
        ut_feedback f = some_feedback(), back;
        size_t len = ut_feedback_encode(packet, &f);
        CHECK_EQ(len, 80 + 80 * f.records + 8 * f.ack_words);
        CHECK_EQ(ut_feedback_decode(&back, packet, len, UT_CHECK_SUM), UT_OK);
        CHECK_EQ(ut_feedback_encode(again, &back), len);
        CHECK_BYTES(again, packet, len);
        CHECK_EQ(back.loss, f.loss);
        CHECK_EQ(back.state, f.state);
        CHECK_EQ(back.state_seen, f.state_seen);
        for (unsigned i = 0; i < f.records; i++) {
            CHECK_EQ(back.record[i].stale, f.record[i].stale);
            CHECK_EQ(back.record[i].oldest_step, f.record[i].oldest_step);
            CHECK_EQ(back.record[i].attached, f.record[i].attached);
            CHECK_EQ(back.record[i].view, f.record[i].view);
            CHECK_HEX(back.record[i].epoch, f.record[i].epoch);
            CHECK_HEX(back.record[i].alike.all, f.record[i].alike.all);
            CHECK_HEX(back.record[i].count, f.record[i].count);
            CHECK_EQ(back.record[i].portion, f.record[i].portion);
        }
        size_t bit = check_below(len * 8);
        packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_MSG(ut_feedback_decode(&back, packet, len, UT_CHECK_SUM) != UT_OK, "bit %zu", bit);
        packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_NE(ut_feedback_decode(&back, packet, len - 1, UT_CHECK_SUM), UT_OK);
        CHECK_NE(ut_feedback_decode(&back, packet, check_below(120), UT_CHECK_SUM), UT_OK);
    }
}

static void ut_feedback__counts_that_lie(void)
{
    /* A right checksum over record and word counts that the length does not hold. */
    ut_feedback f = some_feedback(), back;
    uint8_t packet[UT_FEEDBACK_MAX];
    f.records = 1;
    f.ack_words = 1;
    size_t len = ut_feedback_encode(packet, &f);
    for (unsigned records = 0; records < 256; records++) {
        packet[2] = (uint8_t)records;
        memset(packet + 12, 0, 4);
        uint32_t crc = __builtin_bswap32(ut_crc32c(0, packet, len));
        memcpy(packet + 12, &crc, 4);
        CHECK_EQ(ut_feedback_decode(&back, packet, len, UT_CHECK_SUM), records == 1 ? UT_OK : UT_ERR_MALFORMED);
    }
}

/* Credit alone: what the page says byte for byte, and nothing damaged is let through. */
static void ut_grant__golden_round_trip_and_damage(void)
{
    static const uint8_t want[UT_GRANT_BYTES] = {0x44, 0,    0,    0,    0xa1, 0xb2, 0xc3, 0xd4,
                                                 0x01, 0x02, 0x03, 0x04, 0x83, 0x97, 0xb1, 0xcb,
                                                 0,    0,    0,    0x01, 0x2a, 0x05, 0xf2, 0x00};
    ut_grant g = {.cid = 0xa1b2c3d4, .number = 0x5501020304, .grant = 5000000000}, back;
    uint8_t packet[UT_GRANT_BYTES + 1] = {0};
    ut_grant_encode(packet, &g);
    CHECK_BYTES(packet, want, UT_GRANT_BYTES);
    CHECK_EQ(ut_grant_decode(&back, packet, UT_GRANT_BYTES, UT_CHECK_SUM), UT_OK);
    CHECK_HEX(back.cid, g.cid);
    CHECK_HEX(back.number, 0x01020304); /* the path knows the rest */
    CHECK_HEX(back.grant, g.grant);
    for (size_t bit = 0; bit < UT_GRANT_BYTES * 8; bit++) {
        packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_MSG(ut_grant_decode(&back, packet, UT_GRANT_BYTES, UT_CHECK_SUM) != UT_OK, "bit %zu", bit);
        packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK_EQ(ut_grant_decode(&back, packet, UT_GRANT_BYTES + 1, UT_CHECK_SUM), UT_ERR_MALFORMED);
    CHECK_EQ(ut_grant_decode(&back, packet, UT_GRANT_BYTES - 1, UT_CHECK_SUM), UT_ERR_MALFORMED);
}

/* Times of UT_TIME_BITS, of which the difference is known but for whole rounds. */
static void ut_time_after__rows(void)
{
    static const struct {
        uint32_t a, b;
        int32_t want;
    } rows[] = {
        {0, 0, 0},
        {7, 5, 2},
        {5, 7, -2},
        {3, UT_TIME_MASK, 4}, /* they came round in between */
        {UT_TIME_MASK, 3, -4},
        {3000000, 0, 3000000}, /* a host that stood still for 3 s */
        {0, 1000000, -1000000},
        {0, 1 << 20, -(1 << 20)},
        {0, (1 << 20) + 1, (3 << 20) - 1},
        {0x12345678, 0x12345670, 8}, /* of both, what is above does not count */
        {0x12345678, 0x98 << 22 | 0x345670, 8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_EQ(ut_time_after(rows[i].a, rows[i].b), rows[i].want);
}

/* A data packet in all but its kind, and what its Timeout says. */
static void ut_parity__round_trip_and_damage(void)
{
    static const uint8_t payload[] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t packet[UT_DATA_HEADER + sizeof payload];
    const ut_data h = {.flags = UT_FLAG_PARITY | UT_FLAG_ASK,
                       .stage = 2,
                       .cid = 0x0a0b0c0d,
                       .pn = 7,
                       .op_seq = 5,
                       .view = 6,
                       .time_us = 9,
                       .ultima = {.bucket = 5, .offset = 1440, .timeout = ut_parity_place(3, 182), .incast = 2},
                       .payload_crc = ut_crc32c(0, payload, sizeof payload)};
    ut_data back;
    ut_data_encode(packet, &h, sizeof payload);
    memcpy(packet + UT_DATA_HEADER, payload, sizeof payload);
    CHECK_HEX(packet[0], 0x46);
    CHECK_EQ(ut_data_decode(&back, packet, sizeof packet, UT_CHECK_SUM), UT_OK);
    CHECK_HEX(back.flags, UT_FLAG_PARITY | UT_FLAG_ASK);
    CHECK_EQ(back.ultima.timeout, 3 << 8 | 182);
    CHECK_EQ(back.ultima.offset, 1440);
    for (size_t bit = 0; bit < sizeof packet * 8; bit++) {
        packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_MSG(ut_data_decode(&back, packet, sizeof packet, UT_CHECK_SUM) != UT_OK, "bit %zu", bit);
        packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK_EQ(ut_data_decode(&back, packet, UT_DATA_HEADER, UT_CHECK_SUM), UT_ERR_MALFORMED);
}

/* Whether somebody is there, and the answer. */
static void ut_path__round_trip_and_damage(void)
{
    for (uint8_t what = 0; what < 4; what++) {
        const ut_path p = {.what = what, .cid = 0xa1b2c3d4, .number = 0x5501020304, .token = 0x1122334455667788};
        uint8_t packet[UT_PATH_BYTES + 1] = {0};
        ut_path back;
        ut_path_encode(packet, &p);
        CHECK_HEX(packet[0], 0x45);
        CHECK_HEX(packet[1], what);
        const bool known = what == UT_PATH_CHALLENGE || what == UT_PATH_ANSWER;
        CHECK_EQ(ut_path_decode(&back, packet, UT_PATH_BYTES, UT_CHECK_SUM), known ? UT_OK : UT_ERR_MALFORMED);
        CHECK_EQ(ut_path_decode(&back, packet, UT_PATH_BYTES, UT_CHECK_NOTHING), known ? UT_OK : UT_ERR_MALFORMED);
        CHECK_HEX(back.cid, p.cid);
        CHECK_HEX(back.number, 0x01020304);
        CHECK_HEX(back.token, p.token);
        for (size_t bit = 0; bit < UT_PATH_BYTES * 8; bit++) {
            packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK_MSG(ut_path_decode(&back, packet, UT_PATH_BYTES, UT_CHECK_SUM) != UT_OK, "bit %zu", bit);
            packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        CHECK_EQ(ut_path_decode(&back, packet, UT_PATH_BYTES + 1, UT_CHECK_SUM), UT_ERR_MALFORMED);
        CHECK_EQ(ut_path_decode(&back, packet, UT_PATH_BYTES - 1, UT_CHECK_SUM), UT_ERR_MALFORMED);
    }
}

static void ut_expand32__rows(void)
{
    static const struct {
        uint64_t expected;
        uint32_t low;
        uint64_t want;
    } rows[] = {
        /* 1 */ {0, 0, 0},
        /* 2 */ {10, 5, 5},
        /* 3 */ {5, 10, 10},
        /* 4 */ {0xffffffff, 2, 0x100000002},
        /* 5 */ {0x100000002, 0xfffffffe, 0xfffffffe},
        /* 6 */ {0x7ffffffff, 0, 0x800000000},
        /* 7 */ {3, 0xfffffff0, 0xfffffff0}, /* nothing lies below zero */
        /* 8 */ {0x500000000, 0x7fffffff, 0x57fffffff},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_HEX(ut_expand32(rows[i].expected, rows[i].low), rows[i].want);
    for (int k = 0; k < 10000; k++) {
        uint64_t expected = check_random() >> check_below(40), near = expected + check_below(1 << 30);
        CHECK_HEX(ut_expand32(expected, (uint32_t)near), near);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    ut_kernels_init(UT_ISA_BEST);
    RUN(ut_ultima__spec_vectors);
    RUN(ut_data__golden);
    RUN(ut_run__of_what_follows);
    RUN(ut_data__round_trip);
    RUN(ut_data__damage_is_found);
    RUN(ut_wire_peek__reads_the_path_and_no_more);
    RUN(ut_data__inconsistent_is_malformed);
    RUN(ut_feedback__round_trip_and_damage);
    RUN(ut_feedback__counts_that_lie);
    RUN(ut_grant__golden_round_trip_and_damage);
    RUN(ut_time_after__rows);
    RUN(ut_path__round_trip_and_damage);
    RUN(ut_parity__round_trip_and_damage);
    RUN(ut_expand32__rows);
    return check_end();
}
