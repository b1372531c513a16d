/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths that do not carry full packets: how a packet is cut, and how it is put together. When is in test_mtu.c.
 */
#include "check.h"

#include "core/wire/pieces.h"
#include "kernels/kernels.h"

enum { FULL = 1472, LARGEST = UT_PACKET_MAX };

static uint8_t payload[LARGEST], flat[UT_BURST_BYTES], memory[UT_PIECES_ROOM * (LARGEST + 16)];

/* Without what a cipher adds, which is not there yet. */
static size_t flatten(const ut_burst *b, const ut_frame *f)
{
    const size_t each = ut_piece_packet(f);
    size_t len = 0;
    for (size_t at = 0; at < b->bytes; at += each) {
        const size_t some = UT_MIN2(each, b->bytes - at) - f->overhead;
        memcpy(flat + len, b->memory + at, some);
        len += some;
    }
    CHECK_EQ(len + (size_t)b->segments * f->overhead, b->bytes);
    return len;
}

static ut_data header(uint32_t pn, size_t offset)
{
    return (ut_data){.stage = 1,
                     .coverage = 1,
                     .cid = 0x01020304,
                     .pn = pn,
                     .op_seq = 70000,
                     .ultima = {.bucket = 70000 % 65536, .offset = (uint32_t)offset}};
}

/* One datagram of the burst. Returns the packet that it completes, or NULL. */
static const uint8_t *put(const ut_frame *f, uint32_t i, size_t bytes, ut_piece *p)
{
    uint32_t each = ut_piece_packet(f) - f->overhead;
    size_t at = (size_t)i * each, len = UT_MIN2((size_t)each, bytes - at);
    int error;
    CHECK(len + f->overhead <= UT_PATH_MIN);
    CHECK_EQ(ut_piece_decode(p, flat + at, len, UT_CHECK_SUM), UT_OK);
    const uint8_t *whole = ut_pieces_put(memory, f, p, &error);
    CHECK_EQ(error, UT_OK);
    return whole;
}

static void ut_pieces__come_together_in_any_order(void)
{
    static const uint32_t sizes[] = {1240, 1272, 1448, 1472, 2000, 2432, 2440, 4096, 8968, 9216};
    static ut_burst b;
    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)check_random();
    for (unsigned k = 0; k < 2 * sizeof sizes / sizeof sizes[0]; k++) {
        const ut_frame f = {sizes[k / 2], k % 2 ? 16 : 0};
        const uint32_t full = f.packet_bytes - f.overhead, packets = ut_pieces_burst(&f);
        const uint32_t each = ut_piece_bytes(&f) + UT_PIECE_HEADER;
        CHECK(packets >= 1 && packets * (full / ut_piece_bytes(&f)) <= UT_SEGMENTS_MAX);
        CHECK_LE(packets * (full / ut_piece_bytes(&f)) * ut_piece_packet(&f), UT_BURST_BYTES);
        /* As many full packets as fit, and a last one of any length. */
        size_t last = 1 + check_below(full - UT_DATA_HEADER);
        b.segments = b.bytes = 0;
        uint32_t owner[UT_SEGMENTS_MAX], left[UT_SEGMENTS_MAX];
        for (uint32_t n = 0; n < packets; n++) {
            ut_data h = header(100 + n, 0);
            uint32_t first = b.segments;
            size_t len = n + 1 < packets ? full - UT_DATA_HEADER : last;
            h.payload_crc = ut_crc32c(0, payload, len);
            left[n] = ut_pieces_append(&b, &h, payload, len, &f);
            for (uint32_t s = first; s < b.segments; s++)
                owner[s] = n;
        }
        size_t bytes = flatten(&b, &f);
        CHECK_EQ((bytes + each - 1) / each, b.segments);
        uint32_t order[UT_SEGMENTS_MAX];
        for (uint32_t s = 0; s < b.segments; s++) {
            uint32_t at = (uint32_t)check_below(s + 1);
            order[s] = order[at];
            order[at] = s;
        }
        memset(memory, 0, sizeof memory);
        for (uint32_t s = 0; s < b.segments; s++) {
            ut_piece p;
            const uint8_t *whole = put(&f, order[s], bytes, &p);
            CHECK_EQ(whole != NULL, --left[owner[order[s]]] == 0);
            if (!whole)
                continue;
            ut_data h;
            CHECK_EQ(ut_data_decode(&h, whole, p.whole, UT_CHECK_SUM), UT_OK);
            CHECK_EQ(h.pn, 100 + owner[order[s]]);
            CHECK_EQ(memcmp(whole + UT_DATA_HEADER, payload, p.whole - UT_DATA_HEADER), 0);
        }
    }
}

/* Half of a packet, then one that shares its place: the old half is forgotten, whichever comes then. */
static void ut_pieces__a_place_is_never_held(void)
{
    static ut_burst b;
    ut_data h = header(7, 0);
    h.payload_crc = ut_crc32c(0, payload, FULL - UT_DATA_HEADER);
    ut_piece p;
    const ut_frame f = {FULL, 0};
    memset(memory, 0, sizeof memory);
    b.segments = b.bytes = 0;
    ut_pieces_append(&b, &h, payload, FULL - UT_DATA_HEADER, &f);
    h.pn += UT_PIECES_ROOM;
    ut_pieces_append(&b, &h, payload, FULL - UT_DATA_HEADER, &f);
    size_t bytes = flatten(&b, &f);
    CHECK(!put(&f, 0, bytes, &p));
    CHECK(!put(&f, 2, bytes, &p));
    CHECK(!put(&f, 1, bytes, &p)); /* the other half of the first: its place was taken */
    CHECK(!put(&f, 3, bytes, &p));
    CHECK(put(&f, 2, bytes, &p) != NULL);
    CHECK(!put(&f, 2, bytes, &p)); /* a copy begins anew */
}

/* Numbers begin again when a path is opened anew, under another connection id. */
static void ut_pieces__another_path_begins_anew(void)
{
    static ut_burst b;
    ut_data h = header(7, 0);
    h.payload_crc = ut_crc32c(0, payload, FULL - UT_DATA_HEADER);
    ut_piece p;
    const ut_frame f = {FULL, 0};
    memset(memory, 0, sizeof memory);
    b.segments = b.bytes = 0;
    ut_pieces_append(&b, &h, payload, FULL - UT_DATA_HEADER, &f);
    h.cid++;
    ut_pieces_append(&b, &h, payload, FULL - UT_DATA_HEADER, &f);
    size_t bytes = flatten(&b, &f);
    CHECK(!put(&f, 0, bytes, &p));
    CHECK(!put(&f, 3, bytes, &p)); /* not with the first path's half */
    CHECK(put(&f, 2, bytes, &p) != NULL);
}

static void ut_pieces__what_cannot_fit_is_malformed(void)
{
    static const struct {
        ut_piece h;
        size_t len;
    } rows[] = {
        {{.index = 2, .whole = FULL}, 736}, {{.index = 0, .whole = FULL}, 735},
        {{.index = 1, .whole = FULL}, 737}, {{.index = 0, .whole = FULL + 8}, 736},
        {{.index = 0, .whole = 32}, 32},    {{.index = 255, .whole = FULL}, 1},
        {{.index = 1, .whole = 736}, 736},  {{.index = 1, .whole = 737}, 2},
        {{.index = 0, .whole = 0}, 1},      {{.index = 0, .whole = UINT16_MAX}, 736},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int error = UT_OK;
        ut_piece h = rows[i].h;
        h.bytes = payload;
        h.len = rows[i].len;
        CHECK(!ut_pieces_put(memory, &(ut_frame){FULL, 0}, &h, &error));
        CHECK_MSG(error == UT_ERR_MALFORMED, "row %zu", i);
    }
    int error = UT_OK;
    const ut_frame small = {UT_PATH_MIN, 0};
    CHECK_EQ(ut_pieces_memory(&small), 0);
    CHECK(!ut_pieces_put(NULL, &small, &(ut_piece){.whole = 1000, .bytes = payload, .len = 500}, &error));
    CHECK_EQ(error, UT_ERR_MALFORMED);
}

int main(void)
{
    ut_kernels_init(UT_ISA_BEST);
    RUN(ut_pieces__come_together_in_any_order);
    RUN(ut_pieces__a_place_is_never_held);
    RUN(ut_pieces__another_path_begins_anew);
    RUN(ut_pieces__what_cannot_fit_is_malformed);
    return check_end();
}
