/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator: whole clusters in one process and in virtual time, driving the same core objects as the UDP driver.
 *
 * A seed draws a world (plan.c): hosts, links, jobs, ops, and some of the possible faults. Events in a heap (event.c)
 * move the world: packets through the network (net.c), hosts that serve their engine (host.c), daemons that connect,
 * die and come back (control.c), trainers that submit and take receipts (trainer.c). Every receipt is checked against
 * payloads that are fingerprints of their ranks (code.c, shards.c, check.c), and at the end the books must balance
 * (books.c). Everything is an integer function of the seed, so a failing seed replays exactly. All that happens goes
 * into a trace hash, which must not depend on the compiler (trace.c).
 *
 * Every host has a clock of its own, because nothing in the protocol may compare the clocks of two hosts. Times called
 * `at` or `now` are the world's; `local` times have the host's offset added.
 */
#ifndef SIM_H
#define SIM_H

#include "core/face/engine.h"
#include "core/link/cap.h"
#include "sim/oracles/code.h"
#include "sim/oracles/cover.h"
#include "sim/world/plan.h"
#include "sim/world/rival.h"
#include "sim/world/rng.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>

/* ---- packets ---- */

enum {
    SIM_SPOILT = 1, /* bits flipped, cut, extended or made up: no host may use it or answer it */
    SIM_STRAY = 2,  /* whole, but for another host or another port */
    SIM_AGAIN = 4,  /* a copy: duplicate or replay */
    SIM_EVIL = 8,   /* authentic, and a lie: its fields were changed, and its checksum was made right again */
};
typedef struct sim_packet {
    struct sim_packet *next; /* in a host's receive queue */
    uint8_t *bytes; /* len bytes, at any alignment, ending where the allocation ends: a read past them is seen */
    uint32_t len;
    uint16_t from, to; /* hosts */
    uint8_t port;      /* enum ut_port */
    uint8_t flags;     /* SIM_SPOILT ... */
    bool ce;
    uint32_t life;                /* life of the host `to` when the packet was first sent */
    uint32_t age;                 /* the world's number of receipts at that time; it tells replays of earlier ops */
    ut_ns at;                     /* the world's time then */
    uint8_t hops;                 /* links of the core behind it */
    uint8_t from_place, to_place; /* of the two hosts' ports, see moving.c; 0 as a rule */
} sim_packet;

/* Packets and bytes that took one of the ways out of, or into, the network. */
typedef struct sim_tally {
    uint64_t packets, bytes;
} sim_tally;
typedef struct sim_net_books {
    sim_tally sent, injected, duplicated, grown;             /* in; grown: bytes only */
    sim_tally lost, lost_host, lost_dead, delivered, shrunk; /* out; shrunk: bytes only */
    sim_tally overrun;                                       /* of `lost`: what found a link's queue full */
} sim_net_books;

/* ---- the living world ---- */

typedef struct sim_guarded {
    uint8_t *whole, *mem; /* mem: SIM_GUARD canary bytes before, and as many behind */
    size_t bytes;
} sim_guarded;

struct sim_world;

/* What a rank has asked for and has no receipt for yet. */
typedef struct sim_ask {
    ut_submission entry;
    uint32_t op;      /* index in the job */
    uint64_t slot;    /* where its part of the arena begins */
    sim_op as;        /* as this rank called it */
    ut_ns deadline;   /* local */
    ut_ns submitted;  /* world's */
    uint64_t wakeups; /* the host's, until then */
    bool taken;       /* the engine has been told to look */
    int expect_error; /* a submission that must be refused; 0 for a good one */
} sim_ask;

typedef struct sim_rank {
    uint32_t job, index, host; /* index: in the job */
    uint32_t sign;             /* the rank that its values tell of: index, but see seats.h */
    uint32_t session;          /* UINT32_MAX: none */
    bool dead;                 /* the trainer died and has not come back */
    bool planned_return;
    uint32_t next; /* the op to submit next; plan.ops + calm ops when all are done */
    uint32_t out;  /* number of asks without a receipt */
    sim_ask ask[SIM_AHEAD + 1];
    ut_submission_ring *submissions;
    ut_completion_ring *completions;
    uint8_t *arena;
    uint64_t arena_bytes, slot_bytes;
    bool rung;
    bool ready_pending; /* an EV_READY is in the heap */
    uint32_t born;      /* counts its sessions; events of an earlier session are void */
    uint64_t taken_seen;
    struct sim_giver *giver; /* of a partial job: partial.h */
    struct sim_coder *coder; /* of a coded job: coded.h */
} sim_rank;

enum { SIM_EPOCH_OWNERS = 64, SIM_OPTIONS_KEPT = 16 };

/* What a world draws of epochs: epochs.c. Chances are in ppm, and while faults last. */
typedef struct sim_epochs {
    sim_rng rng;
    bool none;        /* the control network is down: nobody is ever handed any */
    ut_ns every;      /* how often it is looked whether one is due */
    ut_ns late;       /* what is told to several hosts reaches each at its own time, at most so much later */
    uint32_t margin;  /* ops */
    uint32_t unheld;  /* no host holds until the epoch comes */
    uint32_t never;   /* one host is not told */
    uint32_t apart;   /* two halves are handed different ones ... */
    uint32_t alike;   /* ... of which the tags are the same */
    uint32_t without; /* a host that lives is not in it */
    uint32_t quick;   /* the next one follows at once */
    uint32_t vain;    /* a hold after which nothing comes */
    uint32_t often;   /* one comes although nothing has changed, by each look; perhaps with other options */
} sim_epochs;

/* The newest epoch of a job. */
typedef struct sim_job_epochs {
    bool begun;    /* the job is handed epochs */
    bool asked;    /* one is under way */
    bool held;     /* all hold for it, from .. */
    uint64_t from; /* .. this op on at the latest */
    ut_ns told_by; /* when all hosts know the newest that was decided */
    bool stale;    /* the newest is not what is true, or not all were told */
    bool alike;    /* two that have the same tag were handed out */
    bool mixed;    /* which differ in what travels */
    uint64_t number;
    uint64_t leaving; /* hosts that are about to go in good order */
    uint64_t *who;    /* of a job with seats: the signs of an epoch's members, by its number */
    uint64_t who_n;
    ut_job_options wished; /* by those who run the job */
    ut_epoch decided;
    uint32_t owner_life[SIM_HOSTS]; /* life of each host in which it was told of */
} sim_job_epochs;

/* One host's part in one job. */
typedef struct sim_seat {
    sim_guarded memory;
    struct ut_keys *keys; /* of the path to each host, where packets are sealed */
    uint32_t keys_n;
    bool open;
    uint64_t linked;                 /* mask of the job indices that the host has connected to, in this life */
    uint32_t linked_life[SIM_HOSTS]; /* to which life of each of them */
    uint32_t called_life[SIM_HOSTS]; /* the life of each to which a call is under way or done */
    uint32_t absent_life[SIM_HOSTS]; /* the newest life of each of them of which it was told that it is over */
    uint32_t broken[SIM_HOSTS];      /* how often the path to each was torn down because of what that host said */
    uint64_t first;                  /* the op at which this life began */
    uint32_t life;
    ut_epoch epoch; /* the newest that it was handed, and from which op it holds here */
    struct {
        uint64_t from, number; /* of the epoch */
        ut_job_options are;
    } options[SIM_OPTIONS_KEPT]; /* in force here from which op on, the newest last */
    uint32_t options_n;
    uint64_t owners[SIM_EPOCH_OWNERS]; /* of all epochs that it may have opened ops under */
    uint32_t owners_n;
    bool owners_all; /* there were more */
} sim_seat;

/* Why an up-link stands idle. */
enum sim_idle {
    SIM_IDLE_NO_OP,   /* its trainers wait for nothing */
    SIM_IDLE_ASLEEP,  /* packets have come, or a call, and the thread has not woken up yet */
    SIM_IDLE_CPU,     /* they have come, and it is at work on those before */
    SIM_IDLE_ENGINE,  /* the engine had nothing that it would send */
    SIM_IDLE_BLOCKED, /* it had, found the send queue full, and came back too late */
    SIM_IDLES
};

typedef struct sim_host {
    uint32_t index;
    uint32_t life; /* counts incarnations, from 1; even a dead host keeps the last */
    bool alive;
    bool gone;        /* dead for good */
    uint8_t place[2]; /* of its ports: counts how often their addresses have changed */
    bool paused;
    ut_ns resumes;
    sim_guarded memory;
    ut_cap cap;     /* of what its engine may send */
    ut_ns cap_free; /* when all that it has sent has gone at the plan's host_rate */
    ut_engine *engine;
    sim_seat seat[SIM_JOBS];
    /* receive side */
    ut_ns queued_at; /* when the oldest datagram of data in `queue` came */
    sim_packet *queue[2], **queue_end[2];
    uint64_t queued_bytes[2];
    uint64_t drops;                    /* datagrams dropped in this life */
    uint64_t given;                    /* datagrams given to ut_engine_input in this life */
    uint64_t given_spoilt;             /* how many of those were SIM_SPOILT */
    uint64_t given_evil;               /* how many of those were SIM_EVIL */
    uint64_t given_foreign;            /* how many of those were stray, or for an earlier life */
    uint64_t given_old;                /* how many of the others were so old that their keys may be gone */
    uint64_t sent_data, sent_feedback; /* packets that left this life's engine ... */
    uint64_t sent_path;                /* ... and those that ask or tell where a host is */
    uint64_t told_bytes;               /* of the feedback and grants among them */
    uint64_t turns;                    /* that this life's engine was given */
    uint64_t wakeups;                  /* how many of those began with the thread asleep */
    uint64_t ended[5];                 /* ops that ended here in this life, by status */
    uint64_t used_bytes;               /* sum over their receipts */
    bool sessions_removed;             /* in this life: some books then stay open */
    ut_ns busy_until, service_at;
    uint32_t service_gen;
    uint32_t spins;
    bool stirring;    /* what has come will wake it */
    bool restless;    /* it has more to do, and will not sleep before the next turn */
    ut_ns stirred_at; /* since when, since the last turn; UT_NEVER if not */
    /* links */
    ut_ns up_free, down_free;
    ut_ns idle_since, idle[SIM_IDLES]; /* of the up-link: looked at so far; by enum sim_idle */
    uint8_t idle_why;
    sim_rank *by_session[UT_SESSIONS_MAX];
    uint32_t sessions; /* all sessions of this life have lower numbers */
} sim_host;

/* Which ranks one element range of one host's result holds. */
typedef struct sim_run {
    uint64_t end; /* the first element behind it; the range starts where the previous one ends */
    sim_held held;
} sim_run;
/* One op on one host, as its receipt told and as its bytes showed. */
typedef struct sim_outcome {
    bool known;
    uint32_t status;
    uint32_t life;
    ut_ns called, ended; /* the world's */
    uint64_t wakeups;    /* of the host, from the call to the receipt */
    uint64_t digest;
    sim_run *run;
    uint32_t runs;
    ut_receipt receipt;
} sim_outcome;

typedef struct sim_job {
    sim_job_plan *plan;
    uint32_t ranks, signs;
    sim_rank rank[SIM_RANKS];
    uint64_t host_ranks[SIM_HOSTS];           /* by index in the job: mask of ranks */
    uint32_t index_of[SIM_HOSTS];             /* host of the world -> index, UINT32_MAX */
    sim_outcome outcome[SIM_OPS][SIM_HOSTS];  /* op, index in the job */
    uint64_t contributed[SIM_OPS][SIM_HOSTS]; /* ranks of that host that were seen in results; 0: none were */
    bool thinned;                             /* a receipt told that not all hosts owned a shard */
    bool shaken[SIM_HOSTS];      /* a trainer or the daemon died there: its part may be cut in other ways */
    uint64_t submitted[SIM_OPS]; /* mask of ranks that ever submitted that op in good form */
    const struct sim_kind *kind;
    sim_job_epochs epochs;
    struct sim_part *part;   /* of a partial job: partial.h */
    struct sim_coded *coded; /* of a coded job: coded.h */
} sim_job;

/* What one host hears of another's present transfer. */
typedef struct sim_hearing {
    uint64_t op_stage;
    uint32_t packets;
    ut_ns at;   /* of the newest packet */
    bool going; /* past a trickle, and its tail has not come */
} sim_hearing;

typedef struct sim_due {
    ut_ns at;
    uint64_t order_place; /* order of insertion; and where the event is, see event.c */
} sim_due;
typedef struct sim_event {
    ut_ns at;
    uint32_t kind; /* enum sim_event_kind */
    uint32_t a, b, c;
    uint64_t d;
    void *p;
} sim_event;
enum sim_event_kind {
    SIM_EV_SWITCH = 1, /* p: packet reaches the last link */
    SIM_EV_ARRIVE,     /* p: packet reaches its host */
    SIM_EV_SERVICE,    /* a: host, b: generation */
    SIM_EV_READY,      /* a: job, b: rank, c: born */
    SIM_EV_ITEM,       /* a: item of the plan */
    SIM_EV_ITEM_END,   /* a: item */
    SIM_EV_CONTROL,    /* a: host, b: its life, p: message */
    SIM_EV_INJECT,
    SIM_EV_PROBE,  /* a: host, b: its life, c: job, p: sim_probe */
    SIM_EV_CHANGE, /* a: job: its policy changes */
    SIM_EV_RIVAL,  /* a: what the rival flow comes to, d: when that packet was sent */
    SIM_EV_EPOCH,  /* a: job or host, b: what, c: life of the host, p: message; see epochs.c */
    SIM_EV_CALM,   /* the calm begins to submit */
    SIM_EV_END,
    SIM_EV_PLACE, /* a: number of the move */
};

enum sim_trace_kind {
    SIM_TR_SEND = 1,
    SIM_TR_DROP,
    SIM_TR_DELIVER,
    SIM_TR_INJECT,
    SIM_TR_SERVE,
    SIM_TR_SUBMIT,
    SIM_TR_RECEIPT,
    SIM_TR_DEATH,
    SIM_TR_RETURN,
    SIM_TR_PAUSE,
    SIM_TR_PARTITION,
    SIM_TR_CONTROL,
    SIM_TR_EVENT,
    SIM_TR_CALM,
    SIM_TR_KINDS,
};
typedef struct sim_trace_record {
    ut_ns at;
    uint32_t kind, host, other;
    uint64_t a, b, c;
    uint8_t head[32];
    uint32_t head_len;
} sim_trace_record;

typedef struct sim_marks {
    sim_code code;
    uint64_t count;
    uint8_t *mark;
} sim_marks;

typedef struct sim_world {
    uint64_t seed;
    ut_ns now;
    sim_plan plan;
    sim_rng rng_net, rng_host, rng_trainer, rng_liar;
    sim_epochs epochs;
    sim_due *heap;
    sim_event *event;
    uint32_t events, event_room;
    uint64_t event_order, events_done, events_most;
    struct sim_seal_state *seal; /* seal.c; NULL: no packet was sealed */
    sim_host host[SIM_HOSTS];
    sim_job job[SIM_JOBS];
    sim_marks marks[SIM_JOBS][SIM_MARKS]; /* of the newest ops */
    bool faults;                          /* faults still happen */
    bool calming;                         /* faults have stopped; the last ops are being done */
    ut_ns calm_since;
    bool ended;
    uint64_t cut[SIM_HOSTS]; /* mask of hosts to which packets from that host vanish */
    uint32_t partitions;     /* number of partitions that last */
    bool burst_bad[SIM_HOSTS][SIM_HOSTS];
    ut_ns delay[SIM_HOSTS][SIM_HOSTS], last_at[SIM_HOSTS][SIM_HOSTS];
    sim_packet *saved[SIM_SAVED];
    uint64_t saved_seen;
    sim_packet *lie_before[SIM_LIES]; /* what the hostile host may send again */
    sim_net_books books;
    uint64_t receipts;
    uint64_t ops; /* number of ops of which a receipt was checked, counted per host */
    uint64_t cover[SIM_COVERS];
    ut_ns longest_way;      /* that a packet took so far, with the time in queues */
    ut_ns healthy[SIM_OPS]; /* by op of job 0: when the last first-stage packet came from one host to another, neither
                               of them the odd one */
    ut_ns core_free[SIM_HOSTS][2]; /* by group: the link to the core, and from it */
    sim_rival rival;
    uint8_t *zeros; /* of a light world: the memory of all trainers */
    /* trace */
    uint64_t hash;
    bool trace_all;
    sim_trace_record *tail;
    uint64_t traced;
    /* failure */
    jmp_buf failed;
    char failure[512];
    sim_hearing hearing[SIM_HOSTS][SIM_HOSTS]; /* by receiver, sender */
    uint64_t heard_packets, heard_senders;     /* packets beyond a trickle; and the sum of senders heard at each */
    uint64_t perf_elapsed;                     /* longest op, for the performance scenario */
} sim_world;

/* What a kind of job does in its own way: ordinary jobs (trainer.c), those of partial/, those of coded/. All else asks
 * a job's kind, and knows none of them. NULL: there is nothing to do. */
typedef struct sim_kind {
    /* A trainer comes; goes; has done what it had to; has time; has computed something; has receipts. */
    void (*attach)(sim_world *w, sim_rank *r);
    void (*detach)(sim_world *w, sim_rank *r);
    bool (*done)(const sim_world *w, const sim_rank *r);
    void (*go_on)(sim_world *w, sim_rank *r);
    void (*ready)(sim_world *w, sim_rank *r);
    void (*collect)(sim_world *w, sim_rank *r);
    void (*offer)(sim_world *w, sim_rank *r); /* the engine is about to look at what it submitted */
    void (*words)(sim_world *w, sim_rank *r); /* what the ring's words let go of is spoilt */
    /* When |ask| must be answered at the latest; local. */
    ut_ns (*due)(const sim_world *w, const sim_rank *r, const sim_ask *ask);
    /* The daemon is about to serve the job, from op |seq| on; has begun to. */
    void (*opens)(sim_world *w, const sim_host *h, uint32_t job, uint64_t seq);
    void (*start)(sim_world *w, sim_host *h, uint32_t job);
    void (*event)(sim_world *w, sim_host *h, const ut_event *event);
    void (*check)(sim_world *w, uint32_t job); /* all is over, among honest hosts */
    void (*free)(sim_job *job);
} sim_kind;
extern const sim_kind sim_kind_ordinary, sim_kind_partial, sim_kind_coded;

static inline const sim_kind *sim_kind_of(const sim_world *w, const sim_rank *r)
{
    return w->job[r->job].kind;
}

/* event.c */
void sim_push(sim_world *w, ut_ns at, uint32_t kind, uint32_t a, uint32_t b, uint32_t c, uint64_t d, void *p);
bool sim_pop(sim_world *w, sim_event *ret);
sim_event *sim_event_in(const sim_world *w, uint32_t i); /* the |i|-th of the w->events that are still to come */

/* trace.c. The names of oracles are those at the heads of check.c and books.c. */
void sim_trace(sim_world *w, uint32_t kind, uint32_t host, uint32_t other, uint64_t a, uint64_t b, uint64_t c);
void sim_trace_packet(sim_world *w, uint32_t kind, const sim_packet *packet);
void sim_trace_tail(const sim_world *w, FILE *out);
_Noreturn void sim_fail(sim_world *w, const char *oracle, uint32_t host, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* memory.c */
void sim_guarded_make(sim_world *w, sim_guarded *g, size_t bytes);
void sim_guarded_check(sim_world *w, const sim_guarded *g, uint32_t host, const char *what);
void sim_guarded_free(sim_guarded *g);
void *sim_alloc(size_t bytes); /* zeroed; exits when there is none */
void *sim_room(size_t bytes);  /* the same, of any content */
bool sim_all_bytes(const uint8_t *at, size_t count, uint8_t byte);
uint64_t sim_digest(const void *bytes, size_t count); /* tells two results apart */

/* trainer.c. What a host says of |op_seq|, held against what trainers have called: in some jobs one host lies. */
uint64_t sim_truly_called(const sim_world *w, uint32_t job, uint64_t op_seq);

/* net.c */
sim_packet *sim_packet_make(sim_world *w, uint32_t from, uint32_t to, uint32_t port, uint32_t len);
void sim_packet_free(sim_packet *packet);
void sim_net_start(sim_world *w);
void sim_net_send(sim_world *w, sim_packet *packet);
void sim_net_switch(sim_world *w, sim_packet *packet);
void sim_net_arrive(sim_world *w, sim_packet *packet);
void sim_net_inject(sim_world *w);
/* Puts |bytes|, |wire_bytes| of them on the wire, into the queue towards a host; false if it is full. |ret|: when the
 * queue's end as it is then has left it. */
bool sim_net_take(sim_world *w, sim_host *to, uint64_t bytes, uint64_t wire_bytes, ut_ns *ret);
uint64_t sim_net_backlog(const sim_world *w, const sim_host *h); /* bytes that wait in the up-link */
uint64_t sim_net_rate_up(const sim_world *w, const sim_host *h); /* bytes per second */

/* wake.c */
static inline ut_ns sim_local(const sim_world *w, const sim_host *h)
{
    return w->now + w->plan.clock[h->index];
}
/* Serves the host at |at|, or earlier if that was asked for before. */
void sim_host_wake(sim_world *w, sim_host *h, ut_ns at);
ut_ns sim_woken(sim_world *w, ut_ns at); /* when the scheduler lets a thread run that is woken at |at| */
/* Something has come for it. */
void sim_host_readable(sim_world *w, sim_host *h);

/* host.c */
/* Looks at what the engine has just done in partial jobs, before it does more. */
void sim_host_look(sim_world *w, sim_host *h);
void sim_host_service(sim_world *w, sim_host *h);

/* control.c: what the daemons' Python does */
void sim_daemon_start(sim_world *w, sim_host *h);
void sim_daemon_kill(sim_world *w, sim_host *h);
void sim_control(sim_world *w, const sim_event *event);
void sim_item_begin(sim_world *w, uint32_t item);
void sim_path_broken(sim_world *w, sim_host *h, uint32_t job, uint32_t host);
void sim_item_end(sim_world *w, uint32_t item);
void sim_faults_stop(sim_world *w);

/* trainer.c */
void sim_trainer_detach(sim_world *w, sim_rank *r, bool tell_engine);

/* world.c */
/* |w| is zeroed. */
void sim_world_init(sim_world *w, uint64_t seed, const sim_plan *plan, bool trace_all);
bool sim_world_run(sim_world *w); /* false after a failure, told in w->failure */
void sim_world_free(sim_world *w);
bool sim_all_done(const sim_world *w);

static inline unsigned sim_algorithm(const sim_job_plan *j)
{
    return ut_options_algorithm(&j->options);
}
static inline uint64_t sim_shard_begin(uint64_t count, uint32_t hosts, uint32_t shard)
{
    return count * shard / hosts;
}

#endif
