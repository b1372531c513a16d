/* SPDX-License-Identifier: Apache-2.0
 *
 * One datagram, whatever it claims to be: what is decoded is in its ranges, and is the same after it was encoded again.
 */
#include "fuzz.h"

#include "core/wire/packets.h"
#include "kernels/kernels.h"

static void data(const uint8_t *packet, size_t len, enum ut_check check)
{
    ut_data h, again;
    if (ut_data_decode(&h, packet, len, check))
        return;
    MUST(h.payload_len >= 1 && h.payload + h.payload_len == packet + len);
    MUST(h.stage == 1 || h.stage == 2);
    uint8_t *out = malloc(len);
    ut_data_encode(out, &h, h.payload_len);
    memcpy(out + len - h.payload_len, h.payload, h.payload_len);
    MUST(ut_data_decode(&again, out, len, UT_CHECK_NOTHING) == UT_OK);
    MUST(again.cid == h.cid && again.pn == h.pn && again.op_seq == h.op_seq && again.coverage == h.coverage);
    MUST(again.ultima.offset == h.ultima.offset && again.ultima.last == h.ultima.last && again.view == h.view);
    MUST(again.ultima.timeout == h.ultima.timeout && (again.flags & UT_FLAG_PARITY) == (h.flags & UT_FLAG_PARITY));
    free(out);
}

static void feedback(const uint8_t *packet, size_t len, enum ut_check check)
{
    static ut_feedback f, again;
    uint8_t out[UT_FEEDBACK_MAX];
    memset(&f, 0, sizeof f);
    memset(&again, 0, sizeof again);
    if (ut_feedback_decode(&f, packet, len, check))
        return;
    MUST(f.records <= UT_OPS_MAX && f.ack_words <= UT_ACK_WORDS);
    size_t n = ut_feedback_encode(out, &f);
    MUST(n == len && ut_feedback_decode(&again, out, n, UT_CHECK_SUM) == UT_OK);
    MUST(again.grant == f.grant && again.highest_pn == f.highest_pn && again.records == f.records);
    MUST(memcmp(again.ack, f.ack, sizeof f.ack) == 0);
}

static void piece(const uint8_t *packet, size_t len, enum ut_check check)
{
    ut_piece p;
    if (ut_piece_decode(&p, packet, len, check))
        return;
    MUST(p.len >= 1 && p.bytes + p.len == packet + len); /* whether it is of a packet, ut_pieces_put says */
}

static void grant(const uint8_t *packet, size_t len, enum ut_check check)
{
    ut_grant g, again;
    uint8_t out[UT_GRANT_BYTES];
    if (ut_grant_decode(&g, packet, len, check))
        return;
    ut_grant_encode(out, &g);
    MUST(ut_grant_decode(&again, out, sizeof out, UT_CHECK_SUM) == UT_OK && again.grant == g.grant);
}

static void path(const uint8_t *packet, size_t len, enum ut_check check)
{
    ut_path p, again;
    uint8_t out[UT_PATH_BYTES];
    if (ut_path_decode(&p, packet, len, check))
        return;
    ut_path_encode(out, &p);
    MUST(ut_path_decode(&again, out, sizeof out, UT_CHECK_SUM) == UT_OK && again.token == p.token);
    MUST(again.what == p.what && again.cid == p.cid && again.number == p.number);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    uint8_t *packet = copy_of(bytes, size);
    for (unsigned check = UT_CHECK_SUM; check <= UT_CHECK_NOTHING; check++) {
        uint32_t cid;
        for (unsigned kind = 0; kind < 7; kind++)
            (void)ut_wire_peek(packet, size, kind, &cid);
        data(packet, size, (enum ut_check)check);
        feedback(packet, size, (enum ut_check)check);
        piece(packet, size, (enum ut_check)check);
        grant(packet, size, (enum ut_check)check);
        path(packet, size, (enum ut_check)check);
    }
    free(packet);
    return 0;
}
