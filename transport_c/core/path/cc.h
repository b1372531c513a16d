/* SPDX-License-Identifier: Apache-2.0
 *
 * Congestion control: how many bytes one path may have in flight, inside the credit that its receiver grants.
 *
 * Credit protects the receiver's memory, and the receiver's peers from each other; and the receiver makes it smaller
 * while packets wait in a queue (core/link/pool.h), for it sees the queues before all of its senders. What is left to
 * the sender is to watch which packets were marked, and how much of what it sends arrives. It does not react to a
 * packet that is merely lost: repair takes care of that, and a link that loses 1 % is best used in full.
 *
 * Credit alone bounds what flies, until something asks for less. Then the window is reduced from what really flew, and
 * regains that much; after that credit alone bounds it again.
 *
 * Each algorithm is a table of functions in a file of its own (cc_*.c). cc.c keeps what all of them need: the least
 * round trip, the loss over a span of packets, the bounds of the window. It computes in integers only, because every
 * build must do the same.
 */
#ifndef UT_CC_H
#define UT_CC_H

#include "core/base/ut.h"

enum {
    UT_CC_PACKETS_MIN = 4,           /* the least window: a path that may not send learns nothing */
    UT_CC_SPAN_PACKETS = 256,        /* loss is judged over at least so many packets and a round trip, ... */
    UT_CC_SPAN_LOST = 16,            /* ... and so many lost ones: a link that loses 1 % sometimes loses 3 % of 256 */
    UT_CC_LOSS_PERCENT = 2,          /* with more loss the path is taken for overloaded, with less for lossy */
    UT_CC_ADAPT_BELOW = 8,           /* and only if less than this part of the window arrives in a round trip (NSCC) */
    UT_CC_TARGET_NS = 4000 * 1000,   /* queueing to aim for by default: a send buffer of 512 KiB at 1 Gbit/s */
    UT_CC_TARGET_MIN_NS = 10 * 1000, /* the least target: less is below a scheduler's jitter */
    UT_CC_STEPS = 32,                /* round trips in which a window grows to its share */
};
/* The least round trip is that of the last one to two spans. Queues are empty between ops, and an op over a slow link
 * takes many seconds: with less to remember, its own queue would pass for the path, and let more go. */
#define UT_CC_BASE_SPAN (30 * UT_SECOND)

/* What one feedback says about the path. */
typedef struct ut_cc_sample {
    ut_ns now;
    ut_ns rtt;           /* round trip of the newest packet that came, less the time for which the receiver held its
                            news back; 0: not known */
    ut_ns sent_at;       /* when that packet was sent */
    ut_ns srtt;          /* 0: not known */
    uint64_t flying;     /* bytes in flight just before */
    uint64_t acked;      /* bytes that this feedback first acknowledged */
    uint64_t sent;       /* bytes sent on the path so far */
    uint32_t packets;    /* packets that this feedback first acknowledged */
    uint32_t ce_packets; /* how many of those were marked: at most `packets` */
    uint32_t lost;       /* packets that this feedback showed to be lost */
    bool idle;           /* nothing is in flight any more: the next packets do not measure the path */
} ut_cc_sample;

typedef struct ut_cc ut_cc;

typedef struct ut_cc_ops {
    const char *name;
    /* Sets the algorithm's own state; the window is kept. */
    void (*init)(ut_cc *cc);
    /* Progress: at least one packet was acknowledged. */
    void (*on_feedback)(ut_cc *cc, const ut_cc_sample *s);
    /* More was lost than a lossy link loses. |delivered| bytes came through in the last round trip. */
    void (*on_loss)(ut_cc *cc, const ut_cc_sample *s, uint64_t delivered);
    /* Bytes that may be in flight. */
    uint64_t (*window)(const ut_cc *cc);
} ut_cc_ops;

extern const ut_cc_ops ut_cc_swift, ut_cc_dctcp, ut_cc_timely, ut_cc_none;

typedef struct ut_swift {
    uint32_t packets, ce_packets;
} ut_swift;

typedef struct ut_dctcp {
    uint32_t alpha; /* share of marked packets, smoothed, in 1/1024 */
    uint32_t packets, ce_packets;
    ut_ns span_at; /* start of the round trip that they are counted over */
    bool marked;   /* a packet of this path was ever marked */
} ut_dctcp;

typedef struct ut_timely {
    ut_ns rtt;        /* of the previous sample */
    int64_t gradient; /* smoothed difference of successive round trips, ns */
    uint32_t falling; /* samples in a row without growth of the delay */
} ut_timely;

struct ut_cc {
    const ut_cc_ops *ops; /* NULL: none */
    uint32_t packet;      /* bytes of a full packet */
    uint32_t peers;       /* number of peers of the host */
    uint64_t window;      /* bytes */
    uint64_t most;        /* the largest window, which a path has that was not reduced */
    uint64_t share;       /* what a path regains that was reduced, in parts of it */
    uint64_t flew;        /* the most that was in flight in the span that runs */
    uint64_t floor;       /* delay does not reduce the window below it: see ut_cc_cut_for_delay */
    ut_ns target;         /* queueing to aim for; 0: the default */
    ut_ns base_rtt;       /* the least round trip of the last one to two spans; 0: not known */
    ut_ns base_next;      /* the least round trip of the span that runs */
    ut_ns base_at;        /* when that span began */
    ut_ns reduced_at;     /* when the window was last reduced; packets sent before that tell nothing new */
    /* Loss over a span of packets. */
    ut_ns span_at;
    uint64_t span_bytes, span_sent;
    uint32_t span_packets, span_lost;
    uint64_t reductions, quick_adapts; /* counters */
    union {
        ut_swift swift;
        ut_dctcp dctcp;
        ut_timely timely;
    } as;
};

/* Begins with a fresh path to one of |peers|, on which at most |credit| bytes may be in flight. How
 * much really goes the receiver's credit says. |congestion| is an enum ut_congestion, 0 for Swift. |target| is the
 * queueing to aim for in ns, 0 for the default. */
void ut_cc_start(ut_cc *cc, unsigned congestion, ut_ns target, uint32_t packet, uint32_t peers, uint64_t credit);
/* Sets another algorithm or target from now on; the window and what is known of the path stay. */
void ut_cc_tune(ut_cc *cc, unsigned congestion, ut_ns target);
/* Takes what a feedback says about the path. */
void ut_cc_feedback(ut_cc *cc, const ut_cc_sample *s);

/* Bytes that may be sent when |flying| are in flight. */
static inline uint64_t ut_cc_room(const ut_cc *cc, uint64_t flying)
{
    uint64_t window = cc->ops ? cc->ops->window(cc) : UINT64_MAX;
    return window > flying ? window - flying : 0;
}

/* ---- for cc_*.c ---- */

uint64_t ut_cc_own_window(const ut_cc *cc);
ut_ns ut_cc_target(const ut_cc *cc);
/* How long the sample's packet waited in queues. */
ut_ns ut_cc_queueing(const ut_cc *cc, const ut_cc_sample *s);
/* Whether the window is what holds the sender up; if not, nothing shows that a larger window is right. */
bool ut_cc_is_full(const ut_cc *cc, const ut_cc_sample *s);
/* What is in flight when credit and window let it: the window, or what really flew if that is less. */
uint64_t ut_cc_used(const ut_cc *cc, const ut_cc_sample *s);
/* Something asks for less: from now on the window is what really flew, until it has regained that. */
void ut_cc_settle(ut_cc *cc, const ut_cc_sample *s);
/* Whether a reduction now would be the first one that this round trip's packets ask for. */
bool ut_cc_may_cut(const ut_cc *cc, const ut_cc_sample *s);
void ut_cc_grow(ut_cc *cc, uint64_t bytes);
/* Lets the window grow by |bytes| per round trip. */
void ut_cc_grow_by(ut_cc *cc, const ut_cc_sample *s, uint64_t bytes);
void ut_cc_cut_to(ut_cc *cc, const ut_cc_sample *s, uint64_t window);
/* The same for a law of delay, which only reduces the window of a host that has a single peer. Paths to several peers
 * share our own link, so all see its queue, and the path that is reduced first starves: an AllReduce is as slow as its
 * slowest pair, and uneven windows cost it 20 to 60 % (simulated, 1 % loss). What is on the way is bounded by the
 * receivers instead (core/link/pool.h). Trouble beyond that shows as marks or as loss, which reduce the window further.
 */
void ut_cc_cut_for_delay(ut_cc *cc, const ut_cc_sample *s, uint64_t window);
/* Reacts to loss as NSCC does: what came through is taken for what the path holds. */
void ut_cc_quick_adapt(ut_cc *cc, const ut_cc_sample *s, uint64_t delivered);

#endif
