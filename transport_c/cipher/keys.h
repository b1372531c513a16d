/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of one path, in both directions: how they follow from the secrets that the hosts exchanged, when they
 * change, and under which nonce each packet goes. It is the ut_cipher (core/wire/seal.h) of every sealed job, whatever
 * the AEAD below. No I/O, no clock, and no memory but at ut_keys_begin.
 *
 * A direction has a secret for each epoch. From it follow, by HKDF-Expand (RFC 5869), a key and an IV for each kind of
 * packet and the secret of the next epoch; a secret is wiped as soon as that is done, so that nobody who takes the
 * memory later can read what was sent earlier. The keys of the epoch to come are always made ahead: a packet that
 * claims to be of it costs what all others cost.
 *
 * The sender begins a new epoch after so many packets, bytes, or so much time. It begins no second one before the peer
 * is known to have opened a packet of the first. The receiver follows when it has opened a packet of the next epoch,
 * and keeps the keys of the previous one for a while.
 *
 * Now and then the receiver draws a fresh secret (ut_keys_renew). The sender begins a new epoch with it as soon as it
 * may, and all later epochs follow from that secret. The receiver cannot know when the sender has heard of it, so until
 * then it holds two sets of keys for the next epoch, of the old secret and of the fresh one.
 *
 * Each packet carries three bytes for this in its header (PROTOCOL.md, Sealed packets): the epoch of its keys, the
 * newest epoch of the other direction of which its sender has opened a packet, and the number of fresh secrets so far.
 */
#ifndef UT_KEYS_H
#define UT_KEYS_H

#include "cipher/aead.h"
#include "core/wire/packets.h"
#include "core/wire/seal.h"

enum { UT_KEY_KINDS = 5 /* of packets */, UT_KEY_SETS = 3 /* previous, current, next */ };

/* When a new epoch begins: after any of the first three, but not before `rest` is over. */
typedef struct ut_key_life {
    uint64_t packets, bytes;
    ut_ns time;
    ut_ns rest; /* a packet that was held up so long on its way still finds its keys */
} ut_key_life;
/* 2^24 packets, 64 GiB (2^32 blocks of AES), 60 s: each far below what the ciphers bear (RFC 9001, B.1). 600 ms. */
extern const ut_key_life ut_key_life_usual;

typedef struct ut_key {
    void *context; /* of the AEAD */
    uint8_t iv[UT_NONCE_BYTES];
} ut_key;
typedef struct ut_key_set {
    ut_key kind[UT_KEY_KINDS];
} ut_key_set;

/* One direction. The sets take turns: `at` is the current one, the next follows it, the previous one is before it. */
typedef struct ut_keys_way {
    const ut_aead *aead; /* NULL: no secret yet */
    bool sealing;
    uint8_t at;
    uint8_t epoch;                   /* low 8 bits */
    uint8_t renewals;                /* fresh secrets that were begun with, low 8 bits */
    bool fresh;                      /* the next epoch is to begin, or may begin, with a fresh secret */
    uint32_t cid;                    /* connection id of the path */
    uint8_t secret[UT_SECRET_BYTES]; /* of the epoch after the next */
    uint8_t mark[UT_SECRET_BYTES];   /* of the first secret, by which it is known when it comes again */
    ut_key_set set[UT_KEY_SETS];
    /* Receiving: what stands in place of the next set and of `secret` if a packet of the fresh secret comes. */
    ut_key_set fresh_set;
    uint8_t fresh_secret[UT_SECRET_BYTES], fresh_mark[UT_SECRET_BYTES];
    uint64_t changes; /* of epoch, in all */
} ut_keys_way;

typedef struct ut_keys {
    ut_keys_way out, in;
    ut_key_life life;
    /* Sending: what went in this epoch and since when, and whether the peer has opened any of it. */
    uint64_t packets, bytes;
    ut_ns since;
    bool heard;
    uint64_t last[UT_KEY_KINDS]; /* of each kind: the newest number with its index, plus one; they only rise */
    /* Receiving: until when the previous epoch is believed; 0: not at all. */
    ut_ns previous_until;
} ut_keys;

/* What sets one direction's keys apart from all others made of the same secret. */
typedef struct ut_key_context {
    const char *job;
    uint64_t generation; /* life of the job */
    uint32_t from, to;   /* hosts of the job */
    uint32_t lane;
    uint32_t cid; /* connection id of the path */
} ut_key_context;

/* The cipher of all sealed jobs: its keys are a ut_keys, for both directions. */
extern const ut_cipher ut_cipher_sealed;

/* Gives |k|, which is zeroed at first, the keys for packets that come (|out| false) or go. The old ones of that
 * direction are wiped. UT_ERR_EXISTS, and nothing changes, if the direction had this very secret in this context
 * before: numbers would come twice under one key. UT_ERR_FULL if there is no memory. */
int ut_keys_begin(ut_keys *k, bool out, const ut_aead *aead, unsigned suite, const uint8_t secret[UT_SECRET_BYTES],
                  const ut_key_context *context, const ut_key_life *life, ut_ns now);
/* A fresh secret for a direction that has keys, by the same suite, and in the same context: the receiver gives it first
 * and tells the sender then. UT_ERR_UNKNOWN if the direction has no keys, or those of another connection id;
 * UT_ERR_FULL if the fresh secret before it was not begun with yet; UT_ERR_EXISTS if it is the one in use. */
int ut_keys_renew(ut_keys *k, bool out, unsigned suite, const uint8_t secret[UT_SECRET_BYTES],
                  const ut_key_context *context);
/* Wipes and frees all. |k| may be zeroed memory. */
void ut_keys_end(ut_keys *k);

#endif
