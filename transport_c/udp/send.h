/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending: bursts wait here in two short queues, data and feedback, until one sendmmsg each takes them. A socket that
 * is full keeps its queue; the other one goes on, for an acknowledgement must not wait behind data.
 *
 * With GSO a burst is one message and the kernel cuts it. Where a path refuses that, the same burst goes out as
 * separate datagrams, and from then on all of them: the core never learns of it. GSO is only blamed when the plain
 * datagram gets through, since the kernel says EINVAL for a bad address too.
 *
 * What the kernel refuses for any other reason is lost, as if the network had lost it, and repaired by the same means.
 */
#ifndef UT_UDP_SEND_H
#define UT_UDP_SEND_H

#include <sys/socket.h>

#include "socket.h"

enum {
    UT_SEND_QUEUE = 8, /* bursts that may wait for one socket */
    UT_SEND_SLOTS = 2 * UT_SEND_QUEUE,
    UT_SEND_MESSAGES = UT_SEGMENTS_MAX, /* of one sendmmsg */
    UT_SEND_IOVS = 3 * UT_SEGMENTS_MAX, /* a cut at every segment adds at most one piece each */
};

typedef struct ut_send_slot {
    uint32_t sent; /* segments that are gone already; only ever above 0 without GSO */
    bool plain;    /* refused as one message: goes as separate datagrams */
    ut_burst burst;
} ut_send_slot;

typedef struct ut_send_queue {
    ut_socket *socket;
    bool blocked; /* the socket is full: wait until it is writable */
    unsigned first, count;
    uint8_t slots[UT_SEND_QUEUE];
} ut_send_queue;

typedef struct ut_sender {
    uint64_t calls, blocked, errors;
    int last_error; /* errno of the last refusal; 0 if there was none */
    uint32_t free;  /* mask of slots */
    unsigned filling;
    ut_send_queue queues[2]; /* by enum ut_port */
    struct mmsghdr messages[UT_SEND_MESSAGES];
    struct iovec iovs[UT_SEND_IOVS];
    _Alignas(struct cmsghdr) uint8_t control[UT_SEND_QUEUE][CMSG_SPACE(sizeof(uint16_t))];
    ut_send_slot slots[UT_SEND_SLOTS]; /* never moved: a burst points into itself */
} ut_sender;

/* |sockets| two, by enum ut_port; they must outlive the sender. */
void ut_sender_init(ut_sender *s, ut_socket *sockets);
/* Whether a burst of |port| may be asked for: there is room, and nothing waits for the socket. What is asked for early
 * would only grow old here, while the core still knows what is most urgent. */
bool ut_sender_wants(const ut_sender *s, unsigned port);
/* A burst to be filled in, then pushed. Assumes that its port is wanted. */
ut_burst *ut_sender_slot(ut_sender *s);
void ut_sender_push(ut_sender *s);
/* Sends what the sockets that are not blocked will take. */
void ut_sender_flush(ut_sender *s);
/* The socket of |port| has room again. */
void ut_sender_unblock(ut_sender *s, unsigned port);
/* Forgets all data that waits: its payload pointers are about to go stale. Feedback is whole in its burst and stays. */
void ut_sender_drop_data(ut_sender *s);

#endif
