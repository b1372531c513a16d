/* SPDX-License-Identifier: Apache-2.0
 *
 * What may be on the way to this host: one pool of outstanding credit for all senders of all its jobs.
 *
 * A sender may send as many bytes in all as the receiver has granted. What was granted and has not come is outstanding,
 * and the pool bounds the sum of it, so that the queue in front of the receiver's link stays short however many send.
 * Arrivals make room, so the rate of the link clocks the grants, and no rate needs to be set anywhere. Room goes to the
 * active sender that has the least outstanding. Equal shares of a uniform exchange are as fast as a perfect permutation
 * (NDP, EQDS and ExpressPass bound a receiver's outstanding bytes in a like manner).
 *
 * Each peer has *standing* credit besides: a few packets that may come unasked. Their arrival is the request for more.
 * Where what lately came from each peer in one transfer has room side by side, it may come unasked as a whole, so that
 * a small op waits for no grant; and where two such transfers have, those of both stages. Then what one stage has used
 * is given back by whatever feedback goes to the peer anyway, before the next but one needs it. Larger transfers are
 * under way for long, and are granted.
 *
 * Hosts seldom begin an op at the same moment. A peer that has told of an op which is not open here, and has nothing
 * for what is open, may send its part of it at once, as far as that is kept, if the part is larger than the pool. Else
 * its link would rest until all have begun, and then all would start together.
 *
 * The size of the pool follows what is measured. Its least is what the link brings in a round trip and UT_POOL_PACKETS
 * packets: with so many there is nearly always one at each link, by the mean values of a closed queueing network of as
 * many senders as receivers. It grows while grants are held back and less comes than the link has
 * been seen to bring, and shrinks when packets are lost in runs, as a full queue drops them.
 *
 * Where links are faster than memory, what is on the way waits in this host, and is read while it is still warm if a
 * cache holds it. So whatever lateness and growth ask for, the pool has at most UT_POOL_WARM bytes, unless the link
 * brings more in two round trips.
 *
 * The pool knows no jobs and no paths. All its functions are pure: what they return follows from what they are given.
 */
#ifndef UT_POOL_H
#define UT_POOL_H

#include "core/base/ut.h"

enum {
    UT_POOL_PACKETS = 48,         /* of the pool at rest, beyond what is on the way in a round trip */
    UT_POOL_SAMPLE_PACKETS = 256, /* a sample of the link has at least so many packets */
    UT_POOL_WARM = 2 << 20,       /* bytes: a core's second-level cache, or a few of the small ones */
    UT_POOL_STANDING_MIN = 8,     /* packets of standing credit, at least ... */
    UT_POOL_STANDING_MAX = 64,    /* ... and at most, but for transfers that fit the pool side by side */
};

/* What has come so far, in all. */
typedef struct ut_pool_count {
    uint64_t bytes, packets; /* that came */
    uint64_t numbers;        /* packet numbers up to the newest of each path: packets that were sent */
    uint64_t runs;           /* those of them that did not come when the next one did, two or more in a row */
} ut_pool_count;

typedef struct ut_pool {
    uint64_t bytes;       /* that may be outstanding beyond the standing credit */
    uint64_t rate;        /* bytes per second: the best of late */
    uint32_t packet;      /* bytes of a full packet */
    uint32_t standing;    /* bytes of standing credit of each peer */
    uint32_t enough;      /* bytes of it without which a peer that begins may have to wait */
    uint32_t few;         /* the least of it, by the size of the pool */
    uint64_t share;       /* bytes that one peer may have outstanding beyond its standing credit */
    uint64_t quantum;     /* bytes of the least grant worth a message */
    uint64_t most;        /* bytes that the host has room for */
    ut_pool_count from;   /* of the sample that runs, its beginning */
    ut_ns since;          /* when it began; 0: none runs */
    uint64_t top;         /* bytes per second: the best while the rate of the link was looked for */
    uint32_t flat;        /* samples since then that did not bring more */
    ut_pool_count judged; /* up to which loss was judged */
    uint32_t squeeze;     /* of 1024: this part of the packets beyond those on the way; less after loss */
    bool lossy;           /* when it was last judged, too much was lost */
    bool held_back;       /* a grant was held back in the sample that runs */
    bool wanting;         /* the last hand-out ended for want of room: who falls silent makes some */
} ut_pool;

/* One peer's data into this host. */
typedef struct ut_inlet {
    uint64_t granted;     /* bytes that the peer may have sent in all; grants are absolute */
    uint64_t outstanding; /* how many of them have not come */
    uint64_t early;       /* bytes that came before their op was open here: they use up the standing credit */
    uint64_t more;        /* bytes that the peer is known to have for us */
    uint64_t told;        /* bytes that it has told of for what is not open here; the early ones are among them */
    uint64_t kept;        /* so many early bytes are kept */
    uint64_t unasked;     /* bytes that may come unasked: the standing credit, unless this is less */
    bool counts;          /* it was heard lately: what it has outstanding takes room */
    bool raised;          /* the pool has granted more, ... */
    bool urgent;          /* ... for which the peer may be waiting */
    void *owner;          /* the caller's own */
} ut_inlet;

/* |packet|: bytes of a full one; |most|: what the host has room for. */
void ut_pool_init(ut_pool *p, uint32_t packet, uint64_t most);
/* Takes what has come until |now|. |round|: the time from a grant to the arrival of what it lets go, queues left aside;
 * |late|: how late this host gets to its work; |peers| that may send. */
void ut_pool_measure(ut_pool *p, const ut_pool_count *count, ut_ns round, ut_ns late, uint32_t peers, ut_ns now);
/* Sets the standing credit, for transfers of up to |packets| from each of |peers|, of which |kept| packets are kept if
 * they come before their op is open here. */
void ut_pool_expect(ut_pool *p, uint32_t packets, uint32_t kept, uint32_t peers);
/* Hands out room: raises what is granted to |n| inlets. |others|: bytes of the pool that other lanes' peers have
 * outstanding. Returns how many these have. */
uint64_t ut_pool_hand_out(ut_pool *p, ut_inlet *inlet, uint32_t n, uint64_t others);

#endif
