/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket layer when things go wrong: empty and oversized datagrams, congestion marks, overflowing buffers, full
 * sockets, dead peers. All of it is counted, none of it is fatal, and nothing that waits is lost.
 */
#define _GNU_SOURCE
#include "lane.h"

static void send_raw(unsigned port, const void *data, size_t len)
{
    ssize_t sent = sendto(lane.from[port].fd, data, len, 0, (const struct sockaddr *)(void *)lane.address[port].bytes,
                          lane.address[port].len);
    CHECK_EQ(sent, len);
}

static void datagram__may_be_empty(void)
{
    lane_open("127.0.0.1", options_default, options_default);
    send_raw(UT_PORT_DATA, "", 0);
    send_raw(UT_PORT_DATA, "abc", 3);
    send_raw(UT_PORT_DATA, "", 0);
    drain(UT_PORT_DATA, &got);
    CHECK_EQ(got.messages, 3);
    CHECK_EQ(got.empty, 2);
    CHECK_EQ(got.len, 3);
    lane_close();
}

static void congestion_mark__is_seen(void)
{
    static const char *const hosts[] = {"127.0.0.1", "::1"};
    const int ce = 3;
    for (unsigned v6 = 0; v6 < 2; v6++) {
        lane_open(hosts[v6], options_default, options_default);
        setsockopt(lane.from[0].fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_TCLASS : IP_TOS, &ce, sizeof(ce));
        send_raw(UT_PORT_DATA, "x", 1);
        drain(UT_PORT_DATA, &got);
        CHECK_MSG(got.ce == 1, "%s: %u marks", hosts[v6], got.ce);
        lane_close();
    }
}

/* What overflows the receive buffer is told with the next datagram that fits. */
static void drops__are_counted(void)
{
    ut_socket_options small = options_default;
    small.receive_buffer = 8 << 10;
    small.gro = false;
    lane_open("127.0.0.1", options_default, small);
    const unsigned sent = 500;
    for (unsigned i = 0; i < sent; i++)
        send_raw(UT_PORT_DATA, payload, 1000);
    drain(UT_PORT_DATA, &got);
    const unsigned arrived = got.datagrams;
    CHECK(arrived > 0 && arrived < sent);
    send_raw(UT_PORT_DATA, payload, 1000);
    drain(UT_PORT_DATA, &got);
    CHECK_EQ(got.datagrams, 1);
    CHECK_EQ(lane.to[0].drops, sent - arrived);
    lane_close();
}

/* The counter of the kernel has 32 bits; ours goes on. */
static void drops__survive_a_wrap(void)
{
    ut_socket_options small = options_default;
    small.receive_buffer = 8 << 10;
    lane_open("127.0.0.1", options_default, small);
    lane.to[0].drops_seen = UINT32_MAX - 4; /* as if so many had been told before */
    lane.to[0].drops = UINT32_MAX - 4;
    for (unsigned i = 0; i < 300; i++)
        send_raw(UT_PORT_DATA, payload, 1000);
    drain(UT_PORT_DATA, &got);
    send_raw(UT_PORT_DATA, payload, 1000);
    drain(UT_PORT_DATA, &got);
    CHECK_GE(lane.to[0].drops, (int64_t)UINT32_MAX + 1);
    CHECK_LE(lane.to[0].drops, (int64_t)UINT32_MAX + 1 + 300);
    lane_close();
}

/* Loopback UDP never says EAGAIN, but a pair of local datagram sockets does once some messages wait: they stand in for
 * the network. */
static int local_pair(unsigned port)
{
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    const int room = 8 << 10;
    CHECK_EQ(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
    ut_socket_close(&lane.from[port]);
    lane.from[port].fd = pair[0];
    lane.from[port].gso = false;
    lane.address[port].len = 0; /* connected */
    return pair[1];
}

static size_t take_all(int fd, uint8_t *into, size_t at, size_t room)
{
    for (;;) {
        ssize_t n = recv(fd, into + at, room - at, MSG_DONTWAIT);
        if (n <= 0)
            return at;
        at += (size_t)n;
    }
}

static void full_socket__keeps_what_is_left(void)
{
    lane_open("127.0.0.1", options_default, options_default);
    const int far = local_pair(UT_PORT_DATA);
    const uint32_t bytes = 40 * 100 + 7;
    fill_random(payload, 2 * bytes + 50);
    push_burst(UT_PORT_DATA, payload, bytes, 100);
    push_burst(UT_PORT_DATA, payload + bytes, bytes, 100);
    push_burst(UT_PORT_FEEDBACK, payload + 2 * bytes, 50, 50);
    ut_sender_flush(&lane.sender);
    CHECK(lane.sender.queues[UT_PORT_DATA].blocked);
    CHECK_EQ(lane.sender.blocked, 1);
    CHECK(!ut_sender_wants(&lane.sender, UT_PORT_DATA));
    drain(UT_PORT_FEEDBACK, &got); /* did not wait behind the data */
    CHECK_EQ(got.len, 50);

    const uint64_t calls = lane.sender.calls;
    ut_sender_flush(&lane.sender); /* a blocked socket is not tried */
    CHECK_EQ(lane.sender.calls, calls);

    memset(&got, 0, sizeof(got));
    for (unsigned turn = 0; turn < 200 && lane.sender.queues[UT_PORT_DATA].count > 0; turn++) {
        got.len = take_all(far, got.bytes, got.len, sizeof(got.bytes));
        ut_sender_unblock(&lane.sender, UT_PORT_DATA);
        ut_sender_flush(&lane.sender);
    }
    got.len = take_all(far, got.bytes, got.len, sizeof(got.bytes));
    CHECK_EQ(got.len, 2 * bytes);
    CHECK_BYTES(got.bytes, payload, 2 * bytes);
    CHECK_EQ(lane.sender.errors, 0);
    close(far);
    lane_close();
}

/* A peer that is gone: every datagram is refused, counted, and nothing waits. */
static void dead_peer__is_a_loss(void)
{
    lane_open("127.0.0.1", options_default, options_default);
    const int far = local_pair(UT_PORT_DATA);
    close(far);
    push_burst(UT_PORT_DATA, payload, 12 * 100, 100);
    push_burst(UT_PORT_DATA, payload, 100, 100);
    ut_sender_flush(&lane.sender);
    CHECK_EQ(lane.sender.errors, 13);
    CHECK_NE(lane.sender.last_error, 0);
    CHECK_EQ(lane.sender.queues[UT_PORT_DATA].count, 0);
    CHECK(!lane.sender.queues[UT_PORT_DATA].blocked);
    lane_close();
}

/* A datagram that the kernel finds too long (with a header of IPv6, for the interface) is refused whole, and the sender
 * goes on. */
static void oversize__is_a_loss(void)
{
    lane_open("::1", options_default, options_default);
    static const uint8_t big[UT_BURST_BYTES];
    push_burst(UT_PORT_DATA, big, sizeof(big), sizeof(big));
    push_burst(UT_PORT_DATA, payload, 77, 77);
    ut_sender_flush(&lane.sender);
    drain(UT_PORT_DATA, &got);
    CHECK_EQ(got.len, 77);
    CHECK_EQ(lane.sender.errors, 1);
    CHECK_EQ(lane.sender.last_error, EMSGSIZE);
    lane_close();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(datagram__may_be_empty);
    RUN(congestion_mark__is_seen);
    RUN(drops__are_counted);
    RUN(drops__survive_a_wrap);
    RUN(full_socket__keeps_what_is_left);
    RUN(dead_peer__is_a_loss);
    RUN(oversize__is_a_loss);
    return check_end();
}
