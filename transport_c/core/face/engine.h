/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: all jobs, connections and ops of one data port. This is the interface that both shells drive.
 *
 * One turn, as the UDP driver does it (the simulator does the same in virtual time), all from one thread or under one
 * lock:
 *
 *     ut_engine_input(packets ...)         as long as the socket gives any
 *     ut_engine_submissions(session ...)   when a trainer rang
 *     ut_engine_tick(now)                  timers
 *     while (ut_engine_output(burst)) send
 *     ut_engine_take_wakeups()             ring those trainers
 *     ut_engine_poll_event(...)            hand to the daemon
 *     sleep until a packet, a ring, or ut_engine_next_wake()
 *
 * Ownership: the caller owns all memory. ut_engine_init and ut_engine_job_add are given theirs and keep it until
 * ut_engine_job_remove or the end; they touch it lazily, so a large job costs address space, not memory. The rings of a
 * session stay the caller's and must stay mapped until ut_engine_session_remove, its arena until ut_engine_has_let_go.
 */
#ifndef UT_ENGINE_H
#define UT_ENGINE_H

#include "core/base/host.h"
#include "core/base/options.h"
#include "core/epoch/epoch.h"
#include "core/face/ring.h"
#include "core/partial/picks.h"
#include "core/wire/burst.h"

typedef struct ut_engine ut_engine;

typedef struct ut_engine_config {
    uint32_t packet_bytes;   /* UDP payload of a full data packet: 1472 at MTU 1500 over IPv4; 32 + a multiple of 8 */
    uint32_t segments_max;   /* packets in a burst, 1 without GSO; packet_bytes * segments_max <= UT_BURST_BYTES */
    uint32_t receive_buffer; /* bytes that the kernel holds for us before it drops: half bounds credit beyond C x RTT */
    uint64_t seed;           /* of connection ids and incarnations */
    uint64_t (*draw)(void);  /* a number that no peer can predict, 0 for none; NULL: from the seed, for tests */
    struct ut_link *link; /* what engines of one host share (link.h), zeroed by the shell; NULL: it is the only one */
    uint32_t lane;        /* which of them it is, < UT_LANES_MAX */
    struct ut_cap *cap;   /* what engines of one host may send together (cap.h), the shell's; NULL: anything */
} ut_engine_config;

/* What a session may touch. */
typedef struct ut_session_memory {
    ut_submission_ring *submissions;
    ut_completion_ring *completions;
    uint8_t *arena;
    uint64_t arena_bytes;
    uint32_t place; /* the local rank: the rank's number among those of its job on this host, < local_ranks */
    uint32_t reserved;
} ut_session_memory;

/* What a job knows of one peer; for status and tests. */
typedef struct ut_peer_stats {
    /* generated: ut_peer_stats (schema/) */
    uint32_t up;               /* 1 once it is connected and not absent */
    uint32_t reserved;         /* nothing yet */
    uint64_t srtt_ns;          /* smoothed round trip; 0: not known */
    uint64_t sent_bytes;       /* bytes of datagrams of data sent to it */
    uint64_t received_bytes;   /* bytes of datagrams of data received from it */
    uint64_t lost_bytes;       /* how many of the sent bytes were lost */
    uint64_t window_bytes;     /* congestion window in bytes; NEVER, the largest number, where there is none */
    uint64_t base_rtt_ns;      /* least round trip of the last seconds; 0: not known */
    uint64_t ce_packets;       /* packets sent that were marked on the way (ECN) */
    uint64_t window_cuts;      /* how often the congestion control has reduced its window */
    uint64_t sent_packets;     /* data packets sent since the path was made */
    uint64_t feedbacks_sent;   /* feedbacks and grants sent since the path was made */
    uint64_t feedbacks_heard;  /* feedbacks and grants that came at the feedback port */
    uint64_t feedbacks_beside; /* feedbacks and grants that came at the data port, beside data */
    /* generated: end */
} ut_peer_stats;

/* Bytes of memory for an engine, or for a job, with this configuration; 0 if a value of it is out of range. */
size_t ut_engine_bytes(const ut_engine_config *config);
size_t ut_job_bytes(const ut_engine_config *engine, const ut_job_config *config);

/* |mem| holds ut_engine_bytes(), zeroed and 64-byte aligned. */
int ut_engine_init(void *mem, const ut_engine_config *config, ut_engine **ret);

/* |job| is the caller's number, < UT_JOBS_MAX. |mem| holds ut_job_bytes(), zeroed (fresh anonymous pages) and 64-byte
 * aligned. */
int ut_engine_job_add(ut_engine *engine, uint32_t job, const ut_job_config *config, void *mem);
/* Number of hosts of the job; 0 if there is no such job. */
uint32_t ut_engine_hosts(const ut_engine *engine, uint32_t job);
/* Number of ranks of the job; 0 if there is no such job. */
uint32_t ut_engine_world(const ut_engine *engine, uint32_t job);
/* Whether an epoch of the job may have these options: UT_OK, else UT_ERR_ARGUMENT. */
int ut_engine_options_fit(const ut_engine *engine, uint32_t job, const ut_job_options *options);
/* Fails the ops that are open and forgets the connections. Afterwards the job's memory is the caller's again. */
void ut_engine_job_remove(ut_engine *engine, uint32_t job, ut_ns now);

/* Makes a fresh connection id for packets from |host| to this host, which the peer's daemon must be told. It replaces
 * an earlier id, and with it all state of the path from that host. To be called once per incarnation of the peer. */
int ut_engine_peer_listen(ut_engine *engine, uint32_t job, uint32_t host, uint32_t *ret_cid);
/* Jobs with a cipher: the keys of both directions of the path, which stay the caller's and must hold until they are
 * replaced, or the job is removed. Before the path is connected. UT_ERR_ARGUMENT if the job has no cipher. */
int ut_engine_peer_keys(ut_engine *engine, uint32_t job, uint32_t host, void *out, void *in);
/* The other half: sets where |host| listens, and the id that it chose for packets from this host. |host| is then up. */
int ut_engine_peer_connect(ut_engine *engine, uint32_t job, uint32_t host, const ut_addr *data, const ut_addr *feedback,
                           uint32_t cid, ut_ns now);
/* Hosts of the job that are to blame for that UDP does not get through, though their daemons answer: what the shell has
 * found out, for the receipts. 0: none. */
void ut_engine_peers_blocked(ut_engine *engine, uint32_t job, uint64_t mask);
/* From here on packets to |host|, whose path stands, go to these addresses: another way to it. UT_ERR_UNKNOWN if no
 * path stands. */
int ut_engine_peer_route(ut_engine *engine, uint32_t job, uint32_t host, const ut_addr *data, const ut_addr *feedback);
/* Hosts of the job with which packets are exchanged by relay, and those that forward them: the shell's word, for the
 * receipts. */
void ut_engine_peers_relayed(ut_engine *engine, uint32_t job, uint64_t mask, uint64_t relays);
/* |host| is known to be gone, or to begin anew: open ops stop waiting for it at once. */
void ut_engine_peer_absent(ut_engine *engine, uint32_t job, uint32_t host, ut_ns now);
/* Asks |host| for a sign of life, which it gives at once: a feedback, whatever its ops are at. Nobody is asked to whom
 * there is no path. */
int ut_engine_peer_ask(ut_engine *engine, uint32_t job, uint32_t host, ut_ns now);
/* |host| has said that it goes and comes back. While it is awaited, reliable ops go on waiting for it although it is
 * absent, and go on when it is connected anew, which ends the waiting. Not |on|: it did not come in time, and is gone.
 * Other ops, and those of partial jobs, do not wait. */
int ut_engine_peer_await(ut_engine *engine, uint32_t job, uint32_t host, bool on, ut_ns now);
/* This host goes itself: it opens no op of the job more. */
int ut_engine_job_hold(ut_engine *engine, uint32_t job, ut_ns now);
/* Ops from |epoch|->from on that are not open yet are opened under it; see ut_epochs_take. It ends a hold that
 * has an end.
 * UT_ERR_SEQUENCE, and nothing is changed: its number is not above the newest's, and it is not the newest again.
 * UT_ERR_ARGUMENT: a value is out of range. */
int ut_engine_epoch(ut_engine *engine, uint32_t job, const ut_epoch *epoch, ut_ns now);
/* Ops from |op_seq| on are not opened before |until|, but at their deadline; they wait where those wait that are four
 * ops ahead. It takes the place of an earlier hold, and the next epoch ends it, unless |until| is UT_NEVER. */
int ut_engine_hold(ut_engine *engine, uint32_t job, uint64_t op_seq, ut_ns until);
/* What an epoch needs to know of this host: the op_seq that it opens next, and what it would choose for each option. */
int ut_engine_job_wishes(const ut_engine *engine, uint32_t job, uint64_t *ret_next_op,
                         uint16_t ret_option[UT_EPOCH_OPTIONS]);
/* |ret_floor|: op_seq below which every op has ended here. |ret_unsettled|: ops, but for those that a hold keeps from
 * opening, of which this host or a peer lacks something. */
int ut_engine_job_place(const ut_engine *engine, uint32_t job, uint64_t *ret_floor, uint32_t *ret_unsettled);
int ut_engine_peer_stats(const ut_engine *engine, uint32_t job, uint32_t host, ut_peer_stats *ret);
/* Copies the receipt of the |back|-th newest op that ended here, 0 for the newest; UT_RECEIPTS_KEPT of them are kept.
 * Rows of `peer` beyond `hosts` are unspecified. UT_ERR_UNKNOWN if there is no such receipt. */
int ut_engine_receipt(const ut_engine *engine, uint32_t job, uint32_t back, ut_receipt *ret);
/* Partial jobs: starts op |op_seq| with this host as the initiator. Nothing happens if it has started already.
 * UT_ERR_SEQUENCE if it is not the next op here, UT_ERR_ABSENT if no rank of this host has given anything for it. */
int ut_engine_activate(ut_engine *engine, uint32_t job, uint64_t op_seq, ut_ns now);
/* op_seq of the newest op that this job has seen here or heard of from a peer, plus one: the number of the next op. */
uint64_t ut_engine_next_op_seq(const ut_engine *engine, uint32_t job);

/* Attaches a trainer; |first_op_seq| is the number of its first submission. |ret_session| < UT_SESSIONS_MAX.
 * UT_ERR_ARGUMENT: there is no such place; UT_ERR_EXISTS: it has a trainer; UT_ERR_FULL: all have. */
int ut_engine_session_add(ut_engine *engine, uint32_t job, const ut_session_memory *memory, uint64_t first_op_seq,
                          uint32_t *ret_session);
/* The trainer is gone: its rings are not touched any more, and ops that waited for it go on without it. Its arena stays
 * mapped until ut_engine_has_let_go. */
void ut_engine_session_remove(ut_engine *engine, uint32_t session, ut_ns now);
/* Whether no op of |job| reads the arena of a session that was removed. An op of a partial job may, for it goes on with
 * what was given to it: then the next turns of the engine bring that to an end. */
bool ut_engine_has_let_go(const ut_engine *engine, uint32_t job);
/* Takes all that the session has submitted. */
void ut_engine_submissions(ut_engine *engine, uint32_t session, ut_ns now);

/* Takes one datagram, or several of |stride| bytes each as GRO hands them over (the last may be shorter; stride 0 or
 * >= len: it is one). The data port takes all kinds, for feedback may come with data; the feedback port takes feedback
 * and grants alone. Empty datagrams and garbage are only counted. A cipher opens |data| in place, and so writes to
 * it. |ce|: the kernel saw congestion marked. */
void ut_engine_input(ut_engine *engine, uint32_t port, uint8_t *data, size_t len, size_t stride, bool ce, ut_ns now);
/* Where the datagrams come from that are handed over until the next such call; `len` 0: not known, and so it is before
 * the first. A sealed path follows a peer that moves (core/path/move.h). */
void ut_engine_from(ut_engine *engine, const ut_addr *from);
/* Takes the kernel's drop counter of this engine's sockets, which counts from the start. */
void ut_engine_kernel_drops(ut_engine *engine, uint64_t drops);
/* The oldest datagram of those that are handed over until the next such call had come |waited| ago. */
void ut_engine_waited(ut_engine *engine, ut_ns waited);
void ut_engine_tick(ut_engine *engine, ut_ns now);
/* Bursts hold at most |packets| from here on, but at least one and no more than segments_max. */
void ut_engine_limit_bursts(ut_engine *engine, uint64_t packets);
/* Fills |burst| and returns true, or returns false when there is nothing to send now. The shell sends the burst or
 * throws it away; in that case it is repaired like any loss. */
bool ut_engine_output(ut_engine *engine, ut_ns now, ut_burst *burst);
/* The same for feedback only, for a shell whose data socket is blocked. */
bool ut_engine_output_feedback(ut_engine *engine, ut_ns now, ut_burst *burst);
ut_ns ut_engine_next_wake(const ut_engine *engine);
/* Packets that are still to come in the stage that lacks fewest of them, of all running ops; 0 if none waits. */
uint64_t ut_engine_awaited(const ut_engine *engine);
/* Whether passes over whole buckets were cut short, so that the next turn must come at once, whatever the sockets do.
 */
bool ut_engine_has_work(const ut_engine *engine);
/* Mask of the sessions that have new completions since the last call. */
uint64_t ut_engine_take_wakeups(ut_engine *engine);
bool ut_engine_poll_event(ut_engine *engine, ut_event *ret);
void ut_engine_stats(const ut_engine *engine, ut_stats *ret);

#endif
