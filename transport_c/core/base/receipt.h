/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trainer gets back: the account of one op. Receipts travel in shared memory (core/face/ring.h), so their layout
 * is fixed. core/account/ fills them.
 */
#ifndef UT_RECEIPT_H
#define UT_RECEIPT_H

#include "core/base/ut.h"

enum ut_status {
    UT_COMPLETE = 1,     /* every byte holds every rank's contribution */
    UT_PARTIAL = 2,      /* usable; each byte is divided by the number of ranks in it, see `peer` */
    UT_INSUFFICIENT = 3, /* nothing of any other host is in it, or in a job on one host nothing of any other rank: the
                            buffer holds this host's own value */
    UT_FAILED = 4,       /* `error` says why; dst is unspecified */
    UT_EMPTY = 5,        /* partial jobs: no such result yet; dst is untouched, and what was given waits for an op */
    UT_BEHIND = 7,       /* coded jobs: the result of the step that was asked for is not here, and will not be */
    UT_OVERTAKEN = 6,    /* partial jobs: the contribution to be replaced is in an op already; nothing was done */
};
/* What a rank's slot held when an op was activated. STALE: given for an earlier op than the one that took it. */
enum ut_slot { UT_SLOT_NULL, UT_SLOT_FRESH, UT_SLOT_STALE };
/* What ended a stage. COMPLETE: everything is there. DEADLINE: the deadline, or t_B. ABSENT: all other hosts are gone.
 * EARLY: t_C, or in best effort the senders have nothing more to send. */
enum ut_stage_end { UT_END_NONE, UT_END_COMPLETE, UT_END_DEADLINE, UT_END_ABSENT, UT_END_EARLY };
/* What kind of trouble the culprit has. UDP: its daemon answers over TCP, and UDP to it or from it does not get through
 * at all (ut_engine_peers_blocked). */
enum ut_trouble {
    UT_TROUBLE_NONE,
    UT_TROUBLE_SENDER,
    UT_TROUBLE_PATH,
    UT_TROUBLE_RECEIVER,
    UT_TROUBLE_GONE,
    UT_TROUBLE_UDP
};
/* Why bytes of a peer are missing. */
enum ut_missing { UT_MISSING_NOTHING, UT_MISSING_ABSENT, UT_MISSING_SILENT, UT_MISSING_LOST, UT_MISSING_CLOSED };

/* The part of one peer host in an op, as this host saw it. 72 bytes. Times are in us after the op's start here. */
typedef struct ut_receipt_peer {
    uint64_t expected[2]; /* bytes expected from it: stage 1 (its contribution to our shard), stage 2 (its shard) */
    uint32_t missing[2];  /* how many of those bytes never came in time */
    uint16_t weight;      /* ranks summed in what it sent; 0 if nothing came */
    uint8_t why;          /* enum ut_missing */
    uint8_t trouble;      /* enum ut_trouble: what ails the peer, if it is to blame; NONE in a COMPLETE op */
    uint32_t first_us;    /* when its first byte of the op came; 0 if none */
    uint32_t last_us;     /* when its last byte of the op came; 0 if none */
    uint32_t opened_us;   /* when it was heard to have called the op; 0: before us; UINT32_MAX: never */
    uint32_t quiet_us;    /* its longest silence while it had the op open */
    uint32_t delay_us;    /* how much longer its slowest packet was on the way than its fastest */
    uint32_t repaired;    /* bytes from it that came as repairs */
    uint32_t lost;        /* packets to it that were lost */
    uint32_t drops;       /* datagrams that its kernel dropped during the op, as it says itself */
    uint16_t fresh; /* its ranks in the op, bit per place among them; 0: not known. Partial jobs: the fresh ones */
    uint16_t stale; /* partial jobs: its ranks whose slot was stale */
    uint32_t oldest_step; /* the oldest step in what it contributed, as its trainers number them */
    uint16_t gone;        /* its ranks that are not in the op, and have left or died; 0 in partial jobs */
    uint16_t late; /* its ranks that are not in the op because it did not wait for their call; 0 in partial jobs */
} ut_receipt_peer;

/* The account of one op on one host, and a row per host. Always expected = used + missing, except in coded jobs. */
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
    uint64_t bytes_repaired;  /* how many of the used bytes came as repairs */
    uint64_t bytes_duplicate; /* bytes that came again; they were not folded again */
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
    /* Coded jobs, else 0. Always expected = used + redundant + missing; elsewhere nothing is redundant. */
    uint64_t unused_mask;     /* hosts that gave and of whose contribution this host needed nothing */
    uint64_t late_mask;       /* hosts that are up and had given nothing when this host's shard was done */
    uint64_t bytes_redundant; /* bytes that came although what they hold was there from another host */
    double residual_squared;  /* of a sum that is not exact: how far its least slot is from the sum of all parts */
    uint32_t step;            /* the trainers' number of the step that the op was for */
    uint8_t exact;            /* 1: the result is the sum over all data, 2: it is not */
    uint8_t lacks;            /* sparse: 1: an owner's sum lacks what this host gave, see UT_SUBMIT_RETURN */
    uint8_t portion;          /* which portion of a call that was split (core/base/portion.h); 0: all of it */
    uint8_t reserved;
    /* Payload that this host had sent and received of the op when it ended here: repairs and what came again too, and
     * of sparse ops the bytes of blocks, where all other numbers here count bytes of the dense tensor. */
    uint64_t wire_sent, wire_received;
    uint64_t values; /* sparse: elements that the entries of this host's ranks name, as far as these are good; else 0 */
    ut_receipt_peer peer[UT_HOSTS_MAX];
} ut_receipt;

#endif
