/* SPDX-License-Identifier: Apache-2.0 */
#include "events.h"
#include "core/base/bits.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool ut_events_open(ut_event_queue *q)
{
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    q->due = UT_NEVER;
    return q->fd >= 0;
}

void ut_events_close(ut_event_queue *q)
{
    if (q->fd >= 0)
        close(q->fd);
}

static ut_ns due_of(const ut_event_queue *q, const ut_event *e, uint64_t prompt, ut_ns now)
{
    bool of_ops = e->kind == UT_EVENT_OP_DONE || e->kind == UT_EVENT_QUANT;
    bool gathers = of_ops && !ut_bits_have(prompt, e->job) && q->count < UT_EVENTS_GATHER;
    return gathers ? now + UT_EVENTS_GATHER_NS : now;
}

static void ring_if_due(ut_event_queue *q, ut_ns now)
{
    const uint64_t one = 1;
    if (q->rung || now < q->due)
        return;
    if (write(q->fd, &one, sizeof(one)) < 0)
        assert(errno == EAGAIN); /* it is ours alone, and holds 0 or 1 */
    q->rung = true;
    q->due = UT_NEVER;
}

void ut_events_take(ut_event_queue *q, ut_engine *engine, uint64_t prompt, ut_ns now)
{
    pthread_mutex_lock(&q->lock);
    while (q->count < UT_EVENTS_MAX) {
        ut_event *e = &q->entries[(q->first + q->count) % UT_EVENTS_MAX];
        if (!ut_engine_poll_event(engine, e))
            break;
        q->count++;
        e->at = now;
        if (!q->rung)
            q->due = UT_MIN2(q->due, due_of(q, e, prompt, now));
    }
    q->starved = q->count == UT_EVENTS_MAX;
    ring_if_due(q, now);
    pthread_mutex_unlock(&q->lock);
}

ut_ns ut_events_due(ut_event_queue *q)
{
    pthread_mutex_lock(&q->lock);
    const ut_ns due = q->due;
    pthread_mutex_unlock(&q->lock);
    return due;
}

bool ut_events_poll(ut_event_queue *q, ut_event *ret, bool *ret_starved)
{
    uint64_t rings;
    pthread_mutex_lock(&q->lock);
    const bool got = q->count > 0;
    *ret_starved = got && q->starved;
    if (got) {
        *ret = q->entries[q->first];
        q->first = (q->first + 1) % UT_EVENTS_MAX;
        q->count--;
        q->starved = false;
        if (q->count == 0) {
            if (q->rung && read(q->fd, &rings, sizeof(rings)) < 0)
                rings = 0; /* somebody else has read it: it is not readable, as it should be */
            q->rung = false;
            q->due = UT_NEVER;
        }
    }
    pthread_mutex_unlock(&q->lock);
    return got;
}
