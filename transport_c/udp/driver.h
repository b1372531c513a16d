/* SPDX-License-Identifier: Apache-2.0
 *
 * The UDP driver: one engine, one thread, two sockets. The only C with system calls, and what Python sees of the fast path.
 *
 * The thread holds the driver's lock except while it sleeps in ppoll, so every call below may come from any thread; each
 * returns in microseconds. Errors: a negative ut_error; ut_driver_error() then has a sentence for people.
 */
#ifndef UT_DRIVER_H
#define UT_DRIVER_H

#include "../core/engine.h"

typedef struct ut_driver ut_driver;

typedef struct ut_driver_config {
    const char *bind;            /* numeric IPv4 or IPv6 address */
    uint16_t data_port;          /* UDP; 0 picks one */
    uint16_t feedback_port;      /* UDP; 0 picks one */
    uint32_t receive_buffer;     /* bytes asked of the kernel; 0: 8 MiB */
    uint32_t send_buffer;        /* bytes asked of the kernel; 0: 512 KiB */
    uint32_t packet_bytes;       /* 0: 1472 over IPv4, 1448 over IPv6 (MTU 1500) */
    int32_t gso;                 /* 1: probe and use, 0: off */
    int32_t gro;                 /* 1: probe and use, 0: off */
    uint64_t seed;
} ut_driver_config;

typedef struct ut_driver_info {
    uint16_t data_port, feedback_port; /* as bound */
    uint32_t packet_bytes;
    uint32_t receive_buffer, send_buffer; /* as granted */
    int32_t gso, gro;                  /* in use now (GSO is given up at run time when a path refuses it) */
    int32_t isa;                       /* enum ut_isa */
    int32_t event_fd;                  /* an eventfd that becomes readable when ut_driver_poll_event has something; the driver owns it */
} ut_driver_info;

typedef struct ut_driver_stats {
    ut_stats engine;
    uint64_t send_calls, receive_calls, polls, send_blocked, send_errors, gro_batches;
    uint64_t cpu_ns;                   /* of the engine thread (CLOCK_THREAD_CPUTIME_ID) */
    uint64_t allocations;              /* since start on the data path: 0 */
} ut_driver_stats;

/* Opens, probes, starts the thread. NULL on failure, with a sentence in |error| (of |error_len| bytes). */
ut_driver *ut_driver_open(const ut_driver_config *config, char *error, size_t error_len);
/* Stops the thread, closes the sockets, unmaps what it mapped. NULL is fine. */
void ut_driver_close(ut_driver *driver);
void ut_driver_get_info(ut_driver *driver, ut_driver_info *ret);
void ut_driver_get_stats(ut_driver *driver, ut_driver_stats *ret);
const char *ut_driver_error(ut_driver *driver);

/* Allocates the job's memory (address space, touched lazily) and adds it. Returns the job's number, or an error. */
int ut_driver_job_add(ut_driver *driver, const ut_job_config *config);
int ut_driver_job_remove(ut_driver *driver, uint32_t job);
int ut_driver_peer_listen(ut_driver *driver, uint32_t job, uint32_t host, uint32_t *ret_cid);
/* |address| is numeric, of the same family as `bind`. */
int ut_driver_peer_connect(ut_driver *driver, uint32_t job, uint32_t host, const char *address, uint16_t data_port,
                           uint16_t feedback_port, uint32_t cid);
int ut_driver_peer_absent(ut_driver *driver, uint32_t job, uint32_t host);
int ut_driver_peer_stats(ut_driver *driver, uint32_t job, uint32_t host, ut_peer_stats *ret);
int64_t ut_driver_next_op_seq(ut_driver *driver, uint32_t job);

/* Maps the three memfds (the caller may close its descriptors afterwards; the driver keeps duplicates of the eventfds),
 * watches |submit_fd|, rings |complete_fd|. Returns the session's number, or an error. */
int ut_driver_session_add(ut_driver *driver, uint32_t job, int submission_fd, int completion_fd, int arena_fd,
                          uint64_t arena_bytes, int submit_fd, int complete_fd, uint64_t first_op_seq);
int ut_driver_session_remove(ut_driver *driver, uint32_t session);

/* 1 and an event, or 0. */
int ut_driver_poll_event(ut_driver *driver, ut_event *ret);

/* CLOCK_MONOTONIC in nanoseconds, the clock of every deadline. */
uint64_t ut_driver_now(void);

#endif
