/* SPDX-License-Identifier: Apache-2.0
 *
 * How much may stand in the host's own queue, between a socket and its link. What stands there is out of the core's
 * hands: a window that fills this queue never reaches the network, and feedback that shares the link waits behind it. A
 * queue that runs dry leaves the link idle. So the thread keeps about 100 us of the link there: it fills the queue up
 * to half as much again, and fills it anew when half of it is left.
 *
 * A burst is half of the mean, and what it costs, a system call, a way through the kernel and a reply, hardly depends
 * on its size. On a slow link 100 us are a handful of packets. So 64 KiB may stand there, in bursts of 22 packets of
 * 1,500 bytes, as long as they leave within 2 ms: no more than twice the time for which a receiver keeps news to itself
 * (UT_HOLD_NS) in any case.
 *
 * How fast the queue drains is measured: a *look* asks the socket how much it still holds (SIOCOUTQ), and two looks
 * between which nothing was sent show what has left. The bytes are the kernel's, which count its own overhead, and so
 * does the rate. A socket that never holds anything, as on loopback or between two namespaces without a shaper, has no
 * bound: there the queue is elsewhere, or there is none.
 *
 * A smaller send buffer (SO_SNDBUF) would bound the queue as well, but by a constant that fits one link, and it counts
 * a burst of 64 KiB only once it is in.
 */
#ifndef UT_UDP_BACKLOG_H
#define UT_UDP_BACKLOG_H

#include "core/base/ut.h"

enum {
    UT_BACKLOG_NS = 100 * 1000,            /* of the link: the mean of what stands */
    UT_BACKLOG_BYTES = 32 << 10,           /* and never less, for a thread that wakes late must not let it run dry */
    UT_BACKLOG_WORTH_BYTES = 64 << 10,     /* what a slow link may hold for the sake of larger bursts, */
    UT_BACKLOG_WORTH_NS = 2 * 1000 * 1000, /* ... if that leaves within this time */
    UT_BACKLOG_PULSE_NS = 1000 * 1000,     /* the shortest time, */
    UT_BACKLOG_PULSE_BYTES = 32 << 10,     /* and the least that must leave in it, to tell a rate by */
    UT_BACKLOG_UNSEEN = 256,               /* looks that found nothing, before anything was ever found: */
    UT_BACKLOG_SELDOM = 16,                /* then only every so many sendings are looked at */
    UT_BACKLOG_GONE = 4096,                /* looks in a row that find nothing where there was a queue: it is gone */
    UT_BACKLOG_WAKE_MAX_NS = 10 * 1000 * 1000, /* a link that stood still may go on */
};

typedef struct ut_backlog {
    uint64_t rate;         /* bytes a second that leave; 0: not known */
    uint64_t queued;       /* bytes that stand, by the last look */
    uint64_t most;         /* the most that a look after a sending has found since a rate is known */
    ut_ns at;              /* of the last look */
    bool bounded;          /* bytes were seen to stand here */
    bool full;             /* wait until half of the mean is left */
    uint32_t empty, skips; /* looks in a row that found nothing; sendings since the last look */
    uint64_t pulse_bytes;  /* of the rate's next sample */
    ut_ns pulse_ns;
} ut_backlog;

/* Whether to look now, at which moment something was sent or not since the look before. A look is a system call; it
 * hardly ever finds anything where the queue is elsewhere, and nothing new shortly after another look. */
bool ut_backlog_due(ut_backlog *b, bool sent, ut_ns now);
/* A look found |queued| bytes. |sent|: something was sent since the look before. Where the queue is
 * bounded there must be a look after each sending. */
void ut_backlog_look(ut_backlog *b, uint64_t queued, bool sent, ut_ns now);
/* The largest burst that may be sent after |sent| bytes since the last look; UINT64_MAX if there is no bound, and 0 if
 * the queue is full, or so nearly that what fits is not worth a system call. */
uint64_t ut_backlog_burst(const ut_backlog *b, uint64_t sent);
/* About how many bytes may stand. */
uint64_t ut_backlog_mean(const ut_backlog *b);
/* When a full queue will have room; UT_NEVER if it is not full. */
ut_ns ut_backlog_wake(const ut_backlog *b);

#endif
