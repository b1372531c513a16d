/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending: bursts wait here in two short queues, data and feedback, until one sendmmsg each takes them. A socket that
 * is full keeps its queue; the other socket goes on, because an acknowledgement must not wait behind data.
 *
 * Where nothing stands before the link there is no such wait. Then feedback goes right behind data to the same host,
 * through the data socket: one system call here, and one wake-up there.
 *
 * With GSO (segmentation offload) a burst is one message, and the kernel cuts it into datagrams. Where a path refuses
 * that, the same burst goes out as separate datagrams, and so do all later bursts; the core never learns of it. GSO is
 * only blamed when the separate datagram gets through, since the kernel says EINVAL for a bad address too.
 *
 * Data is only asked for while little of it stands in the host's own queue (backlog.h), and as fast as the host's link
 * carries it (pace.h).
 *
 * A datagram that the kernel refuses for any other reason counts as lost in the network, and is repaired by the same
 * means.
 */
#ifndef UT_UDP_SEND_H
#define UT_UDP_SEND_H

#include <sys/socket.h>

#include "backlog.h"
#include "pace.h"
#include "socket.h"

enum {
    UT_SEND_QUEUE = 8, /* bursts that may wait for one socket */
    UT_SEND_SLOTS = 2 * UT_SEND_QUEUE,
    UT_SEND_MESSAGES = UT_SEGMENTS_MAX, /* of one sendmmsg */
};

typedef struct ut_send_slot {
    uint32_t sent; /* segments that were sent already; above 0 only without GSO */
    bool plain;    /* the kernel refused it as one message: it goes as separate datagrams */
    ut_burst burst;
} ut_send_slot;

typedef struct ut_send_queue {
    ut_socket *socket;
    bool blocked; /* the socket is full: wait until it is writable */
    unsigned first, count;
    uint8_t slots[UT_SEND_QUEUE];
} ut_send_queue;

typedef struct ut_sender {
    uint64_t calls, blocked, errors, looks;
    int last_error; /* errno of the last refusal; 0 if there was none */
    uint32_t free;  /* mask of slots */
    unsigned filling;
    ut_send_queue queues[2]; /* by enum ut_port */
    ut_backlog backlog;      /* of the data socket */
    ut_pace pace;            /* likewise */
    uint64_t pushed;         /* bytes of data since the last look at it */
    bool sent;               /* some of it has gone */
    struct mmsghdr messages[UT_SEND_MESSAGES];
    struct iovec iovs[UT_SEND_MESSAGES];
    _Alignas(struct cmsghdr) uint8_t control[UT_SEND_QUEUE][CMSG_SPACE(sizeof(uint16_t))];
    ut_send_slot slots[UT_SEND_SLOTS];
} ut_sender;

/* |sockets| are two, by enum ut_port; they must outlive the sender. */
void ut_sender_init(ut_sender *s, ut_socket *sockets);
/* Whether the core may be asked for a burst of |port|: there is room, and nothing waits for the socket or its link. A
 * burst that was asked for early would only grow old here, while the core still knows what is most urgent. */
bool ut_sender_wants(const ut_sender *s, unsigned port);
/* The most bytes that the next burst of data should have; UINT64_MAX if there is no bound, 0 if none may go now. */
uint64_t ut_sender_burst(const ut_sender *s);
/* When data may go that may not go now; UT_NEVER if it may. */
ut_ns ut_sender_wake(const ut_sender *s);
/* Looks at what stands in the queue of the data socket, if that is due: to be called before data is asked for, and
 * after it was sent. |now| is right now. */
void ut_sender_look(ut_sender *s, ut_ns now);
/* A burst for the caller to fill in and then to push. Assumes that ut_sender_wants its port. */
ut_burst *ut_sender_slot(ut_sender *s);
void ut_sender_push(ut_sender *s);
/* Sends as much as the sockets take that are not blocked. */
void ut_sender_flush(ut_sender *s);
/* The socket of |port| has room again. */
void ut_sender_unblock(ut_sender *s, unsigned port);

#endif
