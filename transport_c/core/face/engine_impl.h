/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's own struct. Only the files of this room use it: engine.c (tables), submit.c (what trainers ask),
 * engine_in.c and engine_out.c (packets).
 */
#ifndef UT_ENGINE_IMPL_H
#define UT_ENGINE_IMPL_H

#include "core/base/calls.h"
#include "core/face/engine.h"
#include "core/link/cap.h"
#include "core/partial/intake.h"

/* The low bits of a connection id are the numbers of job and host, so that a look-up is one comparison; the other bits
 * are random. */
enum { UT_CID_JOB_BITS = 4, UT_CID_HOST_BITS = 6 };
_Static_assert(1 << UT_CID_JOB_BITS == UT_JOBS_MAX && 1 << UT_CID_HOST_BITS == UT_HOSTS_MAX,
               "ids hold any job and host");

typedef struct ut_engine_session {
    bool used;
    uint32_t job;
    ut_session_memory memory;
    uint64_t next_seq;       /* op_seq of the submission that must come next */
    uint64_t taken, written; /* the engine's private counts of the two rings */
    ut_calls calls;          /* calls that have no answer yet */
} ut_engine_session;

/* How long data has waited for a turn of the engine. */
typedef struct ut_engine_wait {
    ut_ns longest;    /* the oldest datagram that the turn reads */
    uint64_t packets; /* that had come before the turn */
    uint64_t votes;   /* packets behind `late`, this turn's left aside */
} ut_engine_wait;

struct ut_engine {
    ut_engine_config config;
    uint64_t random;
    uint64_t wakeups; /* sessions with new completions */
    uint64_t retry;   /* sessions whose submissions may be taken now, although they did not ring */
    uint32_t retry_first;
    uint32_t events, event_first;
    uint32_t turn;       /* the job that sends next, so that jobs share the link */
    ut_host host;        /* what is handed to each job */
    ut_addr from;        /* of the datagrams that are handed over; `len` 0: not known */
    uint32_t port;       /* that they came to */
    bool path_speaks[2]; /* by enum ut_port: a path packet may be due, so it is worth to look for it */
    ut_work work;
    ut_cap_taker cap; /* of config.cap */
    /* Credit: engine_credit.c. */
    ut_pool pool;
    ut_pool_count came;
    ut_ns late;                                 /* how long packets have waited for this host to read them, smoothed */
    ut_engine_wait waited;                      /* what the newest turn adds to that */
    ut_ns credit_at;                            /* when to look again although nothing came */
    ut_inlet inlet[UT_JOBS_MAX * UT_HOSTS_MAX]; /* scratch */
    ut_stats stats;
    ut_job *job[UT_JOBS_MAX];
    ut_engine_session session[UT_SESSIONS_MAX];
    ut_event event[UT_EVENTS_MAX];
    ut_feedback feedback; /* scratch */
};

/* engine_credit.c */
void ut_engine_credit_init(ut_engine *e);
/* So many packets came that were not seen before, of |bytes| in all, the last one |numbers| beyond the newest number of
 * their path; if they are several, their own numbers follow each other. */
void ut_engine_came(ut_engine *e, uint32_t packets, uint32_t bytes, uint64_t numbers);
/* Hands out credit if anything has changed. */
void ut_engine_credit_tick(ut_engine *e, ut_ns now);

/* engine_path.c */
/* A packet of |host| was opened that is newer than all before it in its count. */
void ut_engine_came_from(ut_engine *e, const ut_job *j, uint32_t host, ut_ns now);
/* A path packet of |host| came. */
void ut_engine_path(ut_engine *e, ut_job *j, uint32_t host, const ut_path *p, ut_ns now);
/* Runs the timers of |host|'s addresses. |unanswered|: data that was sent then was not heard of in time; UT_NEVER for
 * none. The host may have a data port that only listens, and is elsewhere by now. */
void ut_engine_path_tick(ut_engine *e, ut_job *j, uint32_t host, ut_ns unanswered, ut_ns now);

/* valid.c */
bool ut_engine_config_valid(const ut_engine_config *c);
bool ut_job_config_valid(const ut_engine_config *engine, const ut_job_config *c);
bool ut_job_options_valid(const ut_job_options *o, uint32_t hosts, uint32_t world);
/* A job that |began| with those, which are valid, may have |o| while it runs: it stays partial, coded, or neither, as
 * it is laid out. Assumes that |o| has the same code. That is not looked at again: of 64 hosts it takes 1.4 ms, for
 * which the engine would stand still with each epoch. */
bool ut_job_options_follow(const ut_job_options *began, const ut_job_options *o, uint32_t hosts, uint32_t world);

/* submit.c */
/* The functions of ut_host of the same names. */
uint32_t ut_engine_sessions_due(void *engine, uint32_t job, uint64_t seq);
uint64_t ut_engine_next_call(void *engine, uint32_t job);
bool ut_engine_anyone_waits(void *engine, uint32_t job);
/* Answers the requests that wait for room and whose deadline has come: their rank gets its own value back. */
void ut_engine_expire(ut_engine *e, ut_ns now);
ut_ns ut_engine_next_expiry(const ut_engine *e);

#endif
