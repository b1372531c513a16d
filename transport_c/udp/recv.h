/* SPDX-License-Identifier: Apache-2.0
 *
 * Receiving: one recvmmsg into a few buffers that stay hot in the cache, because the engine folds straight from them.
 * With GRO each buffer must hold 64 KiB: the kernel hands over up to that much of one flow at once, and cuts off what
 * does not fit, which would look like massive loss. Without GRO the same memory is cut smaller, so that one call still
 * brings a good many datagrams.
 */
#ifndef UT_UDP_RECV_H
#define UT_UDP_RECV_H

#include <sys/socket.h>

#include "socket.h"

enum {
    UT_RECV_BYTES = 512 << 10,    /* of all buffers together; about half of a big core's L2 */
    UT_RECV_AGGREGATE = 64 << 10, /* one buffer with GRO: 8 of them */
    UT_RECV_SINGLE = 16 << 10,    /* one buffer without: 32 of them; more than UT_PACKET_MAX */
    UT_RECV_MESSAGES = UT_RECV_BYTES / UT_RECV_SINGLE,
};

/* What the kernel handed over in one message: a datagram (stride 0), or an aggregate of datagrams of |stride| bytes. */
typedef struct ut_datagrams {
    const uint8_t *data;
    size_t len; /* may be 0 */
    size_t stride;
    bool ce; /* congestion experienced */
} ut_datagrams;

typedef struct ut_receiver {
    uint64_t calls, errors, aggregates;
    ut_datagrams got[UT_RECV_MESSAGES]; /* of the last call */
    struct mmsghdr messages[UT_RECV_MESSAGES];
    struct iovec iovs[UT_RECV_MESSAGES];
    _Alignas(struct cmsghdr) uint8_t control[UT_RECV_MESSAGES][128];
    _Alignas(64) uint8_t buffers[UT_RECV_BYTES];
} ut_receiver;

/* One recvmmsg; never blocks. Returns how many entries of |got| it filled, good until the next call, and in |more|
 * whether the socket may hold more. Moves s->drops. */
unsigned ut_receive(ut_receiver *r, ut_socket *s, bool *more);

#endif
