/* SPDX-License-Identifier: Apache-2.0
 *
 * Receiving: one recvmmsg into a few buffers that stay hot in the cache, because the engine folds straight from them.
 * With GRO (the kernel merges the datagrams of a flow into an *aggregate*) each buffer must hold 64 KiB: the kernel
 * hands over up to that much at once, and drops what does not fit, which would look like massive loss. So few buffers
 * are used while aggregates come. Many are used while datagrams come singly: each buffer then holds one packet, and the
 * calls are what costs. What comes is remembered for each socket, for feedback always comes singly.
 */
#ifndef UT_UDP_RECV_H
#define UT_UDP_RECV_H

#include <sys/socket.h>

#include "socket.h"

enum {
    UT_RECV_EACH = (64 << 10) +
        2048,               /* bytes of a buffer; no power of two, so that buffers do not compete for cache lines */
    UT_RECV_AGGREGATES = 8, /* buffers while aggregates come: 512 KiB, about half of a big core's L2 */
    UT_RECV_MESSAGES = 32,  /* buffers while datagrams come singly */
};

/* What the kernel handed over in one message: a datagram (stride 0), or an aggregate of datagrams of |stride| bytes. */
typedef struct ut_datagrams {
    uint8_t *data;
    size_t len; /* may be 0 */
    size_t stride;
    bool ce; /* congestion experienced */
    ut_addr from;
} ut_datagrams;

typedef struct ut_receiver {
    uint64_t calls, errors, aggregates;
    ut_datagrams got[UT_RECV_MESSAGES]; /* of the last call */
    struct mmsghdr messages[UT_RECV_MESSAGES];
    struct iovec iovs[UT_RECV_MESSAGES];
    _Alignas(struct cmsghdr) uint8_t control[UT_RECV_MESSAGES][128];
    _Alignas(64) uint8_t buffers[UT_RECV_MESSAGES * UT_RECV_EACH];
} ut_receiver;

/* Calls recvmmsg once; never blocks. Returns how many entries of |got| it filled, which are good until the next call,
 * and in |more| whether the socket may hold more. Updates s->drops and s->aggregated. */
unsigned ut_receive(ut_receiver *r, ut_socket *s, bool *more);

#endif
