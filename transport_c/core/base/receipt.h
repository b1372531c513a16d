/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trainer gets back: the account of one op. Receipts travel in shared memory (core/face/ring.h), so their layout
 * is fixed. core/account/ fills them.
 */
#ifndef UT_RECEIPT_H
#define UT_RECEIPT_H

#include "core/base/ut.h"

enum ut_status {
    /* generated: ut_status (schema/) */
    UT_COMPLETE = 1, /* every byte holds every rank's contribution */
    UT_PARTIAL = 2,  /* usable; each byte is divided by the number of ranks in it, see `peer` */
    /* Nothing of any other host is in it, or in a job on one host nothing of any other rank: the buffer holds this
     * host's own value. */
    UT_INSUFFICIENT = 3,
    UT_FAILED = 4,    /* `error` says why; dst is unspecified */
    UT_EMPTY = 5,     /* partial jobs: no such result yet; dst is untouched, and what was given waits for an op */
    UT_OVERTAKEN = 6, /* partial jobs: the contribution to be replaced is in an op already; nothing was done */
    UT_BEHIND = 7,    /* coded jobs: the result of the step that was asked for is not here, and will not be */
    /* generated: end */
};
/* What a rank's slot held when an op was activated. */
enum ut_slot {
    /* generated: ut_slot (schema/) */
    UT_SLOT_NULL = 0,  /* nothing: the op went without this rank */
    UT_SLOT_FRESH = 1, /* what was given for this op */
    UT_SLOT_STALE = 2, /* what was given for an earlier one, alone or with newer */
    /* generated: end */
};
/* What ended a stage. */
enum ut_stage_end {
    /* generated: ut_stage_end (schema/) */
    UT_END_NONE = 0,     /* it did not end */
    UT_END_COMPLETE = 1, /* everything is there */
    UT_END_DEADLINE = 2, /* the deadline came or, in best effort, t_b was over */
    UT_END_ABSENT = 3,   /* nothing more could come: all that was missing belongs to hosts known to be gone */
    UT_END_EARLY = 4,    /* t_C is over, or in best effort the senders have nothing more to send */
    /* generated: end */
};
/* What kind of trouble the culprit has. UDP: see ut_engine_peers_blocked. */
enum ut_trouble {
    /* generated: ut_trouble (schema/) */
    UT_TROUBLE_NONE = 0,   /* nobody is to blame, or it is not known for what */
    UT_TROUBLE_SENDER = 1, /* it called the op late, or stood still, and nothing was lost meanwhile */
    UT_TROUBLE_PATH = 2,   /* it sent in time, but its data came late or was lost on the way */
    /* Its kernel dropped what had arrived: the socket buffer is too small, or the host has too little CPU time. */
    UT_TROUBLE_RECEIVER = 3,
    UT_TROUBLE_GONE = 4, /* it is known to be gone, or was silent all the time */
    /* Its daemon answers over TCP, and UDP to it or from it does not get through at all: a firewall, most likely. */
    UT_TROUBLE_UDP = 5,
    /* generated: end */
};
/* Why bytes of a peer are missing. */
enum ut_missing {
    /* generated: ut_missing (schema/) */
    UT_MISSING_NOTHING = 0, /* all that was due of it has come */
    UT_MISSING_ABSENT = 1,  /* the host is known to be gone */
    UT_MISSING_SILENT = 2,  /* nothing was heard of it during the op */
    UT_MISSING_LOST = 3,    /* it sent, but some packets did not come through in time */
    UT_MISSING_CLOSED = 4,  /* it left the job */
    UT_MISSING_VIEW = 5,    /* it ran this op under another view of the job: its daemon knew of another epoch */
    /* generated: end */
};

/* The part of one peer host in an op, as this host saw it. Times are in us after the op's start here. */
typedef struct ut_receipt_peer {
    /* generated: ut_receipt_peer (schema/) */
    /* Bytes that were due in the first stage (its contribution to our shard) and in the second (the shard that it
     * reduced). */
    uint64_t expected[2];
    uint32_t missing[2]; /* how many of those bytes had not come when the stage ended */
    uint16_t weight;     /* number of ranks that are summed in what it sent; 0 if nothing came */
    uint8_t why;         /* enum ut_missing */
    uint8_t trouble;     /* enum ut_trouble: what ails the peer, if it is to blame; NONE in a COMPLETE op */
    uint32_t first_us;   /* when its first byte came; 0 if none came */
    uint32_t last_us;    /* when its last byte of the op came; 0 if none */
    uint32_t opened_us;  /* when it was heard to have called the op; 0: before us; UINT32_MAX: never */
    uint32_t quiet_us;   /* its longest silence after it had called the op */
    uint32_t delay_us;   /* how much longer its slowest packet was on the way than its fastest */
    uint32_t repaired;   /* how many bytes of what it sent were lost first and came as repairs */
    uint32_t lost;       /* packets to it that were lost */
    uint32_t drops;      /* datagrams that its kernel dropped during the op, as it says itself */
    /* Its ranks in the op, bit per place among them; 0: not known. Partial jobs: the fresh ones. */
    uint16_t fresh;
    /* In a job with a policy: its ranks that are in the op with what they gave for an earlier one. */
    uint16_t stale;
    /* The oldest step, as its ranks number them, in what it contributed; 0 if it contributed nothing. */
    uint32_t oldest_step;
    uint16_t gone; /* without a policy: its ranks that are not in the op, and have left or died */
    /* Without a policy: its ranks that are not in the op because their host did not wait for their call. */
    uint16_t late;
    uint64_t share; /* in a weighted op: the sum of the weights that its ranks gave, as far as it told */
    /* generated: end */
} ut_receipt_peer;

/* The account of one op on one host, and a row per host. Always bytes_expected = bytes_used + bytes_missing; in coded
 * jobs, bytes_redundant besides. */
typedef struct ut_receipt {
    /* generated: ut_receipt (schema/) */
    uint64_t op_seq;          /* number of the op in the job, the same on every rank */
    uint32_t status;          /* enum ut_status */
    int32_t error;            /* enum ut_error; 0 unless the op failed */
    uint16_t hosts;           /* rows of `peer` in use */
    uint16_t self;            /* index of this host, whose row is all zero but its weight and ranks */
    uint16_t culprit;         /* index of the host to blame for what is missing or for the desync; 65535 for nobody */
    uint8_t stage_end[2];     /* enum ut_stage_end */
    uint8_t field;            /* enum ut_field, of a desync */
    uint8_t trouble;          /* enum ut_trouble: what the culprit has */
    uint8_t hadamard;         /* the data travelled transformed */
    uint8_t incast;           /* number of hosts that a host heard at once */
    uint32_t weight_min;      /* number of ranks in the least covered element */
    uint64_t value_here;      /* of the field that differs: the value here */
    uint64_t value_there;     /* of the field that differs: the culprit's value */
    uint64_t full_mask;       /* mask of the hosts known to be in every byte of the result */
    uint64_t any_mask;        /* mask of the hosts known to be in at least one byte of the result */
    uint64_t bytes_expected;  /* bytes that were due from other hosts */
    uint64_t bytes_used;      /* how many of those bytes are in the result */
    uint64_t bytes_missing;   /* how many of those bytes never came in time */
    uint64_t bytes_repaired;  /* how many of the used bytes were lost first and came as repairs */
    uint64_t bytes_duplicate; /* bytes that came again and were thrown away */
    uint64_t nonfinite;       /* NaN or Inf elements in the result */
    uint64_t elapsed_ns;      /* from submission to completion, as the engine saw it */
    uint64_t stage_ns[2];     /* duration of each stage, counted from the start of the op */
    /* Datagrams of all jobs that this host's kernel dropped during the op: if not 0, raise net.core.rmem_max. */
    uint64_t drops_host;
    uint32_t t_b_us;    /* the bound of a stage that was in force; 0 for no bound */
    uint32_t t_c_us[2]; /* the expected time of each stage that was in force; 0 if it was not known */
    /* Low 32 bits of the newest op that was compared with all hosts that were up; this op: none. */
    uint32_t agreed_seq;
    /* 64 bits that depend on every byte of the result: ranks with equal digests hold equal results. */
    uint64_t digest;
    uint64_t differ_mask; /* hosts whose result of that op differs from ours */
    uint64_t deadline_ns; /* the time that the op had from its start to its deadline; 0 for no deadline */
    uint64_t call_seq;    /* number of the submission that this answers; in a job that is not partial, op_seq */
    /* The time from when this host had something to give, or was told of the op, to the op's start. */
    uint64_t waited_ns;
    uint16_t initiator; /* partial jobs: host that started the op; 65535: not known, or none (FULL) */
    /* In a job with a policy: number of ranks that had something to give when the op started, as far as this host
     * heard; 0 if no op started by the deadline. */
    uint16_t included;
    uint8_t policy;       /* enum ut_policy in force; NONE where the job is not partial */
    uint8_t slot;         /* enum ut_slot: of the caller, in this op */
    uint8_t kept;         /* what was given with this call was too late for the op; it waits for the next one */
    uint8_t eta;          /* bound of the job for contributions that are combined; 0: default */
    uint64_t owners;      /* hosts that the bucket was cut among: all, but in TAR those alone that were not gone */
    uint64_t unused_mask; /* coded jobs: hosts that gave and of whose contribution this host needed nothing */
    /* Coded jobs: hosts that are up and had given nothing when this host's shard was done. */
    uint64_t late_mask;
    /* In a coded job: bytes that came although what they hold was there from another rank. */
    uint64_t bytes_redundant;
    /* Coded jobs: of a sum that is not exact: how far its least slot is from the sum of all parts. */
    double residual_squared;
    uint32_t step; /* in a coded job: the step that the op was for */
    uint8_t exact; /* coded jobs: 1: the result is the sum over all data, 2: it is not; else 0 */
    /* In a sparse op: some of what this host gave is in no sum; see the argument `returns` of `allreduce_sparse`. */
    uint8_t lacks;
    /* Which portion of a call that was split (core/base/portion.h); of the whole call 16 times their number; else 0. */
    uint8_t portion;
    /* The forms in which a quantised op travelled, as ut_alike has them; 0 where values travelled as they are. */
    uint8_t wire;
    /* Bytes of payload that this host had sent of the op when it ended here, what it sent again included; slower peers
     * may get some later. */
    uint64_t wire_sent;
    uint64_t wire_received; /* bytes of payload of the op that came to this host, counted as `wire_sent` */
    /* In a sparse op: elements that this host's ranks gave, up to the first bad index of each; 0 for other ops. */
    uint64_t values;
    /* In a quantised op: elements of this host's own contribution that were NaN or infinite. */
    uint64_t nonfinite_given;
    /* In a quantised op: the mean square that rounding is expected to take from an element of this host's
     * contribution. */
    double error_given_squared;
    /* In a quantised op: the mean square that rounding is expected to take from an element of the result. */
    double error_answer_squared;
    uint64_t view;         /* number of the view of the job under which the op ran here: which hosts were in it */
    uint64_t members;      /* mask of the hosts of that view; 0: not known */
    uint64_t relayed_mask; /* mask of the hosts with which packets went by relay when the op ended */
    uint64_t relays_mask;  /* mask of the hosts that forwarded them */
    ut_receipt_peer peer[UT_HOSTS_MAX]; /* one row per host of the job, by host index */
    /* generated: end */
} ut_receipt;

/* The conservation law: what was expected was used, or came although it was not needed, or is missing. */
static inline bool ut_receipt_balances(const ut_receipt *r)
{
    return r->bytes_expected == r->bytes_used + r->bytes_redundant + r->bytes_missing;
}

#endif
