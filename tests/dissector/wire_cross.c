/* SPDX-License-Identifier: Apache-2.0
 *
 * The C side of the wire as a filter, so that the dissector can be held against it packet by packet. Reads one datagram
 * in hex a line; prints its fields as the C decoder saw them, in the order of PROTOCOL.md, and what the C encoder makes
 * of them again. The checksum is computed bit by bit here: core/wire/packets.c is the only file under test.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/wire/packets.h"
#include "kernels/kernels.h"

uint32_t ut_crc32c(uint32_t crc, const void *data, size_t len)
{
    crc = ~crc;
    for (size_t i = 0; i < len; i++) {
        crc ^= ((const uint8_t *)data)[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* A with as many zeros behind it as B is long, and B: the sums without their inversions. */
static uint32_t join(uint32_t a, uint32_t b, size_t len)
{
    static const uint8_t zero;
    for (size_t i = 0; i < len; i++)
        a = ~ut_crc32c(~a, &zero, 1);
    return a ^ b;
}

uint32_t ut_crc32c_headed(const uint64_t header[4], uint32_t crc, size_t len)
{
    return join(ut_crc32c(0, header, 32), crc, len);
}

#define CHECK_PLACE(holds) ((holds) ? (void)0 : abort())

static void print_hex(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        printf("%02x", bytes[i]);
    printf("\n");
}

static void show_data(const ut_data *h, const uint8_t *packet, size_t len)
{
    printf("%s %u %u %u %u %" PRIu64 " %u %u %u %u %u %u %u %u ", h->flags & UT_FLAG_PARITY ? "parity" : "data",
           h->flags & UT_FLAGS, h->time_us, h->cid, h->pn, h->op_seq, h->stage - 1u, h->coverage, h->view,
           h->ultima.bucket, h->ultima.offset, h->ultima.timeout, h->ultima.last, h->ultima.incast);
    uint8_t again[UT_PACKET_MAX];
    CHECK_PLACE(h->payload == packet + UT_DATA_HEADER && h->payload_len == len - UT_DATA_HEADER);
    memcpy(again + UT_DATA_HEADER, h->payload, h->payload_len);
    ut_data_encode(again, h, h->payload_len);
    print_hex(again, len);
}

static void show_feedback(const ut_feedback *f)
{
    printf("feedback %u %u %u %" PRIu64, f->records, f->incast, f->cid, f->number);
    printf(" %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, f->grant, f->received, f->rx_floor, f->tx_floor);
    printf(" %u %u %u %u %u %u %u", f->highest_pn, f->ce_packets, f->kernel_drops, f->echo_us, f->hold_us, f->ack_words,
           f->loss);
    printf(" %u %u", f->state, f->state_seen);
    for (unsigned i = 0; i < f->records; i++) {
        const ut_record *r = &f->record[i];
        unsigned reduction = r->collective == UT_BROADCAST ? r->alike.root : r->redop;
        uint64_t count = r->collective == UT_BARRIER ? r->alike.note : r->count;
        ut_alike sparse = r->collective == UT_ALLREDUCE_SPARSE ? r->alike : (ut_alike){0};
        unsigned form =
            r->collective == UT_ALLREDUCE_QUANT ? r->alike.quant.forms : sparse.sparse.form | sparse.sparse.down << 4;
        printf(" %" PRIu64 " %" PRIu64 " %u %u %u %u %u %u %u %u", r->op_seq, count, r->dtype, reduction, r->mode,
               r->flags, r->weight, r->algorithm, r->collective, r->agree);
        printf(" %u %u", r->time_left_us, r->digest);
        printf(" %" PRIu64 " %" PRIu64, r->full_mask, r->any_mask);
        printf(" %u %u %u %u %u %u %u %u", r->fresh, r->stale, r->oldest_step, r->initiator, r->policy, r->submitted,
               r->attached, r->view);
        printf(" %u %u %u %u %" PRIu64, sparse.sparse.group, form, sparse.sparse.hint, r->portion, r->epoch);
    }
    for (unsigned i = 0; i < f->ack_words; i++)
        printf(" %" PRIu64, f->ack[i]);
    uint8_t again[UT_FEEDBACK_MAX];
    size_t len = ut_feedback_encode(again, f);
    printf(" ");
    print_hex(again, len);
}

static void show_piece(const ut_piece *p, const uint8_t *packet, size_t len)
{
    printf("piece %u %u %u %u ", p->index, p->whole, p->cid, p->pn);
    uint8_t again[UT_PACKET_MAX];
    const uint8_t *bytes = packet + UT_PIECE_HEADER;
    memcpy(again + UT_PIECE_HEADER, bytes, len - UT_PIECE_HEADER);
    ut_piece_encode(again, p, bytes, len - UT_PIECE_HEADER);
    print_hex(again, len);
}

static void show_grant(const ut_grant *g)
{
    printf("grant %u %" PRIu64 " %" PRIu64 " ", g->cid, g->number, g->grant);
    uint8_t again[UT_GRANT_BYTES];
    ut_grant_encode(again, g);
    print_hex(again, sizeof again);
}

static void show_path(const ut_path *p)
{
    printf("path %u %u %" PRIu64 " %" PRIu64 " ", p->what, p->cid, p->number, p->token);
    uint8_t again[UT_PATH_BYTES];
    ut_path_encode(again, p);
    print_hex(again, sizeof again);
}

int main(void)
{
    static char line[2 * UT_PACKET_MAX + 2];
    while (fgets(line, sizeof line, stdin)) {
        uint8_t packet[UT_PACKET_MAX];
        size_t len = 0;
        for (unsigned byte; len < sizeof packet && sscanf(line + 2 * len, "%2x", &byte) == 1; len++)
            packet[len] = (uint8_t)byte;
        ut_data data;
        ut_feedback feedback;
        ut_piece piece;
        ut_grant grant;
        ut_path path;
        int as_data = ut_data_decode(&data, packet, len, UT_CHECK_SUM);
        int as_feedback = ut_feedback_decode(&feedback, packet, len, UT_CHECK_SUM);
        int as_piece = ut_piece_decode(&piece, packet, len, UT_CHECK_SUM);
        int as_grant = ut_grant_decode(&grant, packet, len, UT_CHECK_SUM);
        int as_path = ut_path_decode(&path, packet, len, UT_CHECK_SUM);
        if (as_data == UT_OK)
            show_data(&data, packet, len);
        else if (as_feedback == UT_OK)
            show_feedback(&feedback);
        else if (as_piece == UT_OK)
            show_piece(&piece, packet, len);
        else if (as_grant == UT_OK)
            show_grant(&grant);
        else if (as_path == UT_OK)
            show_path(&path);
        else if (as_data == UT_ERR_CHECKSUM || as_feedback == UT_ERR_CHECKSUM || as_piece == UT_ERR_CHECKSUM ||
                 as_grant == UT_ERR_CHECKSUM || as_path == UT_ERR_CHECKSUM)
            printf("refused checksum\n");
        else
            printf("refused malformed\n");
    }
    return 0;
}
