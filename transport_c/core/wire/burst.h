/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes out at once: some datagrams of equal length to one peer, gathered from where their bytes lie, and the
 * addresses that they go to. The core fills a burst; the shell, which knows sockets, sends it.
 */
#ifndef UT_BURST_H
#define UT_BURST_H

#include "core/base/ut.h"

/* A socket address, opaque to the core: the bytes of a sockaddr_in or sockaddr_in6, or the simulator's host number. */
typedef struct ut_addr {
    uint8_t len; /* bytes in use, at most 28 */
    uint8_t bytes[31];
} ut_addr;

enum ut_port { UT_PORT_DATA = 0, UT_PORT_FEEDBACK = 1 };

/* One datagram burst: segments of segment_bytes each, the last one perhaps shorter, gathered from iov. */
typedef struct ut_iov {
    const void *base;
    size_t len;
} ut_iov;
typedef struct ut_burst {
    ut_addr to;
    uint32_t port; /* enum ut_port: which of our sockets sends it, and which of theirs it is for */
    uint32_t segment_bytes;
    uint32_t segments;
    uint32_t bytes; /* of all segments */
    uint32_t iovs;
    ut_iov iov[2 * UT_SEGMENTS_MAX];            /* {header, payload} per segment; payload points into an arena */
    uint8_t headers[UT_SEGMENTS_MAX * 32 + 16]; /* data headers live here; a feedback is built in whole in `packet` */
    uint8_t packet[1472];
} ut_burst;

#endif
