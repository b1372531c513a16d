/* SPDX-License-Identifier: Apache-2.0
 *
 * A full packet in pieces, for a path that carries no full packets. Packet numbers know nothing of pieces: number,
 * acknowledgement, credit and loss are those of the whole packet. What the receiver puts together is, byte for byte,
 * the packet that would have come whole, its checksum included. Each piece has a checksum of its own, so that a spoilt
 * piece is told from the others.
 */
#ifndef UT_PIECES_H
#define UT_PIECES_H

#include "core/wire/burst.h"

enum { UT_PIECES_ROOM = 64 /* packets that a path puts together at once */ };

/* The bytes of a job's full packets, and how many of them a cipher takes of each datagram. */
typedef struct ut_frame {
    uint32_t packet_bytes, overhead;
} ut_frame;

/* How many bytes of a packet one piece holds (the last piece may hold fewer). It divides a full packet without the
 * cipher's bytes, so that all pieces of a burst have one length. */
uint32_t ut_piece_bytes(const ut_frame *f);
/* The bytes of the datagram of a full piece. */
uint32_t ut_piece_packet(const ut_frame *f);

/* How many packets fit one burst in pieces. */
uint32_t ut_pieces_burst(const ut_frame *f);
/* Adds the packet with header |h| and |payload| to the burst, as pieces. Returns the number of pieces. */
uint32_t ut_pieces_append(ut_burst *b, const ut_data *h, const uint8_t *payload, size_t len, const ut_frame *f);

/* The bytes of memory for a path's unfinished packets; 0 if the job's packets never go in pieces. */
size_t ut_pieces_memory(const ut_frame *f);
/* Takes one decoded piece of a packet that has not come yet. If this was the last missing piece, it returns the whole
 * packet: |h->whole| bytes without those of a cipher, which are good until the next call. Otherwise it returns NULL.
 * |ret_error| is UT_ERR_MALFORMED if the piece does not fit a packet of |f|, and UT_ERR_EXISTS if it came before. */
const uint8_t *ut_pieces_put(uint8_t *memory, const ut_frame *f, const ut_piece *h, int *ret_error);

#endif
