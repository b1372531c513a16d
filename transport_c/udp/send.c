/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "send.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>

_Static_assert(UT_SEND_SLOTS <= 32, "the mask of free slots has 32 bits");

void ut_sender_init(ut_sender *s, ut_socket *sockets)
{
    memset(s, 0, offsetof(ut_sender, messages));
    s->free = (uint32_t)((UINT64_C(1) << UT_SEND_SLOTS) - 1);
    for (unsigned port = 0; port < 2; port++)
        s->queues[port].socket = &sockets[port];
}

bool ut_sender_wants(const ut_sender *s, unsigned port)
{
    return !s->queues[port].blocked && s->queues[port].count < UT_SEND_QUEUE &&
           (port != UT_PORT_DATA || ut_sender_burst(s) > 0);
}

uint64_t ut_sender_burst(const ut_sender *s)
{
    return UT_MIN2(ut_backlog_burst(&s->backlog, s->pushed), ut_pace_room(&s->pace));
}

ut_ns ut_sender_wake(const ut_sender *s)
{
    const ut_ns drained = ut_backlog_wake(&s->backlog);
    const ut_ns due = ut_pace_wake(&s->pace, &s->backlog);
    return drained == UT_NEVER ? due : due == UT_NEVER ? drained : UT_MAX2(drained, due);
}

void ut_sender_look(ut_sender *s, ut_ns now)
{
    int queued;
    const bool full = s->backlog.full, refill = ut_pace_count(&s->pace, &s->backlog, now);
    if ((refill || ut_backlog_due(&s->backlog, s->sent, now)) &&
        ioctl(s->queues[UT_PORT_DATA].socket->fd, SIOCOUTQ, &queued) == 0 && queued >= 0) {
        ut_backlog_look(&s->backlog, (uint64_t)queued, s->sent, now);
        s->looks++;
        if (refill || (s->backlog.full && !full))
            ut_pace_step(&s->pace, &s->backlog);
    }
    s->pushed = 0;
    s->sent = false;
}

ut_burst *ut_sender_slot(ut_sender *s)
{
    assert(s->free != 0);
    s->filling = (unsigned)__builtin_ctz(s->free);
    return &s->slots[s->filling].burst;
}

void ut_sender_push(ut_sender *s)
{
    ut_send_slot *slot = &s->slots[s->filling];
    assert(slot->burst.port < 2 && slot->burst.segments >= 1 && slot->burst.segments <= UT_SEGMENTS_MAX);
    assert(slot->burst.bytes <= UT_BURST_BYTES);
    assert(slot->burst.segments == 1 || (slot->burst.segments - 1) * slot->burst.segment_bytes < slot->burst.bytes);
    ut_send_queue *q = &s->queues[slot->burst.port];
    assert(q->count < UT_SEND_QUEUE);
    slot->sent = 0;
    slot->plain = false;
    if (slot->burst.port == UT_PORT_DATA) {
        s->pushed += slot->burst.bytes;
        ut_pace_sent(&s->pace, slot->burst.bytes);
    }
    s->free &= ~(UINT32_C(1) << s->filling);
    q->slots[(q->first + q->count++) % UT_SEND_QUEUE] = (uint8_t)s->filling;
}

static ut_send_slot *queue_at(ut_sender *s, const ut_send_queue *q, unsigned i)
{
    return &s->slots[q->slots[(q->first + i) % UT_SEND_QUEUE]];
}

static void queue_pop(ut_sender *s, ut_send_queue *q)
{
    s->free |= UINT32_C(1) << q->slots[q->first];
    q->first = (q->first + 1) % UT_SEND_QUEUE;
    q->count--;
}

/* Segments of this burst that the next message carries. */
static uint32_t message_segments(const ut_send_queue *q, const ut_send_slot *slot)
{
    return q->socket->gso && !slot->plain ? slot->burst.segments : 1;
}

/* |bytes| of the burst, from |at| on, as one message. */
static struct msghdr *part_message(ut_sender *s, unsigned n, const ut_burst *b, size_t at, size_t bytes)
{
    struct msghdr *m = &s->messages[n].msg_hdr;
    s->iovs[n] = (struct iovec){.iov_base = (uint8_t *)(uintptr_t)b->memory + at, .iov_len = bytes};
    *m = (struct msghdr){.msg_name = b->to.len ? (void *)(uintptr_t)b->to.bytes : NULL,
                         .msg_namelen = b->to.len,
                         .msg_iov = &s->iovs[n],
                         .msg_iovlen = 1};
    return m;
}

/* Has the kernel cut the message into segments. */
static void ask_for_segments(struct msghdr *m, const ut_burst *b, uint8_t *control)
{
    if (b->segments == 1)
        return;
    m->msg_control = control;
    m->msg_controllen = CMSG_SPACE(sizeof(uint16_t));
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    c->cmsg_level = SOL_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    uint16_t segment = (uint16_t)b->segment_bytes;
    memcpy(CMSG_DATA(c), &segment, sizeof(segment));
}

/* Lays out as much of the queue as fits one sendmmsg. */
static unsigned build_messages(ut_sender *s, const ut_send_queue *q)
{
    unsigned n = 0;
    for (unsigned i = 0; i < q->count && n < UT_SEND_MESSAGES; i++) {
        const ut_send_slot *slot = queue_at(s, q, i);
        const ut_burst *b = &slot->burst;
        if (message_segments(q, slot) == b->segments) {
            ask_for_segments(part_message(s, n++, b, 0, b->bytes), b, s->control[i]);
            continue;
        }
        for (uint32_t segment = slot->sent; segment < b->segments && n < UT_SEND_MESSAGES; segment++) {
            size_t at = (size_t)segment * b->segment_bytes;
            part_message(s, n++, b, at, UT_MIN2(b->segment_bytes, b->bytes - at));
        }
    }
    return n;
}

/* The first message of the queue is gone, one way or the other. */
static void advance(ut_sender *s, ut_send_queue *q)
{
    ut_send_slot *slot = queue_at(s, q, 0);
    slot->sent += message_segments(q, slot);
    if (slot->sent >= slot->burst.segments)
        queue_pop(s, q);
}

static void account_sent(ut_sender *s, ut_send_queue *q, unsigned n)
{
    /* A burst that was refused whole and is let through in pieces: the path wants no GSO. Only now is it given up, and
     * only after this batch is accounted, since the layout of the batch depends on it. */
    bool refuted = false;
    for (unsigned i = 0; i < n; i++) {
        refuted |= queue_at(s, q, 0)->plain;
        advance(s, q);
    }
    if (refuted)
        q->socket->gso = false;
}

/* Why the first message of the queue did not go. Returns false if it is to wait. */
static bool account_refused(ut_sender *s, ut_send_queue *q, int why)
{
    ut_send_slot *slot = queue_at(s, q, 0);
    if (why == EINTR)
        return true;
    if (why == EAGAIN || why == EWOULDBLOCK) {
        q->blocked = true;
        s->blocked++;
        return false;
    }
    if ((why == EIO || why == EINVAL) && message_segments(q, slot) > 1) {
        slot->plain = true;
        return true;
    }
    s->last_error = why;
    if (why == ENOBUFS || why == ENOMEM || why == ECONNREFUSED) {
        s->errors += message_segments(q, slot);
        advance(s, q);
        return true;
    }
    /* The address or the size will not do, so neither will the rest of the burst: one system call for it, not forty. */
    s->errors += slot->burst.segments - slot->sent;
    queue_pop(s, q);
    return true;
}

static void flush_queue(ut_sender *s, ut_send_queue *q)
{
    while (q->count > 0 && !q->blocked) {
        unsigned n = build_messages(s, q);
        s->calls++;
        int sent = sendmmsg(q->socket->fd, s->messages, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        s->sent |= sent > 0 && q == &s->queues[UT_PORT_DATA];
        if (sent > 0)
            account_sent(s, q, (unsigned)sent);
        else if (!account_refused(s, q, sent < 0 ? errno : EAGAIN))
            return;
    }
}

/* The place behind the last burst of data to |to|; 0 if there is none. */
static unsigned behind_data(ut_sender *s, const ut_addr *to)
{
    const ut_send_queue *data = &s->queues[UT_PORT_DATA];
    unsigned place = 0;
    for (unsigned i = 0; i < data->count && to->len > 0; i++) {
        const ut_addr *a = &queue_at(s, data, i)->burst.to;
        if (a->len == to->len && memcmp(a->bytes, to->bytes, to->len) == 0)
            place = i + 1;
    }
    return place;
}

/* Puts |slot| at |place| in the queue, before what is there. */
static void queue_insert(ut_send_queue *q, unsigned place, uint8_t slot)
{
    assert(q->count < UT_SEND_QUEUE && place <= q->count);
    for (unsigned i = q->count++; i > place; i--)
        q->slots[(q->first + i) % UT_SEND_QUEUE] = q->slots[(q->first + i - 1) % UT_SEND_QUEUE];
    q->slots[(q->first + place) % UT_SEND_QUEUE] = slot;
}

/* Feedback goes with the data to the same host where nothing stands before the link, and this data will not either. */
static void take_along(ut_sender *s)
{
    ut_send_queue *data = &s->queues[UT_PORT_DATA], *feedback = &s->queues[UT_PORT_FEEDBACK];
    if (data->blocked || s->backlog.queued > 0 || ut_sender_burst(s) == 0)
        return;
    for (unsigned n = feedback->count; n > 0; n--) {
        const uint8_t slot = feedback->slots[feedback->first];
        ut_burst *b = &s->slots[slot].burst;
        const unsigned place = data->count < UT_SEND_QUEUE ? behind_data(s, &b->beside) : 0;
        feedback->first = (feedback->first + 1) % UT_SEND_QUEUE;
        feedback->count--;
        if (place)
            b->to = b->beside;
        queue_insert(place ? data : feedback, place ? place : feedback->count, slot);
    }
}

void ut_sender_flush(ut_sender *s)
{
    take_along(s);
    /* Feedback first: it is short, and somebody's window waits for it. */
    flush_queue(s, &s->queues[UT_PORT_FEEDBACK]);
    flush_queue(s, &s->queues[UT_PORT_DATA]);
}

void ut_sender_unblock(ut_sender *s, unsigned port)
{
    s->queues[port].blocked = false;
}
