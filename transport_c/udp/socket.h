/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening one UDP socket. Everything is asked of the kernel once, and what the kernel granted is noted. An engine has
 * two sockets: a control packet in the middle of a data flow would end the kernel's GRO aggregate, so feedback has its
 * own port.
 *
 * What every datagram depends on is demanded (don't-fragment, the address family, a class that was asked for), and
 * opening fails without it. What
 * only makes the socket faster or better observed is tried (offloads, big buffers, drop counters, congestion marks).
 */
#ifndef UT_UDP_SOCKET_H
#define UT_UDP_SOCKET_H

#include "core/face/engine.h"

typedef struct ut_socket {
    int fd;                  /* -1 when closed; close-on-exec, non-blocking */
    uint16_t port;           /* as bound, host byte order */
    uint32_t receive_buffer; /* bytes as granted: half of the kernel's limit, which counts its own overhead too */
    uint32_t send_buffer;    /* likewise */
    bool gso;                /* send.c clears it when a path refuses */
    bool gro;
    bool aggregated;     /* aggregates come here: recv.c reads few messages at once */
    uint32_t drops_seen; /* the kernel's 32-bit counter, as last told */
    uint64_t drops;      /* the same in 64 bits: receive buffers (datagrams or aggregates) dropped since start */
} ut_socket;

typedef struct ut_socket_options {
    uint32_t receive_buffer;
    uint32_t send_buffer;
    uint32_t packet_bytes; /* for the GSO probe */
    bool gso;              /* probe, and use if there */
    bool gro;
    bool ect;      /* mark what is sent as ECN-capable, ECT(0) */
    uint32_t dscp; /* mark it with this class (RFC 2474), 0 to 63; 0: with none */
    bool urgent;   /* ahead of others in this host's own queues, where they have bands (pfifo_fast, mq, prio) */
} ut_socket_options;

/* Makes a socket address of |port| and the numeric |text| (IPv4 dotted quad, or IPv6, with %scope if link-local).
 * UT_ERR_ARGUMENT if |text| is anything else; names are never looked up. */
int ut_address_parse(const char *text, uint16_t port, ut_addr *ret);
/* AF_INET or AF_INET6. */
int ut_address_family(const ut_addr *address);

/* Opens a socket bound to |bind|. If the address cannot be had it returns UT_ERR_SYSTEM, writes a sentence into
 * |error|, and leaves |s| closed. */
int ut_socket_open(ut_socket *s, const ut_addr *bind, const ut_socket_options *options, char *error, size_t error_len);
void ut_socket_close(ut_socket *s);

#endif
