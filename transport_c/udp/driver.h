/* SPDX-License-Identifier: Apache-2.0
 *
 * The UDP driver: one engine, one thread, and two sockets (none where only jobs of this host are served). It is the
 * only C with system calls, and all that Python sees of the fast path.
 *
 * The thread holds the driver's lock except while it sleeps in ppoll. Every call below takes that lock, so it may come
 * from any thread, and returns in microseconds. An error is a negative ut_error; ut_driver_error() then has a sentence
 * for people.
 */
#ifndef UT_DRIVER_H
#define UT_DRIVER_H

#include "core/face/engine.h"

typedef struct ut_driver ut_driver;

typedef struct ut_driver_config {
    const char *bind;        /* numeric IPv4 or IPv6 address; NULL: no sockets, and only jobs of one host */
    uint16_t data_port;      /* UDP; 0 picks one */
    uint16_t feedback_port;  /* UDP; 0 picks one */
    uint32_t receive_buffer; /* bytes asked of the kernel; 0: 8 MiB */
    uint32_t send_buffer;    /* bytes asked of the kernel; 0: 512 KiB */
    uint32_t packet_bytes;   /* 0: 1472 over IPv4, 1448 over IPv6 (MTU 1500) */
    int32_t gso;             /* 1: probe and use, 0: off */
    int32_t gro;             /* 1: probe and use, 0: off */
    uint32_t dscp;           /* class of all packets (RFC 2474), 0 to 63; 0: none */
    uint64_t seed;           /* of connection ids; 0 asks the kernel for a random one */
    ut_driver *beside;       /* an open driver of the same host, whose link this one shares; NULL: it is the first */
} ut_driver_config;

typedef struct ut_driver_info {
    uint16_t data_port, feedback_port; /* as bound; 0 without sockets */
    uint32_t packet_bytes;
    uint32_t receive_buffer, send_buffer; /* as granted; as asked without sockets */
    int32_t gso, gro;                     /* in use now (GSO is given up at run time when a path refuses it) */
    int32_t isa;                          /* enum ut_isa */
    int32_t event_fd;                     /* readable when events are to be taken; the driver owns it */
} ut_driver_info;

typedef struct ut_driver_stats {
    /* generated: ut_driver_stats (schema/) */
    ut_stats engine;        /* what the engine counts */
    uint64_t send_calls;    /* system calls that sent */
    uint64_t receive_calls; /* system calls that received */
    uint64_t polls;         /* how often the thread waited for something to do */
    uint64_t send_blocked;  /* times that a socket was full, and its bursts waited for room */
    uint64_t send_looks;    /* how often the data socket was asked what stands in the host's own queue */
    /* Kernel's bytes a second that leave that queue, as measured; 0: nothing stands there. */
    uint64_t send_drain_rate;
    uint64_t send_pace;       /* bytes of data a second that are handed to it at most; 0: it is not paced */
    uint64_t send_queued_max; /* the most bytes that stood there after a sending, since a rate is known */
    uint64_t send_errors;     /* datagrams that the kernel refused; they count as lost in the network */
    uint64_t send_errno;      /* why the last of them was refused; 0 if none was */
    uint64_t receive_errors;  /* receives that the kernel refused */
    uint64_t gro_batches;     /* receives that held more than one datagram */
    uint64_t cpu_ns;          /* CPU time of the engine's thread */
    uint64_t thread_moves;    /* how often that thread went to another CPU */
    uint64_t allocations;     /* allocations on the data path since start; always 0 */
    /* generated: end */
} ut_driver_stats;

/* All that `ultima status` tells of a driver, as it was at one moment. */
typedef struct ut_job_snapshot {
    uint32_t hosts; /* 0: no job has this number, and the rest is unspecified */
    uint32_t reserved;
    uint64_t next_op_seq;
    ut_peer_stats peer[UT_HOSTS_MAX]; /* the first |hosts|; all zero for the own one */
} ut_job_snapshot;

typedef struct ut_driver_snapshot {
    ut_driver_info info;
    ut_driver_stats stats;
    ut_job_snapshot job[UT_JOBS_MAX];
} ut_driver_snapshot;

/* How the packets of one direction of a path are sealed, in a job whose `cipher` is ut_driver_cipher(). */
typedef struct ut_driver_seal {
    uint32_t suite;      /* enum ut_suite */
    uint8_t secret[32];  /* drawn by the host that receives the packets */
    uint64_t generation; /* life of the job */
    uint32_t lane;       /* number of this driver among those of its host */
    const char *job;     /* its name */
} ut_driver_seal;

/* For ut_job_config.cipher: the packets of the job are sealed. Such a process cannot be traced or dumped any more. */
const ut_cipher *ut_driver_cipher(void);
/* The number of the suite with this name (enum ut_suite), 0 if there is none here; of "auto" the one that this CPU
 * computes fastest. 0 for all names where the host has no libcrypto. And the name of a suite; NULL if there is none
 * with that number. */
uint32_t ut_driver_suite(const char *name);
const char *ut_driver_suite_name(uint32_t suite);

/* Opens, probes, starts the thread. NULL on failure, with a sentence in |error| (of |error_len| bytes). */
ut_driver *ut_driver_open(const ut_driver_config *config, char *error, size_t error_len);
/* Stops the thread, closes the sockets, unmaps what it mapped. NULL is fine. */
void ut_driver_close(ut_driver *driver);
void ut_driver_get_info(ut_driver *driver, ut_driver_info *ret);
void ut_driver_get_stats(ut_driver *driver, ut_driver_stats *ret);
/* Takes everything in one call, because each call to a busy thread waits for a whole turn of it. |ret| is the caller's
 * memory, 120 KB; of a job that does not exist only `hosts` is written. */
void ut_driver_snapshot_take(ut_driver *driver, ut_driver_snapshot *ret);
/* The sentence of the last call that failed; good until this thread asks again. */
const char *ut_driver_error(ut_driver *driver);

/* Allocates the job's memory (address space, touched lazily) and adds it. Returns the job's number, or an error. */
int ut_driver_job_add(ut_driver *driver, const ut_job_config *config);
/* Whether an epoch of the job may have these options; what a running job cannot change is not looked at. */
int ut_driver_options_fit(ut_driver *driver, uint32_t job, const ut_job_options *options);
/* Fails what is open, removes the job's sessions, gives the memory back. */
int ut_driver_job_remove(ut_driver *driver, uint32_t job);
/* Partial jobs: starts op |op_seq|; see ut_engine_activate. */
int ut_driver_activate(ut_driver *driver, uint32_t job, uint64_t op_seq);
/* |seal| NULL: the job is not sealed. Else its secret is a new one, for packets from |host|. */
int ut_driver_peer_listen(ut_driver *driver, uint32_t job, uint32_t host, const ut_driver_seal *seal,
                          uint32_t *ret_cid);
/* |address| is numeric, of the same family as `bind`. |seal| as above, for packets to |host|, which drew the secret
 * together with |cid|: UT_ERR_EXISTS if it was used before, for then nonces would come twice. */
int ut_driver_peer_connect(ut_driver *driver, uint32_t job, uint32_t host, const char *address, uint16_t data_port,
                           uint16_t feedback_port, uint32_t cid, const ut_driver_seal *seal);
/* A fresh secret for packets to (|out|) or from |host|, whose path stands under |cid|, of the suite in use. The host
 * that receives them gives it first. UT_ERR_UNKNOWN if the path is another by now, UT_ERR_FULL if the fresh secret
 * before it is not in use yet, UT_ERR_EXISTS if it is the one in use. */
int ut_driver_peer_renew(ut_driver *driver, uint32_t job, uint32_t host, bool out, uint32_t cid,
                         const ut_driver_seal *seal);
int ut_driver_peer_absent(ut_driver *driver, uint32_t job, uint32_t host);
/* Sends |count| datagrams of |bytes| zeros, which no engine takes for its own, from the socket |port| (enum ut_port) to
 * |address| and |to|: to find out whether they arrive. Returns how many the kernel took, or an error. */
int ut_driver_send_strange(ut_driver *driver, uint32_t port, const char *address, uint16_t to, uint32_t bytes,
                           uint32_t count);
/* Sends packets to |host|, whose path stands, to that address and those ports from here on: another way to it. */
int ut_driver_peer_route(ut_driver *driver, uint32_t job, uint32_t host, const char *address, uint16_t data_port,
                         uint16_t feedback_port);
/* See ut_engine_peers_relayed. */
int ut_driver_peers_relayed(ut_driver *driver, uint32_t job, uint64_t mask, uint64_t relays);
/* Sends the UT_HELLO_BYTES of a |hello| (relay.h) from the socket |port| (enum ut_port) to a relay. */
int ut_driver_send_hello(ut_driver *driver, uint32_t port, const char *address, uint16_t to, const uint8_t *hello);
/* The most bytes a second that all drivers of this host, and the relays that have its cap, send together, with the
 * headers of IP and UDP; 0: any. In force at once. */
void ut_driver_set_cap(ut_driver *driver, uint64_t rate);
/* The host's cap, for a relay; it is gone with the host's last driver. */
struct ut_cap *ut_driver_cap(ut_driver *driver);
/* See ut_engine_peers_blocked. */
int ut_driver_peers_blocked(ut_driver *driver, uint32_t job, uint64_t mask);
int ut_driver_peer_stats(ut_driver *driver, uint32_t job, uint32_t host, ut_peer_stats *ret);
int ut_driver_next_op_seq(ut_driver *driver, uint32_t job, uint64_t *ret);
int ut_driver_receipt(ut_driver *driver, uint32_t job, uint32_t back, ut_receipt *ret);
/* See the functions of the engine with the same ends. */
int ut_driver_epoch(ut_driver *driver, uint32_t job, const ut_epoch *epoch);
int ut_driver_hold(ut_driver *driver, uint32_t job, uint64_t op_seq, uint64_t until);
int ut_driver_job_wishes(ut_driver *driver, uint32_t job, uint64_t *ret_next_op, uint16_t ret_option[UT_EPOCH_OPTIONS]);
/* See ut_engine_peer_ask, ut_engine_peer_await, ut_engine_job_hold and ut_engine_job_place. */
int ut_driver_peer_ask(ut_driver *driver, uint32_t job, uint32_t host);
int ut_driver_peer_await(ut_driver *driver, uint32_t job, uint32_t host, uint32_t on);
int ut_driver_job_hold(ut_driver *driver, uint32_t job);
int ut_driver_job_place(ut_driver *driver, uint32_t job, uint64_t *ret_floor, uint32_t *ret_unsettled);

/* Maps |bytes| of a memfd for reading and writing, shared. NULL and errno on failure (EINVAL: zero bytes, or more than
 * the file has, which would be a SIGBUS later). This is no part of session_add because memory is made at attach time,
 * long before the trainer joins a job. It needs no driver. */
void *ut_driver_region_map(int fd, uint64_t bytes);
/* The session that uses |region| must have been removed; NULL is fine. With |discard| the pages go back to the kernel
 * first, whoever else has the file mapped or holds its descriptor: it reads as zeros from then on, and what somebody
 * writes there is charged to him. Returns 0, or -1 and errno if the pages did not go, as those of a file with
 * F_SEAL_FUTURE_WRITE (EPERM); it is unmapped all the same. */
int ut_driver_region_unmap(void *region, uint64_t bytes, int discard);

/* Attaches a trainer by three regions, which stay the caller's and stay mapped until ut_driver_session_remove has
 * returned. The driver keeps duplicates of the two descriptors, whose other ends a trainer has. It listens to
 * |submit_fd|, an eventfd, which it never reads nor writes. It rings |complete_fd|, an end of a pair of unix sockets;
 * the caller must shut that end for reading before the trainer has the other one, because what a trainer sends may
 * carry descriptors, and dropping those can block. Returns the session's number, or an error. */
int ut_driver_session_add(ut_driver *driver, uint32_t job, void *submissions, void *completions, void *arena,
                          uint64_t arena_bytes, int submit_fd, int complete_fd, uint64_t first_op_seq, uint32_t place);
/* Once it has returned, neither the regions nor the descriptors are touched. Of what a rank of a partial job gave, an
 * op may still need a copy; until that is made, in turns of the thread with other work in between, the call waits. */
int ut_driver_session_remove(ut_driver *driver, uint32_t session);

/* Returns 1 and an event, or 0 if there is none. The event_fd tells when to ask (events.h): it becomes readable at
 * once, but for the ends of ops, which gather, and stays so until nothing is left; it need not be read. */
int ut_driver_poll_event(ut_driver *driver, ut_event *ret);

/* CLOCK_MONOTONIC in nanoseconds, the clock of every deadline. */
uint64_t ut_driver_now(void);

#endif
