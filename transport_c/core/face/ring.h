/* SPDX-License-Identifier: Apache-2.0
 *
 * The two rings between a trainer and its daemon, in shared memory, and the receipt that comes back.
 *
 * One producer and one consumer each: the trainer submits, the engine completes. The engine trusts nothing in the
 * submission ring: it copies an entry out before it looks at it, bounds its own reading by UT_RING_ENTRIES, and never
 * waits there. The completion ring is mapped read-only by the trainer (its memfd carries F_SEAL_FUTURE_WRITE), so a
 * wild trainer can spoil its own requests and data, but not what the daemon says of them. The trainer's consumer
 * position therefore travels in the submission ring (`completions_taken`).
 */
#ifndef UT_RING_H
#define UT_RING_H

#include "core/base/ut.h"

/* One request, 64 bytes. All offsets are bytes into the session's arena.
 *
 * The bucket of reduce-scatter, all-gather and all-to-all is as many equal shards as there are hosts, one rank on each;
 * `count` is of all of it. A rank gives all-gather its own shard alone, and gets its own shard alone of a
 * reduce-scatter: `src` and `dst` are where that shard lies. In place then means where it lies in the other's bucket.
 * An all-to-all is never in place, a broadcast always. A barrier's bucket is a byte (UT_BYTES) per
 * host, and its `count` no size but a note: any number, which all ranks must say alike. */
typedef struct ut_submission {
    uint64_t op_seq;      /* number of this op in the job, from 0, the same on every rank */
    uint64_t src;         /* where the rank's contribution lies; element-aligned */
    uint64_t dst;         /* where the result goes; equal to src for in place, else not overlapping it */
    uint64_t count;       /* elements of the bucket; 0 is legal */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; UT_NEVER for none */
    uint8_t dtype;        /* enum ut_dtype */
    uint8_t redop;        /* enum ut_redop; 0 where nothing is reduced */
    uint8_t mode;         /* enum ut_mode */
    uint8_t flags;        /* UT_SUBMIT_... */
    uint8_t collective;   /* enum ut_collective */
    uint8_t root;         /* host that a broadcast comes from; else 0 */
    uint16_t reserved;    /* 0 */
    uint64_t wanted;      /* partial jobs: the first op whose result the caller takes, or a later one's; else 0 */
    uint32_t oldest_step; /* partial jobs: the trainer's own number of the oldest step in what it gives; else 0 */
    uint32_t newest_step; /* and of the newest */
} ut_submission;

/* AGREE: all ranks that get a result get identical bytes. A host that cannot have all of every shard by the deadline
 * fails (TIMEOUT, ABSENT) instead of putting its own value in the holes; contributions may be missing as in the mode.
 */
/* ADAPTIVE, bounded: the caller named no deadline; deadline_ns is the latest, and the op ends earlier once it is known
 * how long such an op takes. The other modes heed it not: reliable has no bound of its own, best effort t_B and t_C. */
/* In a partial job a submission is no op but a word to the rank's slot, and `op_seq` counts the session's submissions.
 * GIVE: `src` holds a contribution; it is the engine's until an op has taken it and ended (ut_completion_ring.freed),
 * or another took its place. One waits at most. REPLACE, with GIVE: this one holds what waits as well, and takes its
 * place; if an op was quicker, nothing is done and the receipt says OVERTAKEN. Without REPLACE the slot must be empty.
 * STICKY, with GIVE: ops take it again and again, until it is replaced. NOWAIT: if no op from `wanted` on has ended,
 * the answer comes at once, EMPTY. Else the call waits for one, until its deadline: then what it gave is taken back,
 * if no op took it, and it is answered INSUFFICIENT with its own value. The deadline less the time of the submission
 * is also what an op has that this contribution starts. */
enum {
    UT_SUBMIT_AGREE = 0x01,
    UT_SUBMIT_ADAPTIVE = 0x02,
    UT_SUBMIT_GIVE = 0x04,
    UT_SUBMIT_REPLACE = 0x08,
    UT_SUBMIT_STICKY = 0x10,
    UT_SUBMIT_NOWAIT = 0x20,
    UT_SUBMIT_WORLD = 0x40, /* AVG divides by the ranks of the job, not by those that are in it */
};

typedef struct ut_submission_ring {
    uint64_t head;              /* entries ever written; trainer only; release store */
    uint64_t completions_taken; /* completion entries ever read; trainer only */
    uint64_t reserved[6];
    ut_submission entries[UT_RING_ENTRIES];
} ut_submission_ring;

enum ut_status {
    UT_COMPLETE = 1,     /* every byte holds every rank's contribution */
    UT_PARTIAL = 2,      /* usable; divided by what arrived, see the peers */
    UT_INSUFFICIENT = 3, /* nothing of any other host is in it: the buffer holds this host's own value */
    UT_FAILED = 4,       /* `error` says why; dst is unspecified */
    UT_EMPTY = 5,        /* partial jobs: no such result yet; dst is untouched, what was given lies in the slot */
    UT_OVERTAKEN = 6,    /* partial jobs: what was to be replaced is in an op already; nothing was done */
};
/* What a rank's slot held when an op was activated. STALE: given for an earlier op than the one that took it. */
enum ut_slot { UT_SLOT_NULL, UT_SLOT_FRESH, UT_SLOT_STALE };
/* What ended a stage: all is there; the deadline, or t_B; everybody else is gone; t_C, or in best effort the senders
 * have nothing more. */
enum ut_stage_end { UT_END_NONE, UT_END_COMPLETE, UT_END_DEADLINE, UT_END_ABSENT, UT_END_EARLY };
/* What kind of trouble the culprit has. */
enum ut_trouble { UT_TROUBLE_NONE, UT_TROUBLE_SENDER, UT_TROUBLE_PATH, UT_TROUBLE_RECEIVER, UT_TROUBLE_GONE };
/* Why bytes of a peer are missing. */
enum ut_missing { UT_MISSING_NOTHING, UT_MISSING_ABSENT, UT_MISSING_SILENT, UT_MISSING_LOST, UT_MISSING_CLOSED };

/* One peer host's part in an op, as this host saw it. 72 bytes. Times in us after the op's start here. */
typedef struct ut_receipt_peer {
    uint64_t expected[2]; /* bytes expected from it: stage 1 (its contribution to our shard), stage 2 (its shard) */
    uint32_t missing[2];  /* bytes of those that never came in time */
    uint16_t weight;      /* ranks summed in what it sent; 0 if nothing came */
    uint8_t why;          /* enum ut_missing */
    uint8_t trouble;      /* enum ut_trouble: what it would have, were it to blame; NONE in a COMPLETE op */
    uint32_t first_us;    /* when its first byte of the op came; 0 if none */
    uint32_t last_us;     /* and its last */
    uint32_t opened_us;   /* when it was heard to have called the op; 0: before us; UINT32_MAX: never */
    uint32_t quiet_us;    /* longest silence of it while it had the op open */
    uint32_t delay_us;    /* its slowest packet's time on the way, over that of its fastest */
    uint32_t repaired;    /* bytes of it that came as repairs */
    uint32_t lost;        /* packets to it that were lost */
    uint32_t drops;       /* datagrams that its kernel dropped meanwhile, by its own word */
    uint16_t fresh;       /* partial jobs: its ranks whose slot was fresh, bit per place among them */
    uint16_t stale;       /* and those whose slot was stale */
    uint32_t oldest_step; /* the oldest step in what it contributed, as its trainers number them */
    uint32_t reserved;
} ut_receipt_peer;

/* The account of one op on one host: 224 bytes and a row per host. Conservation: expected = used + missing. */
typedef struct ut_receipt {
    uint64_t op_seq;
    uint32_t status;      /* enum ut_status */
    int32_t error;        /* enum ut_error; 0 unless UT_FAILED */
    uint16_t hosts;       /* rows of `peer` in use */
    uint16_t self;        /* this host's row, all zero but its weight */
    uint16_t culprit;     /* host to blame for what is missing or for the desync; 0xffff for nobody */
    uint8_t stage_end[2]; /* enum ut_stage_end */
    uint8_t field;        /* enum ut_field, for a desync */
    uint8_t trouble;      /* enum ut_trouble: what the culprit has */
    uint8_t hadamard;     /* 1: the bucket travelled transformed */
    uint8_t incast;       /* factor that was in force */
    uint32_t weight_min;  /* ranks summed in the least covered byte of the result */
    uint64_t value_here;  /* of the field that differs: ours, and the culprit's */
    uint64_t value_there;
    uint64_t full_mask; /* hosts known to be in every byte of the result */
    uint64_t any_mask;  /* hosts known to be in at least one byte */
    uint64_t bytes_expected;
    uint64_t bytes_used;
    uint64_t bytes_missing;
    uint64_t bytes_repaired;  /* of those used, came as repairs */
    uint64_t bytes_duplicate; /* came again; never folded twice */
    uint64_t nonfinite;       /* NaN or Inf elements in the result */
    uint64_t elapsed_ns;      /* submission to completion, as the engine saw it */
    uint64_t stage_ns[2];     /* start to end of each stage, from the op's start */
    uint64_t drops_host;      /* datagrams that this host's kernel dropped during the op (SO_RXQ_OVFL) */
    uint32_t t_b_us;          /* bound of a stage that was in force; 0 for none */
    uint32_t t_c_us[2];       /* expected time of each stage that was in force; 0 for none */
    uint32_t agreed_seq; /* low 32 bits of the newest op that was compared with all hosts that were up; this op: none */
    uint64_t digest;     /* of the result's bytes; equal digests: equal replicas */
    uint64_t differ_mask; /* hosts whose result of that op differs from ours */
    uint64_t deadline_ns; /* what it had from its start to its deadline, as that stood in the end; 0 for none */
    uint64_t call_seq;    /* number of the submission that this answers; in a job that is not partial, op_seq */
    uint64_t waited_ns;   /* partial jobs: from when this host had something to give (or was told) to the activation */
    uint16_t initiator;   /* partial jobs: host that started the op; 0xffff: not known, or none (FULL) */
    uint16_t included;    /* partial jobs: ranks whose slot was not null, on all hosts that were heard */
    uint8_t policy;       /* enum ut_policy in force; NONE where the job is not partial */
    uint8_t slot;         /* enum ut_slot: of the caller, in this op */
    uint8_t kept;         /* 1: what was given with this call lies in the slot still, for the next op */
    uint8_t eta;          /* bound of the job for contributions that are combined; 0: default */
    uint64_t owners;      /* hosts that the bucket was cut among: all, but in TAR those alone that were not gone */
    ut_receipt_peer peer[UT_HOSTS_MAX];
} ut_receipt;

typedef struct ut_completion_ring {
    uint64_t head;              /* entries ever written; engine only; release store */
    uint64_t submissions_taken; /* submissions ever consumed; engine only */
    /* Partial jobs; engine only, release stores. Numbers are those of submissions that gave something, plus one. */
    uint64_t taken;   /* the newest whose contribution an op took */
    uint64_t freed;   /* the newest such that the engine reads neither it nor an earlier one any more, one that waits
                         in the slot excepted */
    uint64_t results; /* op_seq of the newest op that ended here with a result, plus one */
    uint64_t reserved[3];
    ut_receipt entries[UT_RING_ENTRIES];
} ut_completion_ring;

/* Trainer's side. Returns UT_ERR_FULL when 64 submissions or unread completions are outstanding. */
int ut_ring_submit(ut_submission_ring *submissions, const ut_completion_ring *completions, const ut_submission *entry);
/* Copies the next receipt out and returns 1; returns 0 when there is none. */
int ut_ring_take_completion(ut_submission_ring *submissions, const ut_completion_ring *completions, ut_receipt *ret);

/* True if there is something to take. */
int ut_ring_has_submission(const ut_submission_ring *submissions, uint64_t taken);
/* Engine's side. |taken| is the engine's private position: the shared one is only ever written. Returns 1, or 0 for
 * none. */
int ut_ring_take_submission(const ut_submission_ring *submissions, ut_completion_ring *completions, uint64_t *taken,
                            ut_submission *ret);
/* |written| is the engine's private position. Returns UT_ERR_FULL if the trainer has not taken what it was given. */
int ut_ring_complete(const ut_submission_ring *submissions, ut_completion_ring *completions, uint64_t *written,
                     const ut_receipt *receipt);

#endif
