/* SPDX-License-Identifier: Apache-2.0
 *
 * Events on their way from the engine's thread to the daemon, which sleeps on a descriptor. Most of them tell that an
 * op has ended, which the daemon only counts and keeps. Waking it for each would take CPU at the very moment at which
 * the trainers want theirs, for they have just got their results. So such events *gather*, and wake it when there are
 * sixteen of them, or ten times a second; all others, and those of jobs in which the daemon has a say in when an op
 * begins, wake it at once. Whoever asks is given what is there, gathered or not.
 */
#ifndef UT_UDP_EVENTS_H
#define UT_UDP_EVENTS_H

#include "core/face/engine.h"

#include <pthread.h>

enum {
    UT_EVENTS_GATHER_NS = 100 * 1000 * 1000, /* a wake-up for one event costs the daemon as much as ten events */
    UT_EVENTS_GATHER = 16,                   /* half a millisecond of Python, and no op is to wait for more */
};

/* It has a lock of its own: reading events must not wait for a burst to be sent. */
typedef struct ut_event_queue {
    pthread_mutex_t lock;
    int fd;       /* eventfd; readable from the time on at which the daemon is to wake until nothing is left */
    bool rung;    /* it is readable */
    bool starved; /* the engine still has events that found no room here */
    ut_ns due;    /* when to wake the daemon; UT_NEVER if nothing waits, or it is awake already */
    uint32_t first, count;
    ut_event entries[UT_EVENTS_MAX];
} ut_event_queue;

/* |q| is all zero but for its lock, which the caller makes and ends. False and errno if there is no descriptor to be
 * had. */
bool ut_events_open(ut_event_queue *q);
void ut_events_close(ut_event_queue *q);
/* Moves |engine|'s events to the queue, as far as they fit, and wakes the daemon if that is due. |prompt|: jobs of
 * which nothing gathers, a bit per number. */
void ut_events_take(ut_event_queue *q, ut_engine *engine, uint64_t prompt, ut_ns now);
/* When ut_events_take is to be called although nothing has happened; UT_NEVER if it is not. */
ut_ns ut_events_due(ut_event_queue *q);
/* The oldest event; false if there is none. |ret_starved|: the engine may have more, which wait for this room. */
bool ut_events_poll(ut_event_queue *q, ut_event *ret, bool *ret_starved);

#endif
