/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire/pieces.h"

/* An unfinished packet. Another packet number in the same place begins anew: an old one that lost a piece, or a number
 * that was made up, must not keep the place. So does another path: when one is opened anew its numbers begin again. */
typedef struct place {
    uint32_t cid;
    uint32_t pn;    /* low 32 bits */
    uint16_t whole; /* bytes of the packet; 0: free */
    uint8_t came;   /* bit per piece */
    uint8_t reserved;
    uint8_t bytes[];
} place;

static uint32_t whole_of(const ut_frame *f)
{
    assert(f->packet_bytes > f->overhead);
    return f->packet_bytes - f->overhead;
}

uint32_t ut_piece_bytes(const ut_frame *f)
{
    uint32_t pieces = 2, whole = whole_of(f);
    while (whole / pieces + UT_PIECE_HEADER + f->overhead > UT_PATH_MIN)
        pieces *= 2;
    assert(whole % pieces == 0 && pieces <= UT_PIECES_MAX);
    return whole / pieces;
}

uint32_t ut_piece_packet(const ut_frame *f)
{
    return UT_PIECE_HEADER + ut_piece_bytes(f) + f->overhead;
}

uint32_t ut_pieces_burst(const ut_frame *f)
{
    uint32_t pieces = whole_of(f) / ut_piece_bytes(f);
    return UT_MIN2(UT_SEGMENTS_MAX / pieces, UT_BURST_BYTES / (pieces * ut_piece_packet(f)));
}

static size_t place_bytes(const ut_frame *f)
{
    return (sizeof(place) + whole_of(f) + 7) & ~(size_t)7;
}

size_t ut_pieces_memory(const ut_frame *f)
{
    return f->packet_bytes > UT_PATH_MIN ? UT_PIECES_ROOM * place_bytes(f) : 0;
}

uint32_t ut_pieces_append(ut_burst *b, const ut_data *h, const uint8_t *payload, size_t len, const ut_frame *f)
{
    assert(b->segments < UT_SEGMENTS_MAX && UT_DATA_HEADER + len <= whole_of(f));
    const uint32_t each = ut_piece_bytes(f);
    const size_t whole = UT_DATA_HEADER + len;
    ut_piece p = {.whole = (uint16_t)whole, .cid = h->cid, .pn = h->pn};
    uint32_t pieces = 0;
    for (size_t at = 0; at < whole; at += each, pieces++) {
        uint8_t *piece = b->memory + b->bytes, *bytes = piece + UT_PIECE_HEADER;
        const size_t some = UT_MIN2(whole - at, (size_t)each);
        if (at == 0) {
            ut_data_encode(bytes, h, len);
            memcpy(bytes + UT_DATA_HEADER, payload, some - UT_DATA_HEADER);
        } else {
            memcpy(bytes, payload + at - UT_DATA_HEADER, some);
        }
        p.index = (uint8_t)pieces;
        ut_piece_encode(piece, &p, bytes, some);
        b->segments++;
        b->bytes += (uint32_t)(UT_PIECE_HEADER + some) + f->overhead;
    }
    assert(pieces >= 1 && pieces <= UT_PIECES_MAX && b->bytes <= UT_BURST_BYTES);
    return pieces;
}

const uint8_t *ut_pieces_put(uint8_t *memory, const ut_frame *f, const ut_piece *h, int *ret_error)
{
    *ret_error = UT_ERR_MALFORMED;
    if (f->packet_bytes <= UT_PATH_MIN || h->whole <= UT_DATA_HEADER || h->whole > whole_of(f))
        return NULL;
    uint32_t each = ut_piece_bytes(f), pieces = (h->whole + each - 1) / each, at = h->index * each;
    if (h->index >= pieces || h->len != UT_MIN2(each, h->whole - at))
        return NULL;
    *ret_error = UT_OK;
    place *p = (place *)(void *)(memory + h->pn % UT_PIECES_ROOM * place_bytes(f));
    if (p->whole != h->whole || p->pn != h->pn || p->cid != h->cid) {
        p->cid = h->cid;
        p->pn = h->pn;
        p->whole = h->whole;
        p->came = 0;
    }
    if (p->came >> h->index & 1) {
        *ret_error = UT_ERR_EXISTS;
        return NULL;
    }
    memcpy(p->bytes + at, h->bytes, h->len);
    p->came |= (uint8_t)(1u << h->index);
    if (p->came != (1u << pieces) - 1)
        return NULL;
    p->whole = 0;
    return p->bytes;
}
