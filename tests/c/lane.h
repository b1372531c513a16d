/* SPDX-License-Identifier: Apache-2.0
 *
 * A sender and a receiver over loopback, for the tests of the socket layer: bursts in at one end, datagrams out at the
 * other.
 */
#ifndef UT_TEST_LANE_H
#define UT_TEST_LANE_H

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <unistd.h>

#include "check.h"
#include "udp/recv.h"
#include "udp/send.h"

enum { PACKET = 1472, BURST_MAX = 44 * PACKET };

/* A sender and a receiver on loopback. Static: half a megabyte of buffers. */
static struct {
    ut_socket from[2], to[2];
    ut_addr address[2]; /* of `to`, by port */
    ut_sender sender;
    ut_receiver receiver;
} lane;

static const ut_socket_options options_default = {
    .receive_buffer = 4 << 20, .send_buffer = 1 << 20, .packet_bytes = PACKET, .gso = true, .gro = true, .ect = true};

__attribute__((unused)) static void lane_open(const char *host, ut_socket_options from, ut_socket_options to)
{
    char error[200] = "";
    memset(&lane, 0, sizeof(lane));
    for (unsigned port = 0; port < 2; port++) {
        ut_addr any;
        CHECK_EQ(ut_address_parse(host, 0, &any), UT_OK);
        CHECK_MSG(ut_socket_open(&lane.from[port], &any, &from, error, sizeof(error)) == UT_OK, "%s", error);
        CHECK_MSG(ut_socket_open(&lane.to[port], &any, &to, error, sizeof(error)) == UT_OK, "%s", error);
        CHECK_EQ(ut_address_parse(host, lane.to[port].port, &lane.address[port]), UT_OK);
    }
    ut_sender_init(&lane.sender, lane.from);
}

__attribute__((unused)) static void lane_close(void)
{
    for (unsigned port = 0; port < 2; port++) {
        ut_socket_close(&lane.from[port]);
        ut_socket_close(&lane.to[port]);
    }
}

__attribute__((unused)) static void fill_random(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)check_random();
}

/* Queues |bytes| of |data| in segments. */
__attribute__((unused)) static void push_burst(unsigned port, const uint8_t *data, uint32_t bytes,
                                               uint32_t segment_bytes)
{
    ut_burst *b = ut_sender_slot(&lane.sender);
    b->to = lane.address[port];
    b->beside = (ut_addr){0};
    b->port = port;
    b->segment_bytes = segment_bytes;
    b->segments = bytes <= segment_bytes ? 1 : (bytes + segment_bytes - 1) / segment_bytes;
    b->bytes = bytes;
    memcpy(b->memory, data, bytes);
    ut_sender_push(&lane.sender);
}

/* What came, datagram by datagram, glued together. */
typedef struct heap {
    uint8_t bytes[2 * BURST_MAX];
    size_t len;
    unsigned datagrams, messages, empty, ce;
    size_t datagram_max;
} heap;

__attribute__((unused)) static void heap_add(heap *h, const ut_datagrams *g)
{
    const size_t stride = g->stride ? g->stride : g->len;
    h->messages++;
    h->ce += g->ce;
    h->empty += g->len == 0;
    h->datagrams += g->len == 0 ? 1 : (unsigned)((g->len + stride - 1) / stride);
    h->datagram_max = UT_MAX2(h->datagram_max, UT_MIN2(stride, g->len));
    if (CHECK_LE(h->len + g->len, sizeof(h->bytes))) {
        memcpy(h->bytes + h->len, g->data, g->len);
        h->len += g->len;
    }
}

/* Reads until the socket has been silent for a moment: loopback delivers within the send call. */
__attribute__((unused)) static void drain(unsigned port, heap *ret)
{
    struct pollfd p = {.fd = lane.to[port].fd, .events = POLLIN};
    memset(ret, 0, sizeof(*ret));
    while (poll(&p, 1, 20) > 0) {
        bool more = true;
        while (more) {
            unsigned n = ut_receive(&lane.receiver, &lane.to[port], &more);
            for (unsigned i = 0; i < n; i++)
                heap_add(ret, &lane.receiver.got[i]);
        }
    }
}

__attribute__((unused)) static heap got;
static uint8_t payload[BURST_MAX];

#endif
