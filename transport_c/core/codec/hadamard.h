/* SPDX-License-Identifier: Apache-2.0
 *
 * Which packets a randomized Hadamard transform mixes, and when a job uses it. Pure: no op, no connection;
 * hadamard_codec.c does the work on an op's buffers, kernels/hadamard.h on rows.
 *
 * Rows are packets. A shard's slots are dealt to groups such that neighbours on the wire belong to different groups: a
 * burst of 44 lost packets costs 44 groups a row each, not one group nearly all of them. Padding would be bytes on the
 * wire for nothing, so what is left after the groups of 64 goes into smaller ones. (docs/papers.md, section 1.7.)
 */
#ifndef UT_HADAMARD_H
#define UT_HADAMARD_H

#include "core/base/ut.h"

enum { UT_HADAMARD_GROUP = 64 /* rows of a full group */ };

/* A group's rows are slots |first|, |first| + |apart|, ... */
typedef struct ut_hadamard_group {
    uint32_t first, apart;
    uint32_t rows; /* a power of two, at most UT_HADAMARD_GROUP */
} ut_hadamard_group;

/* Groups of a shard of |slots| slots, of which the last is shorter than the others if |short_last|. With F slots of
 * full length: F / 64 groups of 64 rows, which take the first slots in turn; one group for each bit of F mod 64,
 * largest first, of neighbouring slots; a short last slot is alone in the last group. */
uint32_t ut_hadamard_groups(uint32_t slots, bool short_last);
/* |group| < ut_hadamard_groups(slots, short_last). */
ut_hadamard_group ut_hadamard_group_of(uint32_t slots, bool short_last, uint32_t group);
/* Which group and row |slot| < |slots| is. */
void ut_hadamard_place_of(uint32_t slots, bool short_last, uint32_t slot, uint32_t *ret_group, uint32_t *ret_row);

/* The key of a group's signs, the same on every host: from the op, the shard and the group alone. */
uint64_t ut_hadamard_key(uint64_t op_seq, uint32_t shard, uint32_t group);
/* Powers of two whose product is 1 / rows. An odd power of two has no exact square root; with these the transform there
 * and back is exact wherever the sums are. */
float ut_hadamard_encode_scale(uint32_t rows);
float ut_hadamard_decode_scale(uint32_t rows);

/* ---- off, on, auto ----
 *
 * Whether this host would have ops transformed, by what it and the others say that they lose. What the hosts do is
 * agreed on in an epoch (core/epoch/epoch.h), where this is one host's wish. */
typedef struct ut_hadamard_losses {
    uint32_t own; /* what is still missing after repair, moving average, in units of 2^-15 of what was due */
    uint16_t of[UT_HOSTS_MAX]; /* the same, as the others say */
} ut_hadamard_losses;

enum {
    UT_HADAMARD_LOSS_UNIT = 1 << 15,
    UT_HADAMARD_ON_ABOVE = UT_HADAMARD_LOSS_UNIT / 100,  /* 1 % */
    UT_HADAMARD_OFF_BELOW = UT_HADAMARD_LOSS_UNIT / 400, /* 0.25 %: far enough below that it does not flap */
};

/* An op ended with |missing| of |expected| bytes, over the paths on which something came: no transform helps where all
 * is missing. */
void ut_hadamard_lost(ut_hadamard_losses *l, uint64_t missing, uint64_t expected);
/* |option|: enum ut_hadamard, 0 for off. |on|: whether ops are transformed now. |up|: mask of the other hosts that are
 * up. */
bool ut_hadamard_wanted(const ut_hadamard_losses *l, unsigned option, bool on, uint64_t up);

#endif
