/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket layer of transport_c/udp, over loopback and without an engine: what goes in as a burst must come out as
 * the same datagrams, with and without the kernel's offloads. Trouble is test_udp_trouble.c's, the driver as a whole
 * test_driver.c's.
 */
#define _GNU_SOURCE
#include "lane.h"

/* ---- addresses and opening ---- */

static void address_parse__numeric_only(void)
{
    static const struct {
        const char *text;
        int family; /* 0: refused */
    } rows[] = {
        {"127.0.0.1", AF_INET},
        {"0.0.0.0", AF_INET},
        {"::1", AF_INET6},
        {"fe80::1%lo", AF_INET6},
        {"2001:db8::7", AF_INET6},
        {"", 0},
        {"localhost", 0},
        {"127.1", 0},
        {"1", 0},
        {"256.0.0.1", 0},
        {"127.0.0.1:80", 0},
        {"::1::", 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ut_addr a;
        int result = ut_address_parse(rows[i].text, 7, &a);
        int want = rows[i].family ? UT_OK : UT_ERR_ARGUMENT;
        if (CHECK_MSG(result == want, "row %zu, \"%s\": %d", i, rows[i].text, result) && want == UT_OK)
            CHECK_MSG(ut_address_family(&a) == rows[i].family, "row %zu: family %d", i, ut_address_family(&a));
    }
}

static void socket_open__says_what_is_taken(void)
{
    ut_socket first, second;
    char error[200], want[200];
    ut_addr any, same;
    ut_address_parse("127.0.0.1", 0, &any);
    CHECK_EQ(ut_socket_open(&first, &any, &options_default, error, sizeof(error)), UT_OK);
    ut_address_parse("127.0.0.1", first.port, &same);
    CHECK_EQ(ut_socket_open(&second, &same, &options_default, error, sizeof(error)), UT_ERR_SYSTEM);
    snprintf(want, sizeof(want), "bind 127.0.0.1 UDP port %u: Address already in use", (unsigned)first.port);
    CHECK_STR(error, want);
    CHECK_EQ(second.fd, -1);
    ut_socket_close(&first);
    CHECK_EQ(first.fd, -1);
}

/* The byte that holds class and ECN of a datagram from |from|, as the kernel tells |to|; -1 if none came. */
static int traffic_class(const ut_socket *from, const ut_socket *to, const char *where)
{
    uint8_t byte = 7, control[64];
    ut_addr a;
    ut_address_parse(where, to->port, &a);
    CHECK_EQ(sendto(from->fd, &byte, 1, 0, (struct sockaddr *)a.bytes, a.len), 1);
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    for (int tries = 0; tries < 1000 && recvmsg(to->fd, &m, MSG_DONTWAIT) < 0; tries++)
        usleep(1000);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_type == (c->cmsg_level == IPPROTO_IP ? IP_TOS : IPV6_TCLASS))
            return *CMSG_DATA(c);
    return -1;
}

static void socket_open__marks_what_it_sends(void)
{
    static const struct {
        const char *where;
        uint32_t dscp;
        bool ect;
        int byte;
    } rows[] = {{"127.0.0.1", 0, false, 0},     {"127.0.0.1", 0, true, 2},     {"127.0.0.1", 8, true, 0x22},
                {"127.0.0.1", 46, false, 0xb8}, {"127.0.0.1", 63, true, 0xfe}, {"::1", 0, true, 2},
                {"::1", 8, true, 0x22},         {"::1", 10, false, 0x28}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ut_socket from, to;
        ut_socket_options options = options_default;
        char error[200];
        ut_addr any;
        if (strcmp(rows[i].where, "::1") == 0 && access("/proc/net/if_inet6", R_OK) != 0)
            continue;
        ut_address_parse(rows[i].where, 0, &any);
        options.dscp = rows[i].dscp;
        options.ect = rows[i].ect;
        CHECK_EQ(ut_socket_open(&from, &any, &options, error, sizeof(error)), UT_OK);
        CHECK_EQ(ut_socket_open(&to, &any, &options_default, error, sizeof(error)), UT_OK);
        const int byte = traffic_class(&from, &to, rows[i].where);
        CHECK_MSG(byte == rows[i].byte, "row %zu: byte %#x", i, (unsigned)byte);
        ut_socket_close(&from);
        ut_socket_close(&to);
    }
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t len = sizeof(value);
    getsockopt(fd, level, name, &value, &len);
    return value;
}

static void socket_open__demands_no_fragments(void)
{
    lane_open("127.0.0.1", options_default, options_default);
    CHECK_EQ(option(lane.from[0].fd, IPPROTO_IP, IP_MTU_DISCOVER), IP_PMTUDISC_DO);
    CHECK_EQ(option(lane.from[0].fd, IPPROTO_IP, IP_TOS), 2);
    CHECK_GE(lane.to[0].receive_buffer, 64 << 10);
    CHECK_LE(lane.to[0].receive_buffer, 4 << 20);
    CHECK_EQ(option(lane.to[0].fd, SOL_SOCKET, SO_RCVBUF), 2 * (int64_t)lane.to[0].receive_buffer);
    lane_close();
    lane_open("::1", options_default, options_default);
    CHECK_EQ(option(lane.from[0].fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER), IPV6_PMTUDISC_DO);
    CHECK_EQ(option(lane.from[0].fd, IPPROTO_IPV6, IPV6_TCLASS), 2);
    lane_close();
}

/* Ahead of data in this host's queues, with no privilege; the marks of data do not change that. */
static void socket_open__feedback_is_urgent(void)
{
    ut_socket_options urgent = options_default;
    urgent.urgent = true;
    lane_open("127.0.0.1", urgent, options_default);
    CHECK_EQ(option(lane.from[0].fd, SOL_SOCKET, SO_PRIORITY), 6);
    CHECK_EQ(option(lane.to[0].fd, SOL_SOCKET, SO_PRIORITY), 0);
    lane_close();
}

/* ---- bursts ---- */

/* One long burst with a short last segment, over every combination of offloads and both families. */
static void burst__arrives_whole(void)
{
    static const char *const hosts[] = {"127.0.0.1", "::1"};
    for (unsigned row = 0; row < 8; row++) {
        ut_socket_options from = options_default, to = options_default;
        from.gso = row & 1;
        to.gro = row & 2;
        check_reseed(row);
        lane_open(hosts[row >> 2], from, to);
        const uint32_t bytes = 44 * PACKET - 700;
        fill_random(payload, bytes);
        push_burst(UT_PORT_DATA, payload, bytes, PACKET);
        ut_sender_flush(&lane.sender);
        drain(UT_PORT_DATA, &got);
        CHECK_MSG(got.datagrams == 44, "row %u: %u datagrams", row, got.datagrams);
        CHECK_MSG(got.len == bytes && memcmp(got.bytes, payload, bytes) == 0, "row %u: %zu bytes", row, got.len);
        CHECK_MSG(got.datagram_max == PACKET, "row %u: longest %zu", row, got.datagram_max);
        CHECK_MSG(got.ce == 0, "row %u: %u marked", row, got.ce);
        CHECK_EQ(lane.sender.errors, 0);
        if (lane.from[0].gso && lane.to[0].gro) {
            CHECK_MSG(got.messages == 1, "row %u: %u messages", row, got.messages);
            CHECK_EQ(lane.sender.calls, 1);
            CHECK_EQ(lane.receiver.aggregates, 1);
        }
        lane_close();
    }
}

/* Any gather list and any segment size, in the way without GSO, where we do the cutting. */
static void burst__is_cut_anywhere(void)
{
    ut_socket_options plain = options_default;
    plain.gso = plain.gro = false;
    lane_open("127.0.0.1", plain, plain);
    for (unsigned run = 0; run < 200; run++) {
        check_reseed(1000 + run);
        const uint32_t segment = 1 + (uint32_t)check_below(PACKET);
        const uint32_t bytes = 1 + (uint32_t)check_below((uint64_t)segment * UT_SEGMENTS_MAX);
        fill_random(payload, UT_MIN2(bytes, sizeof(payload)));
        if (bytes > sizeof(payload))
            continue;
        push_burst(UT_PORT_DATA, payload, bytes, segment);
        ut_sender_flush(&lane.sender);
        heap all = {.len = 0};
        for (bool more = true; more;) {
            unsigned n = ut_receive(&lane.receiver, &lane.to[0], &more);
            for (unsigned i = 0; i < n; i++)
                heap_add(&all, &lane.receiver.got[i]);
        }
        CHECK_MSG(all.datagrams == (bytes + segment - 1) / segment, "run %u: %u datagrams of %u bytes, %u in all", run,
                  all.datagrams, segment, bytes);
        CHECK_MSG(all.len == bytes && memcmp(all.bytes, payload, bytes) == 0, "run %u: %zu of %u bytes", run, all.len,
                  bytes);
    }
    CHECK_EQ(lane.sender.errors, 0);
    lane_close();
}

/* Several bursts for both ports go out in one call each, in order. */
static void bursts__are_gathered(void)
{
    lane_open("127.0.0.1", options_default, options_default);
    fill_random(payload, 16 * 100);
    for (unsigned i = 0; i < UT_SEND_QUEUE - 1; i++) {
        push_burst(UT_PORT_DATA, payload + i * 100, 100, 100);
        push_burst(UT_PORT_FEEDBACK, payload + 800 + i * 100, 100, 100);
    }
    CHECK(ut_sender_wants(&lane.sender, UT_PORT_DATA));
    push_burst(UT_PORT_DATA, payload + 700, 100, 100);
    CHECK(!ut_sender_wants(&lane.sender, UT_PORT_DATA));
    CHECK(ut_sender_wants(&lane.sender, UT_PORT_FEEDBACK));
    ut_sender_flush(&lane.sender);
    CHECK_EQ(lane.sender.calls, 2);
    CHECK(ut_sender_wants(&lane.sender, UT_PORT_DATA));
    drain(UT_PORT_DATA, &got);
    CHECK_EQ(got.len, 800);
    CHECK_BYTES(got.bytes, payload, 800);
    drain(UT_PORT_FEEDBACK, &got);
    CHECK_EQ(got.len, 700);
    CHECK_BYTES(got.bytes, payload + 800, 700);
    lane_close();
}

/* What goes out: 'd' data and 'f' feedback to the one host, 'o' feedback to another one, each with a byte that counts.
 */
static void push_all(const char *what)
{
    for (unsigned i = 0; what[i]; i++) {
        const bool data = what[i] == 'd';
        ut_burst *b = ut_sender_slot(&lane.sender);
        const uint8_t bytes[2] = {(uint8_t)what[i], (uint8_t)i};
        b->port = data ? UT_PORT_DATA : UT_PORT_FEEDBACK;
        b->to = lane.address[b->port];
        b->beside = data ? (ut_addr){0} : lane.address[UT_PORT_DATA];
        b->beside.bytes[2] ^= what[i] == 'o'; /* another port: hosts may share an address */
        b->segment_bytes = b->bytes = sizeof(bytes);
        b->segments = 1;
        memcpy(b->memory, bytes, sizeof(bytes));
        ut_sender_push(&lane.sender);
    }
}

/* Feedback goes behind the last data to its host, through the data socket, unless data has to wait there. */
static void feedback__goes_behind_data_to_the_same_host(void)
{
    static const struct {
        const char *what, *at_data, *at_feedback;
        bool stands, full, blocked;
    } rows[] = {
        {"fdd", "d1d2f0", "", false, false, false},
        {"dfd", "d0d2f1", "", false, false, false},
        {"fodf", "d2f0f3", "o1", false, false, false}, /* in order */
        {"ofo", "", "o0f1o2", false, false, false},
        {"fdddddddf", "d1d2d3d4d5d6d7f0", "f8", false, false, false}, /* as many as there is room for */
        {"fd", "d1", "f0", true, false, false},
        {"fd", "d1", "f0", false, true, false},
        {"fd", "", "f0", false, false, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        lane_open(i % 2 ? "::1" : "127.0.0.1", options_default, options_default);
        push_all(rows[i].what);
        lane.sender.backlog.queued = rows[i].stands;
        lane.sender.pace = (ut_pace){.rate = rows[i].full, .waits = rows[i].full};
        lane.sender.queues[UT_PORT_DATA].blocked = rows[i].blocked;
        ut_sender_flush(&lane.sender);
        for (unsigned port = 0; port < 2; port++) {
            const char *want = port == UT_PORT_DATA ? rows[i].at_data : rows[i].at_feedback;
            char found[2 * 16 + 1] = "";
            drain(port, &got);
            for (size_t k = 0; k + 1 < got.len && k < 32; k += 2) {
                found[k] = (char)got.bytes[k];
                found[k + 1] = (char)('0' + got.bytes[k + 1]);
            }
            CHECK_MSG(strcmp(found, want) == 0, "row %zu, port %u: \"%s\"", i, port, found);
        }
        const bool both = rows[i].at_data[0] && rows[i].at_feedback[0];
        CHECK_MSG(lane.sender.calls == 1u + both, "row %zu: %zu calls", i, (size_t)lane.sender.calls);
        lane_close();
    }
}

/* Where aggregates come, few messages are read at once: what lies in the buffers is to be in the cache when it is
 * folded. Neither single datagrams between them nor feedback, which always comes singly, change that. */
static void receive__reads_few_aggregates_at_once(void)
{
    enum { BURSTS = 24 };
    bool more;
    lane_open("127.0.0.1", options_default, options_default);
    if (!lane.from[0].gso || !lane.to[0].gro) {
        printf("receive__reads_few_aggregates_at_once: this kernel has no offloads\n");
        lane_close();
        return;
    }
    fill_random(payload, 3 * PACKET);
    push_burst(UT_PORT_DATA, payload, 3 * PACKET, PACKET);
    ut_sender_flush(&lane.sender);
    CHECK_EQ(ut_receive(&lane.receiver, &lane.to[UT_PORT_DATA], &more), 1);
    for (unsigned single = 0; single < 2; single++) {
        push_burst(single ? UT_PORT_DATA : UT_PORT_FEEDBACK, payload, 100, 100);
        ut_sender_flush(&lane.sender);
        CHECK_EQ(ut_receive(&lane.receiver, &lane.to[single ? UT_PORT_DATA : UT_PORT_FEEDBACK], &more), 1);
    }
    for (unsigned i = 0; i < BURSTS; i++) {
        push_burst(UT_PORT_DATA, payload, 3 * PACKET, PACKET);
        ut_sender_flush(&lane.sender);
    }
    for (unsigned left = BURSTS; left; left -= UT_RECV_AGGREGATES) {
        CHECK_EQ(ut_receive(&lane.receiver, &lane.to[UT_PORT_DATA], &more), UT_RECV_AGGREGATES);
        CHECK(more);
    }
    /* Single datagrams that fill a call are worth a larger one. */
    for (unsigned i = 0; i < UT_RECV_AGGREGATES + UT_RECV_MESSAGES; i++) {
        push_burst(UT_PORT_DATA, payload, 100, 100);
        ut_sender_flush(&lane.sender);
    }
    CHECK_EQ(ut_receive(&lane.receiver, &lane.to[UT_PORT_DATA], &more), UT_RECV_AGGREGATES);
    CHECK_EQ(ut_receive(&lane.receiver, &lane.to[UT_PORT_DATA], &more), UT_RECV_MESSAGES);
    lane_close();
}

/* A socket without checksums is one on which the kernel refuses GSO: every burst must arrive all the same. */
static void gso__is_given_up_when_refused(void)
{
    lane_open("127.0.0.1", options_default, options_default);
    if (!lane.from[0].gso) {
        printf("gso__is_given_up_when_refused: this kernel has no GSO, nothing to give up\n");
        lane_close();
        return;
    }
    const int one = 1;
    CHECK_EQ(setsockopt(lane.from[0].fd, SOL_SOCKET, SO_NO_CHECK, &one, sizeof(one)), 0);
    const uint32_t bytes = 10 * PACKET + 5;
    fill_random(payload, 2 * bytes);
    push_burst(UT_PORT_DATA, payload, bytes, PACKET);
    push_burst(UT_PORT_DATA, payload + bytes, bytes, PACKET);
    ut_sender_flush(&lane.sender);
    drain(UT_PORT_DATA, &got);
    CHECK_EQ(got.datagrams, 22);
    CHECK_EQ(got.len, 2 * bytes);
    CHECK_BYTES(got.bytes, payload, 2 * bytes);
    CHECK(!lane.from[0].gso);
    CHECK_EQ(lane.sender.errors, 0);
    lane_close();
}

/* The kernel says EINVAL of port 0, too. That is the address's fault: GSO stays, the others' bursts arrive, all is
 * counted. */
static void gso__is_not_blamed_for_a_bad_address(void)
{
    lane_open("127.0.0.1", options_default, options_default);
    const bool gso = lane.from[0].gso;
    const ut_addr good = lane.address[0];
    fill_random(payload, 5 * PACKET);
    for (unsigned i = 0; i < 3; i++) {
        if (i == 1)
            ut_address_parse("127.0.0.1", 0, &lane.address[0]);
        else
            lane.address[0] = good;
        push_burst(UT_PORT_DATA, payload, 5 * PACKET, PACKET);
    }
    ut_sender_flush(&lane.sender);
    drain(UT_PORT_DATA, &got);
    CHECK_EQ(got.datagrams, 10);
    CHECK_EQ(lane.sender.errors, 5);
    CHECK_EQ(lane.sender.last_error, EINVAL);
    CHECK_EQ(lane.from[0].gso, gso);
    lane_close();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(address_parse__numeric_only);
    RUN(socket_open__says_what_is_taken);
    RUN(socket_open__marks_what_it_sends);
    RUN(socket_open__demands_no_fragments);
    RUN(socket_open__feedback_is_urgent);
    RUN(burst__arrives_whole);
    RUN(burst__is_cut_anywhere);
    RUN(bursts__are_gathered);
    RUN(feedback__goes_behind_data_to_the_same_host);
    RUN(receive__reads_few_aggregates_at_once);
    RUN(gso__is_given_up_when_refused);
    RUN(gso__is_not_blamed_for_a_bad_address);
    return check_end();
}
