/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine hands to its shell to be sent: datagrams of one length to one peer, one behind the other in the
 * burst's own memory, as they go out. So a burst is one piece to the kernel, is sealed where it lies, and depends on
 * nobody else's memory. The payload is copied for that, in the pass that takes its checksum. To hand the kernel 88
 * pieces of a full burst instead costs more than the copy (docs/log/2026-11.md).
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

static inline bool ut_addr_is(const ut_addr *a, const ut_addr *b)
{
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

enum ut_port { UT_PORT_DATA = 0, UT_PORT_FEEDBACK = 1 };

/* One datagram burst: segments of segment_bytes each, the last one perhaps shorter. */
typedef struct ut_burst {
    ut_addr to;
    uint32_t port; /* enum ut_port: which of our sockets sends it, and which of theirs it is for */
    /* Of feedback and grants: the data port of the same host, which takes them as well. The shell may send them there
     * behind data, which then wakes that host once and not twice. */
    ut_addr beside;
    uint32_t segment_bytes;
    uint32_t segments;
    uint32_t bytes; /* of all segments, with what a cipher adds */
    /* The path's cipher, NULL for none, and a packet number near those of the burst (seal.h). */
    const ut_seal *seal;
    uint64_t number;
    uint8_t memory[UT_BURST_BYTES]; /* the segments; behind each of them is room for what a cipher adds */
} ut_burst;

/* Empties |b| for datagrams to |to|. |number| is near the numbers of the packets that will be appended. |seal| is NULL
 * without a cipher. */
void ut_burst_begin(ut_burst *b, const ut_addr *to, unsigned port, const ut_seal *seal, uint64_t number);
/* How many bytes the burst's cipher adds to each of its segments. */
static inline uint32_t ut_burst_overhead(const ut_burst *b)
{
    return ut_seal_overhead(b->seal ? b->seal->cipher : NULL);
}
/* Adds a data packet with a copy of |len| bytes of payload, and makes |form| the header of the one that follows it in
 * its transfer. |crc|: the payload's CRC32C, NULL if it is not known. */
void ut_data_append(ut_burst *b, ut_data_form *form, const uint8_t *payload, size_t len, const uint32_t *crc);
/* Adds a feedback; it is the burst's only segment. */
void ut_grant_append(ut_burst *b, const ut_grant *g);
void ut_feedback_append(ut_burst *b, const ut_feedback *f);
void ut_path_append(ut_burst *b, const ut_path *p);
/* The last step before a burst leaves the engine: if its path has a cipher, it is sealed. */
static inline void ut_burst_finish(ut_burst *b, ut_ns now)
{
    if (b->seal)
        ut_seal_burst(b, now);
}

#endif
