/* SPDX-License-Identifier: Apache-2.0
 *
 * A network inside one process: engines of several hosts, and queues between them in place of sockets. It is the third
 * shell around the core, beside the UDP driver and the simulator. The fake daemon of `ultima.testing` drives it, so
 * what a program meets on the fake is decided by the same code as in production.
 *
 * There is no clock here and no thread. The caller says what time it is, and may say that hours have passed. Everything
 * that falls due until then happens in its order and at its own moment. A datagram takes UT_LAN_WAY_NS, and what its
 * path adds; that alone must not make the caller wait. So the lan runs ahead of the caller by up to UT_LAN_AHEAD_NS.
 *
 * One thread at a time may use a lan. Between two calls of ut_lan_run the caller may use the engines as engine.h says.
 */
#ifndef UT_LAN_H
#define UT_LAN_H

#include "core/face/engine.h"

enum {
    UT_LAN_WAY_NS = 10000,     /* one way between two hosts of a rack */
    UT_LAN_AHEAD_NS = 1000000, /* a hundred ways: enough for a small op, too little for a deadline to be early by */
    UT_LAN_SURE = 1000000,     /* of ut_lan_path: every packet is lost */
};

typedef struct ut_lan ut_lan;

/* The way from one host to another. */
typedef struct ut_lan_path {
    ut_ns delay;   /* beyond UT_LAN_WAY_NS */
    uint32_t lost; /* packets of a million that do not arrive, drawn by the lan's seed */
    uint32_t reserved;
} ut_lan_path;

/* A lan of |hosts| engines, at most UT_HOSTS_MAX. |seed| decides which packets are lost, and all that the engines draw.
 * NULL if there is no memory for it. */
ut_lan *ut_lan_open(uint32_t hosts, uint64_t seed);
/* Frees everything, jobs too. NULL is fine. */
void ut_lan_close(ut_lan *lan);
/* The engine of |host|, which stays the lan's. */
ut_engine *ut_lan_engine(ut_lan *lan, uint32_t host);
/* Adds a job to the engine of |host|; its memory is the lan's. Returns UT_OK or an error of ut_engine_job_add. */
int ut_lan_job_add(ut_lan *lan, uint32_t host, uint32_t job, const ut_job_config *config);
/* Ends a job on |host|; its sessions are gone. What is on its way to it goes nowhere. */
void ut_lan_job_remove(ut_lan *lan, uint32_t host, uint32_t job, ut_ns now);
/* Connects |from| to |to| for |job|, whose hosts are those of the lan, in order. |cid| is what |to| listens under. */
int ut_lan_connect(ut_lan *lan, uint32_t job, uint32_t from, uint32_t to, uint32_t cid, ut_ns now);
/* What becomes of datagrams that are sent from now on. */
void ut_lan_set_path(ut_lan *lan, uint32_t from, uint32_t to, const ut_lan_path *path);
/* A trainer has put something into the ring of |session|: the engine looks in the next run. */
void ut_lan_ring(ut_lan *lan, uint32_t host, uint32_t session);
/* The engine of |host| was called beside this file, so that it may have something to do: it has a turn in the next run.
 */
void ut_lan_touched(ut_lan *lan, uint32_t host);
/* Lets everything happen that is due by |now|, and what follows soon after. Returns when there is more to do, UT_NEVER
 * if nothing is to come. */
ut_ns ut_lan_run(ut_lan *lan, ut_ns now);
/* The lan's own time: the latest |now|, or a little more. It never goes back. */
ut_ns ut_lan_now(const ut_lan *lan);
/* Sessions of |host| that have new completions since the last call, a bit each. */
uint64_t ut_lan_take_wakeups(ut_lan *lan, uint32_t host);

#endif
