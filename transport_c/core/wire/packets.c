/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire/packets.h"

#include "core/base/plant.h"
#include "kernels/kernels.h"

enum { DATA_CRC_AT = 19, DATA_ULTIMA_AT = 23, FEEDBACK_CRC_AT = 12, PIECE_CRC_AT = 12 };

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}

static void put64(uint8_t *p, uint64_t v)
{
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads travel as they lie in memory, little-endian");

void ut_ultima_encode(uint8_t out[UT_ULTIMA_HEADER], const ut_ultima *h)
{
    put16(out, h->bucket);
    put32(out + 2, h->offset);
    put16(out + 6, h->timeout);
    out[8] = (uint8_t)(h->last << 4 | (h->incast & 15));
}

void ut_ultima_decode(ut_ultima *ret, const uint8_t in[UT_ULTIMA_HEADER])
{
    ret->bucket = get16(in);
    ret->offset = get32(in + 2);
    ret->timeout = get16(in + 6);
    ret->last = in[8] >> 4;
    ret->incast = in[8] & 15;
}

int ut_wire_peek(const uint8_t *packet, size_t len, unsigned kind, size_t least, uint32_t *ret_cid)
{
    if (len < least || packet[0] != (UT_WIRE_VERSION << 4 | kind))
        return UT_ERR_MALFORMED;
    *ret_cid = get32(packet + 4);
    return UT_OK;
}

/* |crc|: of the packet with zeros |at| its place in it. */
static bool is_sound(uint32_t crc, const uint8_t *at)
{
    return crc == get32(at) || ut_planted(UT_PLANT_NO_CRC);
}

void ut_data_encode(uint8_t out[UT_DATA_HEADER], const ut_data *h, size_t payload_len)
{
    out[0] = UT_WIRE_VERSION << 4 | UT_KIND_DATA;
    out[1] = h->flags;
    put16(out + 2, (uint16_t)(h->stage << 14 | h->coverage));
    put32(out + 4, h->cid);
    put32(out + 8, h->pn);
    put16(out + 12, (uint16_t)(h->op_seq >> 16));
    put16(out + 14, h->owners);
    out[16] = (uint8_t)(h->time_us >> 16);
    put16(out + 17, (uint16_t)h->time_us);
    put32(out + DATA_CRC_AT, 0);
    ut_ultima_encode(out + DATA_ULTIMA_AT, &h->ultima);
    put32(out + DATA_CRC_AT, ut_crc32c_join(ut_crc32c(0, out, UT_DATA_HEADER), h->payload_crc, payload_len));
}

int ut_data_decode(ut_data *ret, const uint8_t *packet, size_t len)
{
    uint8_t header[UT_DATA_HEADER];
    if (len <= UT_DATA_HEADER || packet[0] != (UT_WIRE_VERSION << 4 | UT_KIND_DATA))
        return UT_ERR_MALFORMED;
    memcpy(header, packet, UT_DATA_HEADER);
    put32(header + DATA_CRC_AT, 0);
    ret->payload_crc = ut_crc32c(0, packet + UT_DATA_HEADER, len - UT_DATA_HEADER);
    uint32_t crc = ut_crc32c_join(ut_crc32c(0, header, UT_DATA_HEADER), ret->payload_crc, len - UT_DATA_HEADER);
    if (!is_sound(crc, packet + DATA_CRC_AT))
        return UT_ERR_CHECKSUM;
    ret->flags = header[1];
    ret->stage = header[2] >> 6;
    ret->coverage = get16(header + 2) & UT_COVERAGE_MAX;
    ret->cid = get32(header + 4);
    ret->pn = get32(header + 8);
    ret->owners = get16(header + 14);
    ret->time_us = (uint32_t)header[16] << 16 | get16(header + 17);
    ut_ultima_decode(&ret->ultima, header + DATA_ULTIMA_AT);
    ret->op_seq = (uint32_t)get16(header + 12) << 16 | ret->ultima.bucket;
    if (ret->stage != 1 && ret->stage != 2)
        return UT_ERR_MALFORMED;
    if (ret->stage == 1 && ret->coverage == 0)
        return UT_ERR_MALFORMED;
    return UT_OK;
}

void ut_piece_encode(uint8_t out[UT_PIECE_HEADER], const ut_piece *h, const void *a, size_t a_len, const void *b,
                     size_t b_len)
{
    out[0] = UT_WIRE_VERSION << 4 | UT_KIND_PIECE;
    out[1] = h->index;
    put16(out + 2, h->whole);
    put32(out + 4, h->cid);
    put32(out + 8, h->pn);
    put32(out + PIECE_CRC_AT, 0);
    uint32_t crc = ut_crc32c(ut_crc32c(0, out, UT_PIECE_HEADER), a, a_len);
    put32(out + PIECE_CRC_AT, b_len ? ut_crc32c(crc, b, b_len) : crc);
}

int ut_piece_decode(ut_piece *ret, const uint8_t *packet, size_t len)
{
    uint8_t header[UT_PIECE_HEADER];
    if (len <= UT_PIECE_HEADER || packet[0] != (UT_WIRE_VERSION << 4 | UT_KIND_PIECE))
        return UT_ERR_MALFORMED;
    memcpy(header, packet, UT_PIECE_HEADER);
    put32(header + PIECE_CRC_AT, 0);
    uint32_t crc = ut_crc32c(ut_crc32c(0, header, UT_PIECE_HEADER), packet + UT_PIECE_HEADER, len - UT_PIECE_HEADER);
    if (!is_sound(crc, packet + PIECE_CRC_AT))
        return UT_ERR_CHECKSUM;
    ret->index = header[1];
    ret->whole = get16(header + 2);
    ret->cid = get32(header + 4);
    ret->pn = get32(header + 8);
    return UT_OK;
}

size_t ut_feedback_encode(uint8_t *out, const ut_feedback *f)
{
    assert(f->records <= UT_OPS_MAX && f->ack_words <= UT_ACK_WORDS);
    out[0] = UT_WIRE_VERSION << 4 | UT_KIND_FEEDBACK;
    out[1] = f->flags;
    out[2] = f->records;
    out[3] = f->incast;
    put32(out + 4, f->cid);
    put32(out + 8, f->number);
    put32(out + FEEDBACK_CRC_AT, 0);
    put64(out + 16, f->grant);
    put64(out + 24, f->received);
    put64(out + 32, f->rx_floor);
    put64(out + 40, f->tx_floor);
    put32(out + 48, f->highest_pn);
    put32(out + 52, f->ce_packets);
    put32(out + 56, f->kernel_drops);
    put32(out + 60, f->echo_us);
    put32(out + 64, f->hold_us);
    out[68] = f->owners.decider;
    out[69] = f->ack_words;
    put16(out + 70, f->hadamard);
    put64(out + 72, f->owners.plan.before);
    put64(out + 80, f->owners.plan.after);
    put64(out + 88, f->owners.plan.from);
    uint8_t *p = out + UT_FEEDBACK_HEADER;
    for (unsigned i = 0; i < f->records; i++, p += UT_OP_RECORD) {
        const ut_record *r = &f->record[i];
        put64(p, r->op_seq);
        put64(p + 8, r->count);
        p[16] = r->dtype;
        p[17] = r->collective == UT_BROADCAST ? r->root : r->redop;
        p[18] = r->mode;
        p[19] = r->flags;
        put16(p + 20, r->weight);
        p[22] = r->field;
        p[23] = (uint8_t)(r->algorithm << 4 | r->collective << 1 | r->agree);
        put32(p + 24, r->time_left_us);
        put32(p + 28, r->digest);
        put64(p + 32, r->full_mask);
        put64(p + 40, r->any_mask);
        put16(p + 48, r->fresh);
        put16(p + 50, r->stale);
        put32(p + 52, r->oldest_step);
        put16(p + 56, r->initiator);
        p[58] = r->policy;
        p[59] = r->submitted;
        put16(p + 60, r->attached);
        put16(p + 62, r->owners);
    }
    for (unsigned i = 0; i < f->ack_words; i++, p += 8)
        put64(p, f->ack[i]);
    size_t len = (size_t)(p - out);
    put32(out + FEEDBACK_CRC_AT, ut_crc32c(0, out, len));
    return len;
}

int ut_feedback_decode(ut_feedback *ret, const uint8_t *packet, size_t len)
{
    uint8_t copy[UT_FEEDBACK_MAX];
    if (len < UT_FEEDBACK_HEADER || len > UT_FEEDBACK_MAX || packet[0] != (UT_WIRE_VERSION << 4 | UT_KIND_FEEDBACK))
        return UT_ERR_MALFORMED;
    memcpy(copy, packet, len);
    put32(copy + FEEDBACK_CRC_AT, 0);
    if (!is_sound(ut_crc32c(0, copy, len), packet + FEEDBACK_CRC_AT))
        return UT_ERR_CHECKSUM;
    ret->flags = copy[1];
    ret->records = copy[2];
    ret->incast = copy[3];
    ret->cid = get32(copy + 4);
    ret->number = get32(copy + 8);
    ret->grant = get64(copy + 16);
    ret->received = get64(copy + 24);
    ret->rx_floor = get64(copy + 32);
    ret->tx_floor = get64(copy + 40);
    ret->highest_pn = get32(copy + 48);
    ret->ce_packets = get32(copy + 52);
    ret->kernel_drops = get32(copy + 56);
    ret->echo_us = get32(copy + 60);
    ret->hold_us = get32(copy + 64);
    ret->owners.decider = copy[68];
    ret->ack_words = copy[69];
    ret->hadamard = get16(copy + 70);
    ret->owners.plan = (ut_owners_plan){get64(copy + 72), get64(copy + 80), get64(copy + 88)};
    if (ret->records > UT_OPS_MAX || ret->ack_words > UT_ACK_WORDS ||
        len != UT_FEEDBACK_HEADER + (size_t)ret->records * UT_OP_RECORD + (size_t)ret->ack_words * 8)
        return UT_ERR_MALFORMED;
    const uint8_t *p = copy + UT_FEEDBACK_HEADER;
    for (unsigned i = 0; i < ret->records; i++, p += UT_OP_RECORD) {
        ut_record *r = &ret->record[i];
        r->op_seq = get64(p);
        r->count = get64(p + 8);
        r->dtype = p[16];
        r->mode = p[18];
        r->flags = p[19];
        r->weight = get16(p + 20);
        r->field = p[22];
        r->agree = p[23] & 1;
        r->collective = p[23] >> 1 & 7;
        r->algorithm = p[23] >> 4;
        r->redop = r->collective == UT_BROADCAST ? 0 : p[17];
        r->root = r->collective == UT_BROADCAST ? p[17] : 0;
        r->time_left_us = get32(p + 24);
        r->digest = get32(p + 28);
        r->full_mask = get64(p + 32);
        r->any_mask = get64(p + 40);
        r->fresh = get16(p + 48);
        r->stale = get16(p + 50);
        r->oldest_step = get32(p + 52);
        r->initiator = get16(p + 56);
        r->policy = p[58];
        r->submitted = p[59];
        r->attached = get16(p + 60);
        r->owners = get16(p + 62);
    }
    for (unsigned i = 0; i < ret->ack_words; i++, p += 8)
        ret->ack[i] = get64(p);
    return UT_OK;
}

uint64_t ut_expand32(uint64_t expected, uint32_t low)
{
    uint64_t candidate = (expected & ~(uint64_t)UINT32_MAX) | low;
    if (candidate + (1ULL << 31) < expected && candidate + (1ULL << 32) > candidate)
        return candidate + (1ULL << 32);
    if (candidate > expected + (1ULL << 31) && candidate >= (1ULL << 32))
        return candidate - (1ULL << 32);
    return candidate;
}
