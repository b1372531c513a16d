/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "recv.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>

_Static_assert((int)UT_RECV_EACH >= 65535, "whatever the kernel aggregates fits");

static int read_int(const struct cmsghdr *c)
{
    int value = 0;
    memcpy(&value, CMSG_DATA(c), sizeof(value));
    return value;
}

static void read_control(ut_socket *s, struct msghdr *message, ut_datagrams *ret)
{
    const int ecn_mask = 3, ecn_ce = 3;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO)
            ret->stride = (size_t)read_int(c);
        else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) /* one byte, unlike IPv6's */
            ret->ce = (*CMSG_DATA(c) & ecn_mask) == ecn_ce;
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)
            ret->ce = (read_int(c) & ecn_mask) == ecn_ce;
        else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            uint32_t drops = (uint32_t)read_int(c);
            s->drops += (uint32_t)(drops - s->drops_seen);
            s->drops_seen = drops;
        }
    }
}

unsigned ut_receive(ut_receiver *r, ut_socket *s, bool *more)
{
    const unsigned room = s->aggregated ? UT_RECV_AGGREGATES : UT_RECV_MESSAGES;
    for (unsigned i = 0; i < room; i++) {
        r->iovs[i] = (struct iovec){.iov_base = r->buffers + (size_t)i * UT_RECV_EACH, .iov_len = UT_RECV_EACH};
        r->messages[i].msg_hdr = (struct msghdr){.msg_name = r->got[i].from.bytes,
                                                 .msg_namelen = sizeof(struct sockaddr_in6),
                                                 .msg_iov = &r->iovs[i],
                                                 .msg_iovlen = 1,
                                                 .msg_control = r->control[i],
                                                 .msg_controllen = sizeof(r->control[i])};
    }
    r->calls++;
    int n = recvmmsg(s->fd, r->messages, room, MSG_DONTWAIT, NULL);
    if (n < 0) {
        /* Anything but "nothing there" is an old error of the socket, which the kernel tells once: look again. */
        *more = errno != EAGAIN && errno != EWOULDBLOCK;
        r->errors += *more && errno != EINTR;
        return 0;
    }
    const uint64_t aggregates = r->aggregates;
    for (int i = 0; i < n; i++) {
        /* A datagram cut off by its buffer (MSG_TRUNC) goes on as it is: it is longer than any legal one, and counted
         * so. */
        ut_datagrams *got = &r->got[i];
        got->data = r->iovs[i].iov_base;
        got->len = r->messages[i].msg_len;
        got->stride = 0;
        got->ce = false;
        got->from.len = (uint8_t)UT_MIN2(r->messages[i].msg_hdr.msg_namelen, (socklen_t)sizeof(struct sockaddr_in6));
        read_control(s, &r->messages[i].msg_hdr, got);
        r->aggregates += r->got[i].stride != 0 && r->got[i].stride < r->got[i].len;
    }
    *more = (unsigned)n == room;
    /* Aggregates and single datagrams come in turn, at the ends of bursts and of stages. Only a call that was full of
     * single ones says that they would have filled a larger one. */
    if (r->aggregates != aggregates)
        s->aggregated = true;
    else if (*more)
        s->aggregated = false;
    return (unsigned)n;
}
