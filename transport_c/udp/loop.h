/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a driver, shared by loop.c (its thread), driver.c and control.c (the calls from outside).
 *
 * One lock guards all of it. The thread holds the lock except in ppoll, so a caller must be able to get in between:
 * with a plain mutex a busy thread would take the lock back before the caller has even woken up. Hence `waiting`:
 * callers announce themselves, and once a turn the thread stands back for them.
 */
#ifndef UT_UDP_LOOP_H
#define UT_UDP_LOOP_H

#include <pthread.h>
#include <sys/types.h>

#include "bell.h"
#include "coalesce.h"
#include "core/link/cap.h"
#include "core/link/link.h"
#include "driver.h"
#include "events.h"
#include "recv.h"
#include "send.h"

/* A trainer's bells. The trainer holds the other end of complete.fd, and shares the very file of submit_fd: it can
 * change that file's flags, its counter, and which processes it wakes, at any moment. So the thread neither reads nor
 * writes submit_fd, but hears it through epoll, edge by edge; and it sends on complete.fd with MSG_DONTWAIT, which no
 * flag of a file undoes. */
typedef struct ut_driver_session {
    bool used;
    uint32_t job;
    int submit_fd;
    ut_bell complete;
} ut_driver_session;

/* What the drivers of one host share. The last one that closes unmaps it. */
typedef struct ut_shared_link {
    ut_link link;
    ut_cap cap;     /* of what they send together */
    uint32_t lanes; /* bit per lane that is in use; atomic */
} ut_shared_link;

struct ut_driver {
    pthread_mutex_t lock;
    pthread_cond_t stood_back; /* signalled by a caller on its way out */
    uint32_t waiting;          /* callers that want the lock; atomic */
    pid_t pid;                 /* of the process that has the thread; a forked child has none */
    pthread_t thread;
    bool started, stopping;
    bool slept;         /* the thread slept, and has read no data since */
    int64_t slept_late; /* ns by which timers wake it late, smoothed */
    ut_ns clear_at;     /* when the data socket was last read, or seen empty */
    bool asleep;        /* the thread is in ppoll, or about to be: a change must wake it (ut_loop_poke) */
    int wake_fd;
    int bells_fd; /* epoll: the submit_fd of every session */

    ut_engine *engine;
    ut_shared_link *link; /* of the host */
    void *engine_memory;
    size_t engine_bytes;
    ut_engine_config engine_config;
    void *job_memory[UT_JOBS_MAX]; /* NULL: the number is free */
    size_t job_bytes[UT_JOBS_MAX];
    uint64_t prompt_jobs; /* that have a policy, so that their daemons are told at once; a bit per number */
    struct ut_job_keys *job_keys[UT_JOBS_MAX]; /* sealing.h; NULL: the job is not sealed */

    ut_driver_session sessions[UT_SESSIONS_MAX];
    uint64_t rung;   /* sessions to look at in the next turn, bit per session */
    uint64_t unrung; /* sessions whose bell is to be rung later */

    uint64_t polls, allocations, thread_moves;
    ut_coalesce coalesce;
    ut_ns slack_at;                   /* when to look at round trips again */
    uint64_t slack_seen[UT_JOBS_MAX]; /* bytes that had come from all peers of a job at the last look */
    int family;                       /* of both sockets; 0 if there are none */
    char error[256];

    ut_event_queue events;
    ut_socket sockets[2]; /* by enum ut_port */
    ut_sender sender;
    ut_receiver receiver;
};

/* The only source of memory for a driver: zeroed, page-aligned, touched when it is used. NULL and errno on failure. */
void *ut_driver_map(ut_driver *d, size_t bytes);

/* Takes the lock. False in a forked child: the child has the memory but not the thread, and perhaps a lock that no
 * thread will ever release. */
bool ut_driver_enter(ut_driver *d);
void ut_driver_leave(ut_driver *d);
/* Releases the lock after a change on which the thread has to act: to send, to ring, or to sleep less long. Returns
 * |ret|.
 */
int ut_driver_leave_poking(ut_driver *d, int ret);
/* Releases the lock and leaves a sentence for ut_driver_error. Returns |code|. */
__attribute__((format(printf, 3, 4))) int ut_driver_leave_failing(ut_driver *d, int code, const char *format, ...);
/* Stops listening to the session's bell and closes its descriptors. */
void ut_driver_close_session(ut_driver *d, ut_driver_session *s);
/* control.c */
bool ut_driver_has_job(const ut_driver *d, uint32_t job);
/* Releases the lock with a sentence that there is no such job. */
int ut_driver_leave_no_job(ut_driver *d, uint32_t job);
/* cap.c: these were sent past the engine. Under the lock. */
void ut_driver_count(ut_driver *d, uint32_t packets, uint64_t bytes);
/* sessions.c: the engine forgets the session, and its descriptors are closed. */
void ut_driver_drop_session(ut_driver *d, uint32_t session);

/* The thread's body; |driver| is a ut_driver. Returns when `stopping` is set and ut_loop_poke is called. */
void *ut_loop_main(void *driver);
/* Rings the trainers that have something new. Under the lock. */
void ut_loop_ring(ut_driver *d);
/* Makes the thread run a turn. May be called from any thread, with the lock or without. */
void ut_loop_poke(ut_driver *d);

#endif
