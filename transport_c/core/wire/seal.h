/* SPDX-License-Identifier: Apache-2.0
 *
 * The one door for encryption. A job has a cipher or none, the same on all its hosts, and each path has keys of its own
 * for each direction. Every burst of a job with a cipher passes ut_seal_burst before it leaves the engine, and every
 * datagram that comes for such a job passes ut_seal_open before anything else in it is believed. No other file knows
 * how many bytes a cipher adds.
 *
 * A sealed datagram differs from the packet of PROTOCOL.md in three ways. What follows the header is encrypted in
 * place. A tag of `overhead` bytes follows. The four bytes of the checksum belong to the cipher (key epoch, then
 * zeros). The header stays readable, and the tag covers it. Pieces are sealed one by one, and the packet that they
 * carry is not sealed again.
 *
 * On receipt the order is: connection id, what the cipher knows of the epoch, whether the number is new (without
 * noting it), open, note the number, believe. A datagram that fails is counted, and is nothing else to anybody.
 *
 * Without a cipher the cost is one comparison with NULL for each burst that goes and each datagram that comes.
 */
#ifndef UT_SEAL_H
#define UT_SEAL_H

#include "core/base/ut.h"

enum { UT_SEAL_OVERHEAD_MAX = 64 };

/* One datagram as a cipher sees it. `kind`, `index` and `number` together never come twice on one path. */
typedef struct ut_sealed {
    uint8_t *bytes;      /* header, body, room for the tag; written in place */
    uint32_t header;     /* bytes that stay readable, and are authenticated */
    uint32_t body;       /* bytes that are encrypted */
    uint8_t *epoch;      /* within the header: four bytes that are the cipher's own, to be written before the tag */
    uint64_t number;     /* all 64 bits of the packet number, or of the number of a feedback or grant */
    uint8_t kind, index; /* kind of packet; index of a piece, else 0 */
} ut_sealed;

/* A cipher. |keys| is what the shell gave for the path and the direction; the core never looks at it. */
typedef struct ut_cipher {
    const char *name;
    uint32_t overhead; /* bytes of the tag: a multiple of 8, at most UT_SEAL_OVERHEAD_MAX */
    /* Encrypts |n| packets of one path and writes their epochs and tags. It cannot fail. |now| is the engine's clock,
     * by which keys grow old. */
    void (*seal)(void *keys, const ut_sealed *packets, uint32_t n, ut_ns now);
    /* Decrypts one packet if its tag is right, and returns true. If the tag is wrong it returns false; `bytes` are then
     * unspecified, and the caller ignores them. */
    bool (*open)(void *keys, const ut_sealed *packet, ut_ns now);
} ut_cipher;

/* How many bytes |cipher| adds to each datagram; NULL adds none. */
static inline uint32_t ut_seal_overhead(const ut_cipher *cipher)
{
    return cipher ? cipher->overhead : 0;
}

/* The cipher and the keys of one path. */
typedef struct ut_seal {
    const ut_cipher *cipher;
    void *keys_out, *keys_in; /* NULL: not known yet; then nothing is sent, and nothing that comes is believed */
} ut_seal;

typedef struct ut_burst ut_burst;
/* Seals all segments of a burst whose path has a cipher and keys, in place. */
void ut_seal_burst(ut_burst *b, ut_ns now);
/* Opens in place a datagram of |len| bytes that ut_wire_peek has let through. |expected| is a number near that of the
 * datagram. Returns the bytes of the packet without its tag, and 0 if the packet is not from this path's peer. */
size_t ut_seal_open(const ut_seal *s, uint8_t *packet, size_t len, uint64_t expected, ut_ns now);

#endif
