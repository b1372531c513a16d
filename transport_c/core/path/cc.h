/* SPDX-License-Identifier: Apache-2.0
 *
 * Congestion control: how many bytes one path may have in flight, inside the credit that its receiver grants.
 *
 * Credit keeps the receiver whole, and its peers off each other's toes. What it cannot see is a link in between: a
 * queue that grows at a switch, or beside another's TCP. For that the sender watches how long packets take, which of
 * them were marked, and how much of what it sends arrives. It does not react to a packet that is merely lost: repair
 * takes care of that, and a link that loses 1 % is best used in full.
 *
 * One table of functions, one file per algorithm (cc_*.c). cc.c keeps what all of them need: the least round trip, the
 * loss over a span of packets, the bounds of the window. Integers only: every build must do the same.
 */
#ifndef UT_CC_H
#define UT_CC_H

#include "core/base/ut.h"

enum {
    UT_CC_PACKETS_MIN = 4,           /* least window: a path that may not send learns nothing */
    UT_CC_FRESH_BYTES = 640 << 10,   /* fresh windows of all peers of a host together: 5 ms at 1 Gbit/s */
    UT_CC_FRESH_MIN = 128 << 10,     /* but each two bursts */
    UT_CC_SPAN_PACKETS = 256,        /* loss is judged over at least so many packets, and a round trip, */
    UT_CC_SPAN_LOST = 16,            /* and so many lost ones: a link that loses 1 % now and then loses 3 % of 256 */
    UT_CC_LOSS_PERCENT = 2,          /* above it the path is taken for overloaded, below for lossy */
    UT_CC_ADAPT_BELOW = 8,           /* and only if less than 1/so much of the window arrives in a round trip: NSCC's */
    UT_CC_HOLD_NS = 1000 * 1000,     /* a receiver may hold its news back so long: a window lasts that much longer */
    UT_CC_TARGET_NS = 4000 * 1000,   /* queueing to aim for by default: a send buffer of 512 KiB at 1 Gbit/s */
    UT_CC_TARGET_MIN_NS = 10 * 1000, /* less than a scheduler's jitter cannot be aimed for */
    UT_CC_STEPS = 32,                /* the share is reached in so many round trips */
};
#define UT_CC_BASE_SPAN (5 * UT_SECOND) /* the least round trip is that of the last one to two spans */

/* What one feedback told. */
typedef struct ut_cc_sample {
    ut_ns now;
    ut_ns rtt;           /* of the newest packet that came, less the time that its news was held back; 0: not known */
    ut_ns sent_at;       /* when that packet went */
    ut_ns srtt;          /* 0: not known */
    uint64_t flying;     /* bytes in flight just before */
    uint64_t acked;      /* bytes that this feedback first acknowledged */
    uint64_t sent;       /* bytes sent on the path so far */
    uint32_t packets;    /* acknowledged */
    uint32_t ce_packets; /* of those, marked: at most `packets` */
    uint32_t lost;       /* packets that this feedback showed to be lost */
    bool idle;           /* nothing is in flight any more: what comes next does not measure the path */
} ut_cc_sample;

typedef struct ut_cc ut_cc;

typedef struct ut_cc_ops {
    const char *name;
    /* Sets the algorithm's own state; the window is kept. */
    void (*init)(ut_cc *cc);
    /* Progress: at least one packet was acknowledged. */
    void (*on_feedback)(ut_cc *cc, const ut_cc_sample *s);
    /* More was lost than a link loses: |delivered| bytes came through in the last round trip. */
    void (*on_loss)(ut_cc *cc, const ut_cc_sample *s, uint64_t delivered);
    /* Bytes that may be in flight. */
    uint64_t (*window)(const ut_cc *cc);
} ut_cc_ops;

extern const ut_cc_ops ut_cc_swift, ut_cc_dctcp, ut_cc_timely, ut_cc_none;

/* Delay above the target is cut back in proportion; unless cutting does not help. */
typedef struct ut_swift {
    ut_ns queueing; /* of the sample before: one late wake-up is no queue */
    uint32_t packets, ce_packets;
    uint8_t cuts;      /* in a row, with the delay above the target all the while */
    bool competing;    /* somebody else fills the queue: see cc_swift.c */
    ut_ns cut_delay;   /* queueing at the first of the cuts */
    uint64_t cut_from; /* and the window then */
    ut_ns deepest;     /* most queueing seen while competing */
} ut_swift;

typedef struct ut_dctcp {
    uint32_t alpha; /* share of marked packets, smoothed, in 1/1024 */
    uint32_t packets, ce_packets;
    ut_ns span_at; /* start of the round trip that they are counted over */
    bool marked;   /* ever */
} ut_dctcp;

typedef struct ut_timely {
    ut_ns rtt;        /* of the sample before */
    int64_t gradient; /* smoothed difference of round trips, ns */
    uint32_t falling; /* samples in a row without growth of delay */
} ut_timely;

struct ut_cc {
    const ut_cc_ops *ops; /* NULL: none */
    uint32_t packet;      /* bytes of a full packet */
    uint32_t peers;       /* of the host */
    uint64_t window;      /* bytes */
    uint64_t share;       /* window of an uncut path, and the largest; growth goes in steps of a part of it */
    uint64_t credit;      /* the share's own bound */
    uint64_t floor;       /* no delay cuts below it: see ut_cc_cut_for_delay */
    ut_ns target;         /* queueing to aim for; 0: the default */
    ut_ns base_rtt;       /* least round trip of late; 0: not known */
    ut_ns base_next;      /* least of the span that runs */
    ut_ns base_at;        /* its start */
    ut_ns cut_at;         /* when the window was last cut; packets sent before then have nothing new to say */
    /* Loss over a span of packets. */
    ut_ns span_at;
    uint64_t span_bytes, span_sent;
    uint32_t span_packets, span_lost;
    uint64_t cuts, quick_adapts; /* counters */
    union {
        ut_swift swift;
        ut_dctcp dctcp;
        ut_timely timely;
    } as;
};

/* A fresh path to one of |peers|, to which |credit| bytes may be in flight at most. Its window is its share of
 * UT_CC_FRESH_BYTES: near what the credit allows, for a collective's first round trip must not crawl, but bounded for
 * all peers together. |congestion|: enum ut_congestion, 0 for Swift; |target|: queueing to aim for in ns, 0 for the
 * default. */
void ut_cc_start(ut_cc *cc, unsigned congestion, ut_ns target, uint32_t packet, uint32_t peers, uint64_t credit);
/* Another algorithm or target from now on; the window and what is known of the path stay. */
void ut_cc_tune(ut_cc *cc, unsigned congestion, ut_ns target);
/* Another share from now on, such as window.c finds right, within the credit and never below that of a fresh path. A
 * window that was cut stays cut in proportion. */
void ut_cc_share(ut_cc *cc, uint64_t share);
/* Takes what a feedback told. */
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
/* What the sample's packet waited in queues. */
ut_ns ut_cc_queueing(const ut_cc *cc, const ut_cc_sample *s);
/* The window is what holds the sender up; else there is no evidence that a larger one is right. */
bool ut_cc_is_full(const ut_cc *cc, const ut_cc_sample *s);
/* A cut now would be the first one that this round trip's packets ask for. */
bool ut_cc_may_cut(const ut_cc *cc, const ut_cc_sample *s);
void ut_cc_grow(ut_cc *cc, uint64_t bytes);
/* |bytes| more per round trip. */
void ut_cc_grow_by(ut_cc *cc, const ut_cc_sample *s, uint64_t bytes);
void ut_cc_cut_to(ut_cc *cc, const ut_cc_sample *s, uint64_t window);
/* The same for a law of delay, which only cuts the window of a host's single peer. Paths to several peers share our own
 * link, so all see its queue, and who is cut first starves: an AllReduce is as slow as its slowest pair, and uneven
 * windows cost it 20 to 60 % (simulated, 1 % loss). Their windows are equal and small from the start instead
 * (ut_cc_start, and then link/window.c); what is worse than that shows as marks or as loss, and those cut further. */
void ut_cc_cut_for_delay(ut_cc *cc, const ut_cc_sample *s, uint64_t window);
/* NSCC's answer to loss: what came through is what the path holds. */
void ut_cc_quick_adapt(ut_cc *cc, const ut_cc_sample *s, uint64_t delivered);

#endif
