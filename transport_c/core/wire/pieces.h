/* SPDX-License-Identifier: Apache-2.0
 *
 * A full packet in pieces, for a path that carries no full ones. Below the packet numbers: number, acknowledgement,
 * credit and loss are the whole packet's, and what the receiver puts together is byte for byte what would have come
 * whole, its checksum included. Each piece has a checksum of its own, so that a spoilt one is told from the rest.
 */
#ifndef UT_PIECES_H
#define UT_PIECES_H

#include "core/wire/burst.h"

enum { UT_PIECES_ROOM = 64 /* packets that a path puts together at once */ };

/* What a job's full packets have, and what a cipher takes of each datagram. */
typedef struct ut_frame {
    uint32_t packet_bytes, overhead;
} ut_frame;

/* Bytes of a packet in one piece (the last may have less): a divisor of those of a full packet without the cipher's, so
 * that the pieces of a burst are alike. */
uint32_t ut_piece_bytes(const ut_frame *f);
/* Bytes of a full piece's datagram. */
uint32_t ut_piece_packet(const ut_frame *f);

/* Packets that fit one burst in pieces. */
uint32_t ut_pieces_burst(const ut_frame *f);
/* Adds the packet of header |h| and |payload| to the burst, as pieces. Returns their number. */
uint32_t ut_pieces_append(ut_burst *b, const ut_data *h, const uint8_t *payload, size_t len, const ut_frame *f);

/* Memory for a path's unfinished packets; 0 if the job's packets never go in pieces. */
size_t ut_pieces_memory(const ut_frame *f);
/* Takes one piece, as it was decoded, of a packet that has not come yet. Returns the whole packet, |h->whole| bytes
 * without what a cipher adds, good until the next call, when this was the last piece that was missing; else NULL.
 * UT_ERR_MALFORMED in |ret_error| if the piece does not fit a packet of |f|. */
const uint8_t *ut_pieces_put(uint8_t *memory, const ut_frame *f, const ut_piece *h, int *ret_error);

#endif
