/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

_Static_assert(sizeof(struct sockaddr_in6) <= sizeof(((ut_addr *)0)->bytes), "ut_addr holds either family");

int ut_address_parse(const char *text, uint16_t port, ut_addr *ret)
{
    memset(ret, 0, sizeof(*ret));
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
        ret->len = sizeof(v4);
        memcpy(ret->bytes, &v4, sizeof(v4));
        return UT_OK;
    }
    /* getaddrinfo rather than inet_pton: it knows %scope. AI_NUMERICHOST keeps it from asking anybody. */
    struct addrinfo hints = {.ai_family = AF_INET6, .ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    if (getaddrinfo(text, NULL, &hints, &found) != 0)
        return UT_ERR_ARGUMENT;
    struct sockaddr_in6 v6;
    memcpy(&v6, found->ai_addr, sizeof(v6));
    freeaddrinfo(found);
    v6.sin6_port = htons(port);
    ret->len = sizeof(v6);
    memcpy(ret->bytes, &v6, sizeof(v6));
    return UT_OK;
}

int ut_address_family(const ut_addr *address)
{
    sa_family_t family;
    memcpy(&family, address->bytes, sizeof(family));
    return family;
}

static uint16_t address_port(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

/* "127.0.0.1 UDP port 29521", as in every sentence about a socket. */
static void describe(const ut_addr *address, char *ret, size_t len)
{
    struct sockaddr_storage storage = {0};
    char host[INET6_ADDRSTRLEN] = "?";
    memcpy(&storage, address->bytes, address->len);
    const void *bits = storage.ss_family == AF_INET6 ? (const void *)&((struct sockaddr_in6 *)&storage)->sin6_addr
                                                     : (const void *)&((struct sockaddr_in *)&storage)->sin_addr;
    inet_ntop(storage.ss_family, bits, host, sizeof(host));
    snprintf(ret, len, "%s UDP port %u", host, (unsigned)address_port(&storage));
}

static bool set_int(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

/* Past the administrator's limit if we may (CAP_NET_ADMIN), up to it if not. Returns what the kernel granted: it
 * doubles what it is asked for, to have room for its own overhead per packet, and we report the half that is for
 * payload. */
static uint32_t set_buffer(int fd, int force, int name, uint32_t bytes)
{
    int asked = (int)UT_MIN2(bytes, (uint32_t)INT32_MAX / 2);
    if (!set_int(fd, SOL_SOCKET, force, asked))
        set_int(fd, SOL_SOCKET, name, asked);
    int granted = 0;
    socklen_t len = sizeof(granted);
    getsockopt(fd, SOL_SOCKET, name, &granted, &len);
    return (uint32_t)granted / 2;
}

/* Receive wants no more than the kernel's yes. Send is per message, by cmsg, so the option is set for the probe and
 * taken back. */
static bool probe_gso(int fd, uint32_t packet_bytes)
{
    return set_int(fd, SOL_UDP, UDP_SEGMENT, (int)packet_bytes) && set_int(fd, SOL_UDP, UDP_SEGMENT, 0);
}

static bool demand_options(int fd, int family)
{
    if (family == AF_INET6)
        return set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) &&
               set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
    return set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
}

/* Class and ECN share a byte. A class that somebody asked for is demanded, a mark for ECN is tried. */
static bool mark(int fd, int family, const ut_socket_options *options)
{
    const int ect0 = options->ect ? 2 : 0, byte = (int)(options->dscp << 2) | ect0;
    if (byte == 0)
        return true;
    const bool marked =
        family == AF_INET6 ? set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, byte) : set_int(fd, IPPROTO_IP, IP_TOS, byte);
    return marked || options->dscp == 0;
}

static void try_options(ut_socket *s, int family, const ut_socket_options *options)
{
    const int interactive = 6; /* TC_PRIO_INTERACTIVE, the highest that needs no privilege */
    s->receive_buffer = set_buffer(s->fd, SO_RCVBUFFORCE, SO_RCVBUF, options->receive_buffer);
    s->send_buffer = set_buffer(s->fd, SO_SNDBUFFORCE, SO_SNDBUF, options->send_buffer);
    set_int(s->fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
    if (family == AF_INET6)
        set_int(s->fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    else
        set_int(s->fd, IPPROTO_IP, IP_RECVTOS, 1);
    if (options->urgent) /* after the marks, which set a priority, too */
        set_int(s->fd, SOL_SOCKET, SO_PRIORITY, interactive);
    s->gso = options->gso && probe_gso(s->fd, options->packet_bytes);
    s->gro = options->gro && set_int(s->fd, SOL_UDP, UDP_GRO, 1);
}

static int fail(ut_socket *s, const char *doing, const ut_addr *bind, char *error, size_t error_len)
{
    int why = errno;
    char where[80];
    describe(bind, where, sizeof(where));
    snprintf(error, error_len, "%s %s: %s", doing, where, strerror(why));
    ut_socket_close(s);
    return UT_ERR_SYSTEM;
}

int ut_socket_open(ut_socket *s, const ut_addr *address, const ut_socket_options *options, char *error,
                   size_t error_len)
{
    const int family = ut_address_family(address);
    struct sockaddr_storage storage = {0};
    memcpy(&storage, address->bytes, address->len);
    *s = (ut_socket){.fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP)};
    if (s->fd < 0)
        return fail(s, "open a socket for", address, error, error_len);
    if (!demand_options(s->fd, family))
        return fail(s, "forbid fragments on", address, error, error_len);
    if (!mark(s->fd, family, options)) {
        char doing[40];
        snprintf(doing, sizeof(doing), "dscp %u: mark packets of", options->dscp);
        return fail(s, doing, address, error, error_len);
    }
    try_options(s, family, options);
    if (bind(s->fd, (const struct sockaddr *)&storage, address->len) < 0)
        return fail(s, "bind", address, error, error_len);
    socklen_t len = sizeof(storage);
    if (getsockname(s->fd, (struct sockaddr *)&storage, &len) < 0)
        return fail(s, "read back", address, error, error_len);
    s->port = address_port(&storage);
    return UT_OK;
}

void ut_socket_close(ut_socket *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}
