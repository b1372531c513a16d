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
 * One rule sets the size of the pool, in a rack and between continents: C x RTT and a burst.
 *
 * C is the best rate at which data were seen to arrive over a part of a round trip. So short a look knows the link
 * after the first packets of an op, and never sees a pause between two ops as a slow link. C fades only while senders
 * wait for grants and less comes, so an op begins at the rate of the last one, however long ago that was. A host that
 * is slower than its link reads late and much at a time, and a short look has seen the link alone. So the part that is
 * looked at grows with lateness, and what was seen in a much shorter one is forgotten: C is what the host can work off.
 *
 * The burst is what must be there so that no link rests while hosts are late at their work: what the link brings in
 * that time, and UT_POOL_PACKETS packets. With so many there is nearly always one at each link, by the mean values of a
 * closed queueing network of as many senders as receivers. The burst grows while grants are held back and less comes
 * than C, and shrinks when packets are lost in runs, as a full queue drops them. Who has lost so of late does not grow.
 *
 * Grants go out at the pace of C, or each receiver that begins would have its whole pool sent to it at once, at the
 * rates of all senders together. Until twice what the path holds has come and has shown no higher rate, they go out at
 * four times that pace: C may still be what the pool has let come. What has come is granted anew at once, two grants of
 * it at most, however fast it came: no more is outstanding then than before, so the pace holds back a pool that fills,
 * and not a host that makes up for the time in which it was not served.
 *
 * The delay of packets says whether the pool is too large. If what comes in a round trip has waited for longer than
 * our own burst and a part of a round trip, then a queue stands somewhere. Then the pool shrinks round by round to
 * PART of what path and queue hold together. What is our own queue is gone then: C was too high, or our own hosts meet
 * in a link that is narrower than theirs. Another's queue stays, and we have about as much in it as the other has.
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
    UT_POOL_PACKETS = 48,         /* of the burst, lateness aside */
    UT_POOL_SAMPLE_PACKETS = 256, /* a sample of the link has at least so many packets, or lasts a millisecond */
    UT_POOL_WARM = 2 << 20,       /* bytes: a core's second-level cache, or a few of the small ones */
    UT_POOL_MOST = UT_GRANT_AHEAD_MAX / 4 * 3, /* bytes: no sender may take a grant of this host for wild */
    UT_POOL_STANDING_MIN = 8,                  /* packets of standing credit, at least ... */
    UT_POOL_STANDING_MAX = 64,                 /* ... and at most, but for transfers that fit the pool side by side */
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
    uint64_t most;        /* bytes that the host has room for beyond what the path itself holds, ... */
    uint64_t beyond;      /* ... and that the burst would take of it at most, however small the room is */
    ut_ns target;         /* the wait in queues, beyond our burst's own, that no job objects to; 0: by the round trip */
    ut_ns oldest;         /* how long ago the oldest of what this turn has read came to the host */
    ut_ns round;          /* the round trip that was handed in last, ... */
    ut_ns measured_at;    /* ... and when that was */
    ut_pool_count from;   /* of the sample that runs, its beginning */
    ut_ns since;          /* when it began; 0: none runs */
    uint64_t seen;        /* bytes that had come when it was last measured, ... */
    ut_ns seen_at;        /* ... and when these were seen to have risen */
    ut_ns proof;          /* how long the look or the sample lasted that showed `rate` */
    uint64_t top;         /* bytes per second: `rate` when it last rose by an eighth, ... */
    uint64_t top_at;      /* ... and the bytes that had come by then */
    uint64_t tokens;      /* bytes that may be granted now */
    ut_ns tokens_at;      /* when they were counted */
    uint64_t turned;      /* bytes that have come and were not granted anew */
    uint64_t look_from;   /* bytes that had come when the part of a round trip began that runs, ... */
    ut_ns look_at;        /* ... and when that was */
    uint64_t train;       /* bytes that had come before the newest pause, ... */
    ut_ns train_at;       /* ... when it ended; 0: such a part has ended since */
    ut_ns waited;         /* the sum of what packets have waited in queues in the round trip that runs, ... */
    uint64_t waits;       /* ... how many those are, ... */
    ut_ns waits_since;    /* ... and since when */
    bool queued;          /* in the last one they have waited longer than our own burst takes */
    uint32_t way;         /* of 1024: this part of C x RTT; less while a queue stands */
    ut_pool_count judged; /* up to which loss was judged */
    uint32_t squeeze;     /* of 1024: this part of the burst's packets; less after loss */
    uint32_t tall;        /* of 1024: so many times the burst; more while the link starves */
    bool lossy;           /* when it was last judged, too much was lost */
    bool held_back;       /* a grant was held back in the sample that runs */
    bool wanting;         /* the last hand-out ended for want of room: who falls silent makes some */
    ut_ns paced_until;    /* it ended for want of tokens, until then; UT_NEVER: it did not */
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

/* |packet|: bytes of a full one; |most|: what the host has room for, beyond what the path itself holds. */
void ut_pool_init(ut_pool *p, uint32_t packet, uint64_t most);
/* Takes what has come until |now|. |round|: the time from a grant to the arrival of what it lets go, queues left aside;
 * |late|: how late this host gets to its work; |peers| that may send. */
void ut_pool_measure(ut_pool *p, const ut_pool_count *count, ut_ns round, ut_ns late, uint32_t peers, ut_ns now);
/* So many packets came, of which the newest has waited so long in queues, as far as its path knows. */
static inline void ut_pool_waited(ut_pool *p, ut_ns waited, uint32_t packets)
{
    p->waited += waited * packets;
    p->waits += packets;
}
/* Sets the standing credit, for transfers of up to |packets| from each of |peers|, of which |kept| packets are kept if
 * they come before their op is open here. */
void ut_pool_expect(ut_pool *p, uint32_t packets, uint32_t kept, uint32_t peers);
/* Hands out room: raises what is granted to |n| inlets. |others|: bytes of the pool that other lanes' peers have
 * outstanding. Returns how many these have. */
uint64_t ut_pool_hand_out(ut_pool *p, ut_inlet *inlet, uint32_t n, uint64_t others);

#endif
