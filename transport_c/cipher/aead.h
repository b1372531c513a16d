/* SPDX-License-Identifier: Apache-2.0
 *
 * What the rest of Ultima asks of a library of cryptography: an AEAD (authenticated encryption with associated data,
 * RFC 5116) and one hash with a key, each by a handful of functions. evp.c and mb.c hold the real ones; the simulator
 * brings one of its own, which is no cipher.
 */
#ifndef UT_AEAD_H
#define UT_AEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UT_SECRET_BYTES = 32,
    UT_NONCE_BYTES = 12,
    UT_TAG_BYTES = 16, /* never truncated */
    UT_KEY_BYTES_MAX = 32,
};

/* Numbers of the suites. They cross the wire of the control plane: they are never reused. */
enum ut_suite {
    UT_SUITE_AES_128_GCM = 1,
    UT_SUITE_AES_256_GCM = 2,
    UT_SUITE_CHACHA20_POLY1305 = 3,
    UT_SUITES_END,
};

/* One packet as an AEAD sees it. |body| is written in place; `tag` has UT_TAG_BYTES. */
typedef struct ut_aead_packet {
    const uint8_t *nonce; /* UT_NONCE_BYTES */
    const uint8_t *header;
    size_t header_len;
    uint8_t *body;
    size_t body_len;
    uint8_t *tag;
} ut_aead_packet;

typedef struct ut_aead {
    const char *name;
    const char *provider; /* whose code it is, for people */
    size_t key_bytes;     /* at most UT_KEY_BYTES_MAX */
    /* A context that holds one key at a time, to seal with (|sealing|) or to open with. NULL: there is no memory. */
    void *(*make)(const struct ut_aead *aead, bool sealing);
    /* Wipes and frees |context|, which may be NULL. */
    void (*drop)(void *context);
    /* Puts |key| in place of the context's key. It allocates nothing. */
    void (*key)(void *context, const uint8_t *key);
    void (*seal)(void *context, const ut_aead_packet *p);
    /* False if the tag is wrong; the body is unspecified then. The comparison takes the same time for all tags. */
    bool (*open)(void *context, const ut_aead_packet *p);
    /* HMAC-SHA256 (RFC 2104): writes UT_SECRET_BYTES. */
    void (*mac)(const uint8_t *key, size_t key_len, const uint8_t *data, size_t len, uint8_t *out);
    /* Overwrites memory in a way that no compiler takes out. */
    void (*wipe)(void *bytes, size_t len);
} ut_aead;

#endif
