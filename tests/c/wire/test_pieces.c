/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths that do not carry full packets: when the size is blamed, how a packet is cut, and how it is put together.
 */
#include "check.h"

#include "core/path/mtu.h"
#include "core/wire/pieces.h"
#include "kernels/kernels.h"

enum { FULL = 1472, LARGEST = UT_PACKET_MAX };

/* ---- when the size is blamed ---- */

static uint32_t clock_us;

/* |count| full packets that are lost, |apart| microseconds from each other. Returns how often the way changed. */
static unsigned lose(ut_mtu *m, unsigned count, uint32_t apart, bool heard)
{
    unsigned changes = 0;
    for (unsigned i = 0; i < count; i++, clock_us += apart)
        changes += ut_mtu_fate(m, FULL, m->pieces, false, clock_us, heard ? clock_us + 1 : clock_us - 10000000);
    return changes;
}

static void ut_mtu__blames_the_size_after_a_while(void)
{
    static const uint32_t starts[] = {5, UINT32_MAX - 130000}; /* the second time across the wrap */
    for (unsigned i = 0; i < 2; i++) {
        clock_us = starts[i];
        ut_mtu m = {0};
        CHECK(ut_mtu_whole(&m, FULL, clock_us));
        CHECK_EQ(lose(&m, 1000, 50, true), 0);                          /* a burst of loss, 50 ms long */
        CHECK(!ut_mtu_fate(&m, FULL, false, true, clock_us, clock_us)); /* one came: it was only that */
        CHECK_EQ(lose(&m, 1000, 50, true), 0);
        CHECK_EQ(lose(&m, 1100, 50, true), 1);
        CHECK(m.pieces);
        CHECK(!ut_mtu_whole(&m, FULL, clock_us));
        CHECK(ut_mtu_whole(&m, UT_PATH_MIN, clock_us));
    }
}

static void ut_mtu__needs_a_peer_that_speaks(void)
{
    ut_mtu m = {0};
    CHECK_EQ(lose(&m, 1000, 10000, false), 0);
    CHECK(!m.pieces);
    CHECK_EQ(lose(&m, UT_MTU_LOST_MIN, 10000, true), 1);
}

static void ut_mtu__small_packets_prove_nothing(void)
{
    ut_mtu m = {0};
    for (unsigned i = 0; i < 50; i++, clock_us += 10000) {
        if (ut_mtu_fate(&m, FULL, false, false, clock_us, clock_us))
            break;
        CHECK(!ut_mtu_fate(&m, UT_PATH_MIN, false, true, clock_us, clock_us));
        CHECK(!ut_mtu_fate(&m, UT_PATH_MIN, false, false, clock_us, clock_us));
    }
    CHECK(m.pieces);
}

static void ut_mtu__looks_whether_the_path_has_grown(void)
{
    ut_mtu m = {0};
    lose(&m, 20, 10000, true);
    CHECK(m.pieces);
    unsigned whole = 0;
    for (uint32_t t = 0; t < 35 * 1000000; t += 1000, clock_us += 1000) {
        if (ut_mtu_whole(&m, FULL, clock_us)) {
            whole++;
            CHECK(!ut_mtu_fate(&m, FULL, false, false, clock_us, clock_us)); /* it has not */
        }
        CHECK(!ut_mtu_fate(&m, FULL, true, true, clock_us, clock_us));
    }
    CHECK_EQ(whole, 3);
    CHECK(m.pieces);
    CHECK(ut_mtu_fate(&m, FULL, false, true, clock_us, clock_us));
    CHECK(!m.pieces && ut_mtu_whole(&m, FULL, clock_us));
}

static void ut_mtu__takes_turns_when_nothing_comes(void)
{
    ut_mtu m = {0};
    CHECK_GE(lose(&m, 200, 10000, true), 10);
    CHECK(ut_mtu_fate(&m, FULL, false, true, clock_us, clock_us) || !m.pieces);
}

/* ---- cutting and putting together ---- */

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
    ut_kernels_init(UT_ISA_AVX512);
    RUN(ut_mtu__blames_the_size_after_a_while);
    RUN(ut_mtu__needs_a_peer_that_speaks);
    RUN(ut_mtu__small_packets_prove_nothing);
    RUN(ut_mtu__looks_whether_the_path_has_grown);
    RUN(ut_mtu__takes_turns_when_nothing_comes);
    RUN(ut_pieces__come_together_in_any_order);
    RUN(ut_pieces__a_place_is_never_held);
    RUN(ut_pieces__another_path_begins_anew);
    RUN(ut_pieces__what_cannot_fit_is_malformed);
    return check_end();
}
