/* SPDX-License-Identifier: Apache-2.0
 *
 * Following a port of a peer whose address changes: PROTOCOL.md, Addresses that move. A packet that authenticates from
 * another address says only that somebody has it there, who may have copied it. So that address is asked, and the
 * present one too, and the port moves if the one answers and the other is silent.
 *
 * The tokens are the caller's: nobody may be able to predict them, not even the peer, who could else point this host's
 * data at a third party.
 */
#ifndef UT_MOVE_H
#define UT_MOVE_H

#include "core/wire/burst.h"

enum {
    UT_MOVE_ASKS = 3, /* times that both addresses are asked: one lost packet decides nothing (RFC 9000, 8.2.4) */
    /* Between two of them at least. The way to the new address may be longer than the measured one, and a peer that was
     * not awake for a while is not silent. */
    UT_MOVE_WAIT_MIN_NS = 20 * 1000 * 1000,
    /* The same where no round trip was measured yet: hosts may be far apart (RFC 9002, 6.2.2). */
    UT_MOVE_WAIT_FAR_NS = 333 * 1000 * 1000,
    /* And at most so many times what the other address took to answer: as a first sample is taken, with half of it for
     * its deviation (RFC 6298, 2.2 and 2.3). */
    UT_MOVE_WAIT_TRIPS = 3,
    /* From the begin of a try in vain to that of the next, at most. Where nobody has answered it is asked again after
     * as long as the try took, then after twice as long, and so on. */
    UT_MOVE_REST_NS = 1000 * 1000 * 1000,
    UT_MOVE_VAIN_MOST = 6, /* doublings */
};
enum ut_move_ask { UT_MOVE_PRESENT, UT_MOVE_OTHER, UT_MOVE_WAYS };

typedef struct ut_move {
    /* What is asked of each port at each turn stands together, in one line of the cache. */
    ut_ns wait, next, rest; /* between two asks; when to ask again or to decide; until when nothing is tried */
    uint8_t asked;          /* so often */
    uint8_t vain;           /* tries since the port last moved that nobody has answered */
    uint8_t due;            /* challenges to be sent now: bits of enum ut_move_ask */
    uint8_t answers;        /* how many of `answer` there are */
    bool shows;             /* an answer to nothing is to be sent, which shows where this port is */
    bool came;              /* the other address has answered */
    /* The address that is tried; the one to be tried next; `len` 0 for none; and as the handshake told. */
    ut_addr other, later, home;
    uint64_t token[UT_MOVE_WAYS];  /* by enum ut_move_ask */
    uint64_t answer[UT_MOVE_WAYS]; /* tokens of challenges that are to be answered, the oldest first */
} ut_move;

/* The port is at |home| now, whatever was known of it. */
void ut_move_begin(ut_move *m, const ut_addr *home);
/* A newest packet came from |from|: if that is another address than |present|, it is to be tried. */
static inline void ut_move_came_from(ut_move *m, const ut_addr *present, const ut_addr *from)
{
    if (from->len && !ut_addr_is(from, present))
        m->later = *from;
}
/* Whether it is time for a try, which ut_move_try then begins. */
static inline bool ut_move_tries(const ut_move *m, ut_ns now)
{
    return m->later.len && m->other.len == 0 && now >= m->rest;
}
/* |silence|: how long an answer takes at most, as far as is known; 0 if it is not. */
void ut_move_try(ut_move *m, ut_ns silence, const uint64_t token[UT_MOVE_WAYS], ut_ns now);
/* The present address is asked, outside of a try, so that the peer shows where its other port is. */
void ut_move_call(ut_move *m, uint64_t token);
/* A challenge came. The oldest two are answered, as many as a try sends at once: one that somebody has forwarded must
 * not take the place of the one that came straight. */
void ut_move_asked(ut_move *m, uint64_t token);
/* One came to the other port: who asks there may have lost this one, too. */
void ut_move_show(ut_move *m);
/* An answer came; one of no challenge of this try changes nothing. True if |present| is another address now. */
bool ut_move_answered(ut_move *m, ut_addr *present, uint64_t token, ut_ns now);
/* Asks again, or decides; a try that nobody has answered is made again. True if |present| is another address now. */
bool ut_move_tick(ut_move *m, ut_addr *present, ut_ns now);
/* Whether there is a packet to send. */
static inline bool ut_move_says(const ut_move *m)
{
    return m->answers || m->shows || m->due;
}
/* The next one, to |ret_to|; `cid` and `number` are the caller's. */
void ut_move_fill(ut_move *m, const ut_addr *present, ut_addr *ret_to, ut_path *ret);
/* When ut_move_tick has something to do, or a packet is to be sent: at once. */
static inline ut_ns ut_move_wake(const ut_move *m)
{
    const ut_ns again = m->later.len && m->other.len == 0 ? m->rest : UT_NEVER;
    return ut_move_says(m) ? 0 : UT_MIN2(m->next, again);
}

#endif
