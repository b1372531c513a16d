/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire/packets.h"

#include "core/wire/words.h"
#include "kernels/kernels.h"

_Static_assert(UT_PACKET_MIN == UT_DATA_HEADER + 64, "the least packet, as ut.h tells it");

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

/* The last eight of the paper's nine bytes, as a number. */
static uint64_t ultima_word(const ut_ultima *h)
{
    return (uint64_t)(h->bucket & 0xff) << 56 | (uint64_t)h->offset << 24 | (uint64_t)h->timeout << 8 |
           (uint64_t)((h->last << 4 | (h->incast & 15)) & 0xff);
}

static ut_ultima ultima_of(uint8_t first, uint64_t word)
{
    return (ut_ultima){.bucket = (uint16_t)(first << 8 | word >> 56),
                       .offset = (uint32_t)(word >> 24),
                       .timeout = (uint16_t)(word >> 8),
                       .last = word >> 4 & 15,
                       .incast = word & 15};
}

void ut_ultima_encode(uint8_t out[UT_ULTIMA_HEADER], const ut_ultima *h)
{
    out[0] = (uint8_t)(h->bucket >> 8);
    put64(out + 1, ultima_word(h));
}

void ut_ultima_decode(ut_ultima *ret, const uint8_t in[UT_ULTIMA_HEADER])
{
    *ret = ultima_of(in[0], get64(in + 1));
}

int ut_wire_peek(const uint8_t *packet, size_t len, unsigned kind, uint32_t *ret_cid)
{
    static const uint8_t least[] = {[UT_KIND_DATA] = UT_DATA_HEADER + 1,   [UT_KIND_FEEDBACK] = UT_FEEDBACK_HEADER,
                                    [UT_KIND_PIECE] = UT_PIECE_HEADER + 1, [UT_KIND_GRANT] = UT_GRANT_BYTES,
                                    [UT_KIND_PATH] = UT_PATH_BYTES,        [UT_KIND_PARITY] = UT_DATA_HEADER + 1};
    if (kind == 0 || kind >= sizeof least || len < least[kind] || packet[0] != (UT_WIRE_VERSION << 4 | kind))
        return UT_ERR_MALFORMED;
    *ret_cid = get32(packet + 4);
    return UT_OK;
}

uint32_t ut_wire_number(const uint8_t *packet)
{
    return get32(packet + 8);
}

/* What every packet begins with; the checksum is written last. */
static void put_common(uint8_t *out, unsigned kind, uint8_t second, uint16_t third, uint32_t cid, uint32_t number)
{
    out[0] = (uint8_t)(UT_WIRE_VERSION << 4 | kind);
    out[1] = second;
    put16(out + 2, third);
    put32(out + 4, cid);
    put32(out + 8, number);
    put32(out + UT_CHECKSUM_AT, 0);
}

/* CRC32C of |len| bytes of a packet, its checksum's own taken as zero. |len| >= UT_COMMON_HEADER. */
static uint32_t checksum(const uint8_t *packet, size_t len)
{
    static const uint8_t zero[4];
    uint32_t crc = ut_crc32c(ut_crc32c(0, packet, UT_CHECKSUM_AT), zero, sizeof zero);
    return ut_crc32c(crc, packet + UT_COMMON_HEADER, len - UT_COMMON_HEADER);
}

/* The numbers of the third word but the last, from its high bits on: what is left of the op's, stage, coverage, tag. */
enum { OP_BITS_HERE = UT_OP_SEQ_BITS - 16, COVERAGE_AT = 24, STAGE_AT = COVERAGE_AT + UT_COVERAGE_BITS, OP_AT };
_Static_assert(OP_AT + OP_BITS_HERE == 64, "the third word is full");
_Static_assert(UT_COVERAGE_MAX >= UT_HOSTS_MAX * UT_LOCAL_MAX, "all ranks of a job may be in a payload, or lack in it");

ut_data_form ut_data_form_of(const ut_data *h)
{
    assert(h->op_seq <= UT_OP_SEQ_MAX && h->stage >= 1 && h->stage <= 2);
    const uint64_t kind = UT_WIRE_VERSION << 4 | (h->flags & UT_FLAG_PARITY ? UT_KIND_PARITY : UT_KIND_DATA);
    const uint64_t flags = h->flags & UT_FLAGS;
    const uint64_t time = h->time_us & UT_TIME_MASK, stage = h->stage - 1u, coverage = h->coverage & UT_COVERAGE_MAX;
    return (ut_data_form){.word = {ut_swapped(kind << 56 | flags << (32 + UT_TIME_BITS) | time << 32 | h->cid),
                                   ut_swapped((uint64_t)h->pn << 32),
                                   ut_swapped(h->op_seq >> 16 << OP_AT | stage << STAGE_AT | coverage << COVERAGE_AT |
                                              (uint64_t)h->view << 8 | h->ultima.bucket >> 8),
                                   ut_swapped(ultima_word(&h->ultima))}};
}

void ut_data_form_encode(uint8_t out[UT_DATA_HEADER], ut_data_form *form, uint32_t payload_crc, size_t payload_len)
{
    const uint32_t sum = ut_crc32c_headed(form->word, payload_crc, payload_len);
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t word = form->word[i] | (i == UT_WORD_NUMBER ? ut_swapped(sum) : 0);
        memcpy(out + i * sizeof word, &word, sizeof word);
    }
    form->word[UT_WORD_NUMBER] = ut_next_number(form->word[UT_WORD_NUMBER]);
    form->word[UT_WORD_ULTIMA] = ut_next_ultima(form->word[UT_WORD_ULTIMA], payload_len);
}

void ut_data_encode(uint8_t out[UT_DATA_HEADER], const ut_data *h, size_t payload_len)
{
    ut_data_form f = ut_data_form_of(h);
    ut_data_form_encode(out, &f, h->payload_crc, payload_len);
}

int ut_data_decode(ut_data *ret, const uint8_t *packet, size_t len, enum ut_check check)
{
    const bool parity = ut_wire_kind(packet, len) == UT_KIND_PARITY;
    if (ut_wire_peek(packet, len, parity ? UT_KIND_PARITY : UT_KIND_DATA, &ret->cid))
        return UT_ERR_MALFORMED;
    ret->payload = packet + UT_DATA_HEADER;
    ret->payload_len = len - UT_DATA_HEADER;
    ret->payload_crc = ut_crc32c(0, ret->payload, ret->payload_len);
    const ut_data_form f = ut_form_at(packet);
    if (ut_is_spoilt(packet, ut_crc32c_headed(f.word, ret->payload_crc, ret->payload_len), check))
        return UT_ERR_CHECKSUM;
    const uint64_t first = ut_swapped(f.word[UT_WORD_KIND]), third = ut_swapped(f.word[UT_WORD_OP]);
    ret->flags = (first >> (32 + UT_TIME_BITS) & UT_FLAGS) | (parity ? UT_FLAG_PARITY : 0);
    ret->time_us = first >> 32 & UT_TIME_MASK;
    ret->pn = (uint32_t)(ut_swapped(f.word[UT_WORD_NUMBER]) >> 32);
    ret->stage = 1 + (third >> STAGE_AT & 1);
    ret->coverage = third >> COVERAGE_AT & UT_COVERAGE_MAX;
    ret->view = (uint16_t)(third >> 8);
    ret->ultima = ultima_of((uint8_t)third, ut_swapped(f.word[UT_WORD_ULTIMA]));
    ret->op_seq = third >> OP_AT << 16 | ret->ultima.bucket;
    if (ret->stage == 1 && ret->coverage == 0)
        return UT_ERR_MALFORMED;
    return UT_OK;
}

void ut_piece_encode(uint8_t out[UT_PIECE_HEADER], const ut_piece *h, const void *bytes, size_t len)
{
    put_common(out, UT_KIND_PIECE, h->index, h->whole, h->cid, h->pn);
    put32(out + UT_CHECKSUM_AT, ut_crc32c(ut_crc32c(0, out, UT_PIECE_HEADER), bytes, len));
}

int ut_piece_decode(ut_piece *ret, const uint8_t *packet, size_t len, enum ut_check check)
{
    if (ut_wire_peek(packet, len, UT_KIND_PIECE, &ret->cid))
        return UT_ERR_MALFORMED;
    if (ut_is_spoilt(packet, checksum(packet, len), check))
        return UT_ERR_CHECKSUM;
    ret->index = packet[1];
    ret->whole = get16(packet + 2);
    ret->pn = get32(packet + 8);
    ret->bytes = packet + UT_PIECE_HEADER;
    ret->len = len - UT_PIECE_HEADER;
    return UT_OK;
}

void ut_grant_encode(uint8_t out[UT_GRANT_BYTES], const ut_grant *g)
{
    put_common(out, UT_KIND_GRANT, 0, 0, g->cid, (uint32_t)g->number);
    put64(out + UT_COMMON_HEADER, g->grant);
    put32(out + UT_CHECKSUM_AT, ut_crc32c(0, out, UT_GRANT_BYTES));
}

int ut_grant_decode(ut_grant *ret, const uint8_t *packet, size_t len, enum ut_check check)
{
    if (ut_wire_peek(packet, len, UT_KIND_GRANT, &ret->cid) || len != UT_GRANT_BYTES)
        return UT_ERR_MALFORMED;
    if (ut_is_spoilt(packet, checksum(packet, len), check))
        return UT_ERR_CHECKSUM;
    ret->number = get32(packet + 8);
    ret->grant = get64(packet + UT_COMMON_HEADER);
    return UT_OK;
}

void ut_path_encode(uint8_t out[UT_PATH_BYTES], const ut_path *p)
{
    put_common(out, UT_KIND_PATH, p->what, 0, p->cid, (uint32_t)p->number);
    put64(out + UT_COMMON_HEADER, p->token);
    put32(out + UT_CHECKSUM_AT, ut_crc32c(0, out, UT_PATH_BYTES));
}

int ut_path_decode(ut_path *ret, const uint8_t *packet, size_t len, enum ut_check check)
{
    if (ut_wire_peek(packet, len, UT_KIND_PATH, &ret->cid) || len != UT_PATH_BYTES)
        return UT_ERR_MALFORMED;
    if (ut_is_spoilt(packet, checksum(packet, len), check))
        return UT_ERR_CHECKSUM;
    ret->what = packet[1];
    ret->number = get32(packet + 8);
    ret->token = get64(packet + UT_COMMON_HEADER);
    return ret->what == UT_PATH_CHALLENGE || ret->what == UT_PATH_ANSWER ? UT_OK : UT_ERR_MALFORMED;
}

static void put_record(uint8_t *p, const ut_record *r)
{
    put64(p, r->op_seq);
    const bool sparse = r->collective == UT_ALLREDUCE_SPARSE, quant = r->collective == UT_ALLREDUCE_QUANT;
    put64(p + 8, r->collective == UT_BARRIER ? r->alike.note : r->count);
    p[16] = r->dtype;
    p[17] = r->collective == UT_BROADCAST ? (uint8_t)r->alike.root : r->redop;
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
    put16(p + 62, r->view);
    put16(p + 64, sparse ? r->alike.sparse.group : 0);
    p[66] = sparse ? (uint8_t)(r->alike.sparse.form | r->alike.sparse.down << 4) : quant ? r->alike.quant.forms : 0;
    p[67] = r->portion;
    put32(p + 68, sparse ? r->alike.sparse.hint : 0);
    put64(p + 72, r->epoch);
}

static ut_alike get_alike(const uint8_t *p, unsigned collective)
{
    switch (collective) {
    case UT_BROADCAST:
        return (ut_alike){.root = p[17]};
    case UT_BARRIER:
        return (ut_alike){.note = get64(p + 8)};
    case UT_ALLREDUCE_SPARSE:
        return (ut_alike){
            .sparse = {.hint = get32(p + 68), .group = get16(p + 64), .form = p[66] & 15, .down = p[66] >> 4}};
    case UT_ALLREDUCE_QUANT:
        return (ut_alike){.quant = {.forms = p[66]}};
    default:
        return (ut_alike){0};
    }
}

static void get_record(const uint8_t *p, ut_record *r)
{
    r->op_seq = get64(p);
    r->dtype = p[16];
    r->mode = p[18];
    r->flags = p[19];
    r->weight = get16(p + 20);
    r->field = p[22];
    r->agree = p[23] & 1;
    r->collective = p[23] >> 1 & 7;
    r->algorithm = p[23] >> 4;
    r->redop = r->collective == UT_BROADCAST ? 0 : p[17];
    r->count = r->collective == UT_BARRIER ? 0 : get64(p + 8);
    r->alike = get_alike(p, r->collective);
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
    r->view = get16(p + 62);
    r->portion = p[67];
    r->epoch = get64(p + 72);
}

bool ut_record_is_same(const ut_record *a, const ut_record *b)
{
    ut_record x = *a, y = *b;
    uint8_t one[UT_OP_RECORD], other[UT_OP_RECORD];
    x.time_left_us = y.time_left_us = 0;
    put_record(one, &x);
    put_record(other, &y);
    return memcmp(one, other, sizeof one) == 0;
}

size_t ut_feedback_encode(uint8_t *out, const ut_feedback *f)
{
    assert(f->records <= UT_OPS_MAX && f->ack_words <= UT_ACK_WORDS);
    put_common(out, UT_KIND_FEEDBACK, 0, (uint16_t)(f->records << 8 | f->incast), f->cid, (uint32_t)f->number);
    put64(out + 16, f->grant);
    put64(out + 24, f->received);
    put64(out + 32, f->rx_floor);
    put64(out + 40, f->tx_floor);
    put32(out + 48, f->highest_pn);
    put32(out + 52, f->ce_packets);
    put32(out + 56, f->kernel_drops);
    put32(out + 60, f->echo_us);
    put32(out + 64, f->hold_us);
    out[68] = 0;
    out[69] = f->ack_words;
    put16(out + 70, f->loss);
    put32(out + 72, f->state);
    put32(out + 76, f->state_seen);
    uint8_t *p = out + UT_FEEDBACK_HEADER;
    for (unsigned i = 0; i < f->records; i++, p += UT_OP_RECORD)
        put_record(p, &f->record[i]);
    for (unsigned i = 0; i < f->ack_words; i++, p += 8)
        put64(p, f->ack[i]);
    size_t len = (size_t)(p - out);
    assert(len <= UT_FEEDBACK_MAX);
    put32(out + UT_CHECKSUM_AT, ut_crc32c(0, out, len));
    return len;
}

int ut_feedback_decode(ut_feedback *ret, const uint8_t *packet, size_t len, enum ut_check check)
{
    if (ut_wire_peek(packet, len, UT_KIND_FEEDBACK, &ret->cid) || len > UT_FEEDBACK_MAX)
        return UT_ERR_MALFORMED;
    if (ut_is_spoilt(packet, checksum(packet, len), check))
        return UT_ERR_CHECKSUM;
    ret->records = packet[2];
    ret->incast = packet[3];
    ret->number = get32(packet + 8);
    ret->grant = get64(packet + 16);
    ret->received = get64(packet + 24);
    ret->rx_floor = get64(packet + 32);
    ret->tx_floor = get64(packet + 40);
    ret->highest_pn = get32(packet + 48);
    ret->ce_packets = get32(packet + 52);
    ret->kernel_drops = get32(packet + 56);
    ret->echo_us = get32(packet + 60);
    ret->hold_us = get32(packet + 64);
    ret->ack_words = packet[69];
    ret->loss = get16(packet + 70);
    ret->state = get32(packet + 72);
    ret->state_seen = get32(packet + 76);
    if (ret->records > UT_OPS_MAX || ret->ack_words > UT_ACK_WORDS ||
        len != UT_FEEDBACK_HEADER + (size_t)ret->records * UT_OP_RECORD + (size_t)ret->ack_words * 8)
        return UT_ERR_MALFORMED;
    const uint8_t *p = packet + UT_FEEDBACK_HEADER;
    for (unsigned i = 0; i < ret->records; i++, p += UT_OP_RECORD)
        get_record(p, &ret->record[i]);
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
