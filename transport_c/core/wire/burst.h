/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine hands to its shell to be sent: datagrams of one length to one peer, gathered from where their bytes
 * lie. The files of this room append packets to a burst; only burst.c knows where their headers lie until they are
 * sent.
 */
#ifndef UT_BURST_H
#define UT_BURST_H

#include "core/wire/packets.h"
#include "core/wire/seal.h"

/* A socket address, opaque to the core: the bytes of a sockaddr_in or sockaddr_in6, or the simulator's host number. */
typedef struct ut_addr {
    uint8_t len; /* bytes in use, at most 28 */
    uint8_t bytes[31];
} ut_addr;

enum ut_port { UT_PORT_DATA = 0, UT_PORT_FEEDBACK = 1 };

/* One datagram burst: segments of segment_bytes each, the last one perhaps shorter, gathered from iov. */
typedef struct ut_iov {
    const void *base;
    size_t len;
} ut_iov;
typedef struct ut_burst {
    ut_addr to;
    uint32_t port; /* enum ut_port: which of our sockets sends it, and which of theirs it is for */
    uint32_t segment_bytes;
    uint32_t segments;
    uint32_t bytes; /* of all segments, with what a cipher adds */
    uint32_t iovs;
    ut_iov iov[2 * UT_SEGMENTS_MAX]; /* {header, payload} per segment; payload points into an arena */
    uint8_t headers[UT_SEGMENTS_MAX * UT_DATA_HEADER + UT_PIECE_HEADER]; /* of data; a feedback is built whole: */
    uint8_t packet[UT_FEEDBACK_MAX];
    /* The path's cipher, NULL for none, and a packet number near those of the burst (seal.h). */
    const ut_seal *seal;
    uint64_t number;
    uint8_t sealed[UT_BURST_BYTES]; /* where the burst is sealed; not touched without a cipher */
} ut_burst;

/* Empties |b| for datagrams to |to|. |number| is near the numbers of the packets that will be appended. |seal| is NULL
 * without a cipher. */
void ut_burst_begin(ut_burst *b, const ut_addr *to, unsigned port, const ut_seal *seal, uint64_t number);
/* Adds a data packet with header |h| and |len| bytes of payload. */
void ut_data_append(ut_burst *b, const ut_data *h, const uint8_t *payload, size_t len);
/* Adds a feedback; it is the burst's only segment. */
void ut_grant_append(ut_burst *b, const ut_grant *g);
void ut_feedback_append(ut_burst *b, const ut_feedback *f);
/* The last step before a burst leaves the engine: if its path has a cipher, it is sealed, and gathers from `sealed`. */
static inline void ut_burst_finish(ut_burst *b, ut_ns now)
{
    if (b->seal)
        ut_seal_burst(b, now);
}

#endif
