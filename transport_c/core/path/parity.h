/* SPDX-License-Identifier: Apache-2.0
 *
 * Parity packets: what is lost of the last bandwidth-delay product of a transfer would take a round trip more to
 * repair. A sender adds packets that are sums over GF(2^8) of a group of the packets before them. With as many of these
 * as members are missing the receiver makes the missing ones itself.
 *
 * This file knows how many are worth their bytes, the sums of what was sent, and what of what came is kept. Of an op it
 * knows names only; who sends and who takes is core/op/op_parity.c.
 */
#ifndef UT_PARITY_H
#define UT_PARITY_H

#include "core/base/ut.h"

enum {
    UT_PARITY_MOST = 16,        /* parity packets of a group: so much of a path's memory is for their sums */
    UT_PARITY_GROUP = 192,      /* members of a group at most; with their parity they have 256 different points */
    UT_PARITY_GROUPS = 2,       /* groups that a sender has begun on a path: of two transfers whose slots take turns */
    UT_PARITY_PART = 4,         /* parity is a quarter of its group at most */
    UT_PARITY_KEPT = 384 << 10, /* bytes of what came that are kept of a peer: a group of packets of 1500 bytes ... */
    UT_PARITY_KEPT_ALL = 8 << 20, /* ... and of all peers of a job */
    UT_PARITY_SUMS = 64 << 10,    /* bytes of sums of a group */
    /* A shorter round trip is cheap: two hosts that wake up and hold an answer back (UT_HOLD_NS) take as long. */
    UT_PARITY_TRIP_NS = 4 * 1000 * 1000,
    UT_PARITY_SPAN = 8192, /* losses are counted over so many packets, and once more as many */
    UT_PARITY_LEAST = 128, /* and over so many at least: what fewer tell of losses is chance */
};

/* Members of the group of a parity packet, and which of its parity packets it is, as the header has them
 * in place of the Timeout. */
static inline uint16_t ut_parity_place(uint32_t index, uint32_t members)
{
    assert(index < 256 && members < 256);
    return (uint16_t)(index << 8 | members);
}

/* Which transfer a packet belongs to, as the host that keeps the name numbers them. */
typedef struct ut_parity_name {
    uint64_t op_seq;
    uint32_t step;
} ut_parity_name;

/* A group: |members| slots that are sent one after the other, |first| the first of them. */
typedef struct ut_parity_group {
    ut_parity_name of;
    uint32_t first; /* slot */
    uint16_t members, coverage;
} ut_parity_group;

/* A group that is being sent, and the sums that will follow it. */
typedef struct ut_parity_sums {
    ut_parity_group group; /* members: those that have been added */
    uint16_t most;         /* members that it will have */
    uint8_t parities;      /* packets that follow it; 0: none, the place is free */
    uint8_t sent;          /* of these */
    uint32_t bytes;        /* of the longest member */
    uint64_t begun;        /* in which order groups began */
    uint8_t *sum;          /* `parities` of a payload each */
} ut_parity_sums;

/* What came last from a peer. */
typedef struct ut_parity_kept {
    ut_parity_group group; /* of a parity packet; of another one `first` is its slot, and it has no members */
    uint16_t len;
    uint8_t index; /* of a parity packet in its group */
    bool parity, used;
} ut_parity_kept;

typedef struct ut_parity {
    uint32_t payload; /* bytes of a full one */
    /* Sending. */
    ut_parity_sums sums[UT_PARITY_GROUPS];
    uint64_t begun;            /* groups ever begun */
    uint32_t most;             /* parity packets for which a group has memory */
    uint32_t window;           /* packets that fly in a round trip at most, as far as was seen */
    uint64_t lost[2], sent[2]; /* counters of the path when the two spans began: the older one first */
    /* Receiving. */
    bool keeps; /* a parity packet came on this path: it is worth to keep what comes */
    uint32_t room, kept_next, kept;
    ut_parity_kept *what; /* a ring of `room` */
    uint8_t *bytes;       /* their payloads */
} ut_parity;

/* Members of a group at most, where so many packets of a peer are kept. */
static inline uint32_t ut_parity_group_most(uint32_t room)
{
    return UT_MIN2((uint32_t)UT_PARITY_GROUP, room * 3 / 4);
}
/* Packets of |payload| bytes that are kept of each of |peers| peers. */
uint32_t ut_parity_room(uint32_t payload, uint32_t peers);
/* Parity packets of a group at most, of such payloads. */
uint32_t ut_parity_most(uint32_t payload);
/* The factor of member |member| in parity |index|. Parity 0 is XOR. */
uint8_t ut_parity_factor(uint32_t index, uint32_t member);

/* How many parity packets are worth sending behind |members| packets that are among the last |window|, of which a round
 * trip brings |window| and the path loses |ppm| of a million: |most| at most. Pure.
 *
 * One more packet takes a part 1/|window| of a round trip. It saves one if with it there are enough and without it
 * there were not. Chances are binomial, each packet being lost for itself. */
uint32_t ut_parity_worth(uint32_t members, uint32_t window, uint32_t ppm, uint32_t most);

void ut_parity_init(ut_parity *p, uint32_t payload, uint32_t room, ut_parity_kept *what, uint8_t *bytes, uint8_t *sums);
/* The path begins anew in one direction. */
void ut_parity_reset_sending(ut_parity *p);
void ut_parity_reset_receiving(ut_parity *p);

/* Packets lost of a million, by the path's counters; 0 while they are too few. Lets spans end. */
uint32_t ut_parity_losses(ut_parity *p, uint64_t lost, uint64_t sent);

/* Sending. Begins a group of |most| members with |parities| that follow it, in the place of the oldest. */
ut_parity_sums *ut_parity_begin(ut_parity *p, const ut_parity_group *g, uint32_t most, uint32_t parities);
/* The group of this transfer of which members are to come; NULL for none. */
ut_parity_sums *ut_parity_of(ut_parity *p, ut_parity_name of);
/* The next member, of |len| bytes, goes. */
void ut_parity_add(ut_parity *p, ut_parity_sums *s, const uint8_t *payload, uint32_t len);
/* A group all of whose members have gone and whose parity has not; NULL for none. */
ut_parity_sums *ut_parity_due(ut_parity *p);

/* Receiving. Keeps a payload that was taken in, if that is worth it: the packet that |what| names, a group of one. */
void ut_parity_keep(ut_parity *p, const ut_parity_group *what, const uint8_t *payload, uint32_t len);
/* Keeps a parity packet. |slots|: of its transfer. False if it cannot be one. */
bool ut_parity_came(ut_parity *p, const ut_parity_group *g, uint32_t index, const uint8_t *payload, uint32_t len);

/* What a parity packet has brought back. */
typedef struct ut_parity_found {
    uint32_t packets;
    uint32_t slot[UT_PARITY_MOST];
    const uint8_t *payload[UT_PARITY_MOST]; /* of the length of a parity packet; what is kept next overwrites them */
    uint32_t len;
} ut_parity_found;
/* Makes the members of |g| that are not kept, if parity enough is, of a transfer of |slots|. */
void ut_parity_solve(ut_parity *p, const ut_parity_group *g, uint32_t slots, ut_parity_found *ret);

#endif
