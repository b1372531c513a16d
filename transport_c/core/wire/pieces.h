/* SPDX-License-Identifier: Apache-2.0
 *
 * A full packet in pieces, for a path that carries no full ones. Below the packet numbers: number, acknowledgement,
 * credit and loss are the whole packet's, and what the receiver puts together is byte for byte what would have come
 * whole, its checksum included. Each piece has a checksum of its own, so that a spoilt one is told from the rest.
 */
#ifndef UT_PIECES_H
#define UT_PIECES_H

#include "core/path/mtu.h"
#include "core/wire/burst.h"
#include "core/wire/packets.h"

enum { UT_PIECES_ROOM = 64 /* packets that a path puts together at once */ };

/* Bytes of a packet in one piece (the last may have less), for a job whose full packets have |packet_bytes|: a divisor
 * of those, so that the pieces of a burst are alike. */
uint32_t ut_piece_bytes(uint32_t packet_bytes);

/* Packets that fit one burst in pieces. */
uint32_t ut_pieces_burst(uint32_t packet_bytes);
/* Adds the packet of header |h| and |payload| to the burst, as pieces of |each| bytes. Returns their number. */
uint32_t ut_pieces_append(ut_burst *b, const ut_data *h, const uint8_t *payload, size_t len, uint32_t each);

/* Memory for a path's unfinished packets; 0 if the job's packets never go in pieces. */
size_t ut_pieces_memory(uint32_t packet_bytes);
/* Takes one piece (|h| and the |len| bytes that follow its header) of a packet that has not come yet. Returns the whole
 * packet, |h->whole| bytes, good until the next call, when this was the last piece that was missing; else NULL.
 * UT_ERR_MALFORMED in |ret_error| if the piece does not fit a packet of at most |packet_bytes|. */
const uint8_t *ut_pieces_put(uint8_t *memory, uint32_t packet_bytes, const ut_piece *h, const uint8_t *bytes,
                             size_t len, int *ret_error);

#endif
