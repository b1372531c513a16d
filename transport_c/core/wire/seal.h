/* SPDX-License-Identifier: Apache-2.0
 *
 * The one door for encryption. A job has a cipher or none, on all its hosts the same; each path has keys of its own for
 * each direction. Whatever leaves the engine passes ut_seal_burst, and whatever comes in for a path of such a job
 * passes ut_seal_open before anything else of it is believed. No other file knows how many bytes a cipher adds.
 *
 * A sealed datagram is PROTOCOL.md's packet with three differences: what follows its header is encrypted in place; a
 * tag of `overhead` bytes follows; and the four bytes of the checksum belong to the cipher (key epoch, then zeros). The
 * header stays readable, and the tag covers it. Pieces are sealed one by one, and what they carry is not sealed again.
 *
 * Without a cipher the cost is one comparison with NULL for each burst that goes and each datagram that comes.
 */
#ifndef UT_SEAL_H
#define UT_SEAL_H

#include "core/base/ut.h"

enum { UT_SEAL_OVERHEAD_MAX = 64 };

/* One datagram at the cipher. `kind`, `index` and `number` together never come twice on one path. */
typedef struct ut_sealed {
    uint8_t *bytes;      /* header, body, room for the tag; written in place */
    uint32_t header;     /* bytes that stay readable, and are authenticated */
    uint32_t body;       /* bytes that are encrypted */
    uint8_t *epoch;      /* within the header: four bytes that are the cipher's own, to be written before the tag */
    uint64_t number;     /* packet number, or of feedback and grants theirs: all 64 bits */
    uint8_t kind, index; /* of packet; of piece, else 0 */
} ut_sealed;

/* A cipher. |keys| is what the shell gave for the path and the direction; the core never looks at it. */
typedef struct ut_cipher {
    const char *name;
    uint32_t overhead; /* bytes of the tag: a multiple of 8, at most UT_SEAL_OVERHEAD_MAX */
    /* Encrypts |n| packets of one path and writes their epochs and tags. Cannot fail. */
    void (*seal)(void *keys, const ut_sealed *packets, uint32_t n);
    /* Decrypts one packet whose tag is right. False if it is not; `bytes` are then unspecified, and not looked at. */
    bool (*open)(void *keys, const ut_sealed *packet);
} ut_cipher;

/* What a cipher, or none, adds to each datagram. */
static inline uint32_t ut_seal_overhead(const ut_cipher *cipher)
{
    return cipher ? cipher->overhead : 0;
}

/* A path of a job with a cipher. */
typedef struct ut_seal {
    const ut_cipher *cipher;
    void *keys_out, *keys_in; /* NULL: not known yet; then nothing goes out, and nothing that comes is believed */
} ut_seal;

typedef struct ut_burst ut_burst;
/* Seals all segments of a burst whose path has a cipher and keys; the burst then gathers from its own memory. */
void ut_seal_burst(ut_burst *b);
/* Opens in place a datagram of |len| bytes that ut_wire_peek has let through. |expected|: a number near its own.
 * Returns the bytes of the packet without its tag; 0 if it is not of this path's peer. */
size_t ut_seal_open(const ut_seal *s, uint8_t *packet, size_t len, uint64_t expected);

#endif
