/* SPDX-License-Identifier: Apache-2.0
 *
 * A relay: one UDP socket and one thread that forward sealed datagrams between hosts of a job that cannot reach each
 * other. It has no key of theirs and changes nothing in what it forwards; relay_table.h says whom it serves. The engine
 * and its sockets know nothing of it.
 *
 * All that passes goes through one cap, in bytes a second, and through that of all that the host sends
 * (core/link/cap.h). What comes faster waits in the kernel's buffer of the socket, and is lost where that is full, as
 * at a slow link: the congestion control of the ends sees it as such.
 *
 * Ends say where they are by *hellos*, 32 bytes from each of their sockets, which also keep the mappings of a NAT open.
 * They are authenticated by who asked for the end, not here: a hello from the address of the end's host is handed on by
 * ut_relay_poll_hello, anything else counts as refused. Nothing is ever answered.
 *
 * Any thread may call these functions; all return in microseconds.
 */
#ifndef UT_UDP_RELAY_H
#define UT_UDP_RELAY_H

#include "core/link/cap.h"
#include "relay_table.h"

typedef struct ut_relay ut_relay;

enum {
    UT_HELLO_BYTES = 32,
    UT_HELLO_SIGNED = 16, /* of them the mac is made */
    UT_HELLO_KIND = 15,   /* low nibble of the first byte; the high one is UT_WIRE_VERSION */
    UT_RELAY_HELLOS = 64, /* that wait to be taken; more are dropped, and said again by their senders */
    UT_ADDRESS_TEXT = 64,
};

typedef struct ut_relay_hello {
    uint32_t end, port; /* port: enum ut_port */
    uint64_t number;    /* as the sender counts its hellos */
    uint8_t bytes[UT_HELLO_SIGNED];
    uint8_t mac[16];
    ut_addr from;
} ut_relay_hello;

typedef struct ut_relay_stats {
    uint64_t packets, bytes; /* forwarded */
    uint64_t refused;        /* that came from nobody's end, or under nobody's id */
    uint64_t held;           /* times that the cap made it wait */
    uint64_t send_errors;    /* that the kernel did not take */
    uint64_t drops;          /* that found no room in the socket's buffer */
    uint64_t ends, ways;     /* now */
} ut_relay_stats;

/* |rate|: bytes a second that it forwards at most; not 0. |cap|: of all that this host sends (ut_driver_cap), NULL for
 * none; it must be there until the relay is closed. NULL on failure, with a sentence in |error|. */
ut_relay *ut_relay_open(const char *bind, uint16_t port, uint64_t rate, struct ut_cap *cap, char *error,
                        size_t error_len);
void ut_relay_close(ut_relay *relay);
uint16_t ut_relay_port(ut_relay *relay);
/* Readable while hellos wait. */
int ut_relay_fd(ut_relay *relay);
void ut_relay_set_rate(ut_relay *relay, uint64_t rate);
void ut_relay_get_stats(ut_relay *relay, ut_relay_stats *ret);

/* Takes the oldest hello; false if none waits. */
bool ut_relay_poll_hello(ut_relay *relay, ut_relay_hello *ret);
/* |address| is numeric, of the family of the relay's; see relay_table.h for these and their errors. */
int ut_relay_add_end(ut_relay *relay, const char *address);
int ut_relay_remove_end(ut_relay *relay, uint32_t end);
int ut_relay_place_end(ut_relay *relay, const ut_relay_hello *hello);
int ut_relay_add_way(ut_relay *relay, uint32_t from, uint32_t to, uint32_t cid);
int ut_relay_remove_way(ut_relay *relay, uint32_t way);
/* Bytes that went a way since it was added; 0 if there is no such way. */
uint64_t ut_relay_way_bytes(ut_relay *relay, uint32_t way);
/* Where the relay sees a socket of an end: its numeric address in |ret| (of UT_ADDRESS_TEXT bytes), and its port. 0:
 * not known. */
uint16_t ut_relay_end_port(ut_relay *relay, uint32_t end, uint32_t port, char *ret);

#endif
