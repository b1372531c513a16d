/* SPDX-License-Identifier: Apache-2.0
 *
 * Which packets a randomized Hadamard transform mixes, and when a job uses it. Pure: no op, no connection;
 * op_hadamard.c does the work on an op's buffers, kernels/hadamard.h on rows.
 *
 * Rows are packets. A shard's slots are dealt to groups such that neighbours on the wire belong to different groups: a
 * burst of 44 lost packets costs 44 groups a row each, not one group nearly all of them. Padding would be bytes on the
 * wire for nothing, so what is left after the groups of 64 goes into smaller ones. (SPEC 1a.7.)
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
 * All hosts must do the same in an op, so one decides for all: the lowest host that is up and knows where the job
 * stands. Each of its feedbacks says "from this op_seq on: so", far enough ahead that all have heard it when they get
 * there; the others' feedbacks say how much they lose. Where hosts differ for a moment, a packet's flag tells, and it
 * is refused: bytes are missing then, never wrong.
 *
 * A change that is said for an op more than 16 ahead is not believed. After one of its own the deciding host makes no
 * other for 8 ops, then 16, ... 256, if they come one after the other: losses are what the others say of themselves. */
typedef struct ut_hadamard_switch {
    uint64_t from; /* ops from this op_seq on are transformed if |on|, those before if not */
    bool on;
    uint64_t sure_from;  /* before this op_seq a host that joined a running job knows nothing; 0 once it was told */
    uint64_t keep_until; /* op_seq before which we do not change it again */
    uint8_t changes;     /* of ours that came one soon after the other */
    uint64_t deciders;   /* hosts whose newest word was a decision */
    uint32_t loss;       /* what is still missing after repair, moving average, in units of 2^-15 of what was due */
    uint16_t peer_loss[UT_HOSTS_MAX]; /* the same, as the others say */
} ut_hadamard_switch;

enum {
    UT_HADAMARD_LOSS_UNIT = 1 << 15,
    UT_HADAMARD_ON_ABOVE = UT_HADAMARD_LOSS_UNIT / 100,  /* 1 % */
    UT_HADAMARD_OFF_BELOW = UT_HADAMARD_LOSS_UNIT / 400, /* 0.25 %: far enough below that it does not flap */
};

/* |option|: enum ut_hadamard, 0 for off. |first_op_seq|: where the job stands; 0 for a new one. */
void ut_hadamard_switch_init(ut_hadamard_switch *s, unsigned option, uint64_t first_op_seq);
static inline bool ut_hadamard_is_on(const ut_hadamard_switch *s, uint64_t op_seq)
{
    return op_seq >= s->from ? s->on : !s->on;
}
/* An op ended with |missing| of |expected| bytes, over the paths on which something came: no transform helps where all
 * is missing. */
void ut_hadamard_lost(ut_hadamard_switch *s, uint64_t missing, uint64_t expected);
/* Op |next_open| is about to open on host |self|: if it is this host that decides, looks whether |option| and the
 * losses ask for a change. |up|: mask of the other hosts that are up. */
void ut_hadamard_decide(ut_hadamard_switch *s, unsigned option, uint32_t self, uint64_t up, uint64_t next_open);
/* The 16 bits for a feedback. |tx_floor|: op_seq below which this host sends nothing more. */
uint16_t ut_hadamard_word(const ut_hadamard_switch *s, uint32_t self, uint64_t up, uint64_t next_open,
                          uint64_t tx_floor);
/* |host| sent |word|. */
void ut_hadamard_hear(ut_hadamard_switch *s, uint32_t host, uint16_t word, uint32_t self, uint64_t up,
                      uint64_t next_open);

#endif
