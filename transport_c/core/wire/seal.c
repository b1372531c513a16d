/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire/seal.h"

#include "core/wire/burst.h"

/* Bytes of the header that stays readable. */
static uint32_t header_of(const uint8_t *packet, size_t len)
{
    return ut_wire_is_data(ut_wire_kind(packet, len)) ? UT_DATA_HEADER : UT_COMMON_HEADER;
}

/* What the cipher is told of a packet of |len| bytes without its tag, from the header alone. */
static ut_sealed sealed_of(uint8_t *packet, size_t len, uint64_t expected)
{
    unsigned kind = ut_wire_kind(packet, len);
    uint32_t header = header_of(packet, len);
    return (ut_sealed){.bytes = packet,
                       .header = header,
                       .body = (uint32_t)len - header,
                       .epoch = packet + UT_CHECKSUM_AT,
                       .number = ut_expand32(expected, ut_wire_number(packet)),
                       .kind = (uint8_t)(ut_wire_is_data(kind) ? UT_KIND_DATA : kind), /* of one count of numbers */
                       .index = kind == UT_KIND_PIECE ? packet[1] : 0};
}

void ut_seal_burst(ut_burst *b, ut_ns now)
{
    ut_sealed packets[UT_SEGMENTS_MAX];
    const ut_cipher *cipher = b->seal->cipher;
    uint32_t done = 0;
    assert(b->seal->keys_out && b->bytes <= UT_BURST_BYTES);
    for (uint32_t i = 0; i < b->segments; i++) {
        uint32_t bytes = UT_MIN2(b->segment_bytes, b->bytes - done);
        uint8_t *packet = b->memory + done;
        assert(bytes > cipher->overhead + UT_COMMON_HEADER);
        memset(packet + UT_CHECKSUM_AT, 0, UT_COMMON_HEADER - UT_CHECKSUM_AT);
        packets[i] = sealed_of(packet, bytes - cipher->overhead, b->number);
        done += bytes;
    }
    assert(done == b->bytes);
    cipher->seal(b->seal->keys_out, packets, b->segments, now);
}

size_t ut_seal_open(const ut_seal *s, uint8_t *packet, size_t len, uint64_t expected, ut_ns now)
{
    assert(s->cipher);
    uint32_t overhead = s->cipher->overhead;
    if (!s->keys_in || len <= (size_t)header_of(packet, len) + overhead) /* each kind has something to seal */
        return 0;
    ut_sealed of = sealed_of(packet, len - overhead, expected);
    return s->cipher->open(s->keys_in, &of, now) ? len - overhead : 0;
}
