/* SPDX-License-Identifier: Apache-2.0
 *
 * What is told of ops: what each peer did while an op ran and which host held it up (witness.c, culprit.c), which parts
 * of its result came and from which hosts (receipt.c), and whether all hosts got the same result (replica.c). This room
 * knows no op. It reads what is computed, the plan, the slots and the paths, is told the rest as facts, and changes
 * none of it.
 */
#ifndef UT_ACCOUNT_H
#define UT_ACCOUNT_H

#include "core/base/bits.h"
#include "core/base/host.h"
#include "core/fold/fold.h"
#include "core/path/conn.h"

/* The digest of this host's result, and which hosts have told the digest of theirs. */
typedef struct ut_replica {
    uint64_t digest; /* once `known` */
    bool known;      /* the op has ended here with a result */
    uint64_t heard;  /* mask of the hosts whose digest was compared with ours */
    uint64_t differ; /* mask of those hosts whose digest differs */
} ut_replica;

/* What is noted of one host while an op runs, for the verdict on which host held it up (witness.c). */
typedef struct ut_note {
    ut_ns opened;                /* when its record came; UT_NEVER: not yet */
    ut_ns first;                 /* when its first data came; 0 for none */
    ut_ns heard;                 /* when its newest packet came */
    ut_ns quiet;                 /* longest time between two of its packets while it had the op open */
    uint32_t lag_first;          /* time of arrival less time of sending of its first data packet, us modulo 2^22 */
    int32_t lag_least, lag_most; /* the least and the most such time of its data packets, less lag_first */
    uint64_t repaired;           /* bytes from it that came as repairs */
    uint64_t packets;            /* data packets from it that were used */
    uint64_t lost_before;        /* packets to it that were lost before the op began */
    uint32_t drops_before;       /* datagrams that its kernel had dropped before the op began */
} ut_note;

/* What a job knows of its past ops, and where its peers are. */
typedef struct ut_job_account {
    /* Given once (ut_account_init). */
    const ut_host *host;
    const ut_conn *conn; /* `hosts` of them */
    ut_receipt *kept;    /* the newest UT_RECEIPTS_KEPT, as a ring */
    uint32_t job, hosts, self;
    uint32_t payload; /* bytes of a full slot */
    uint32_t world;   /* ranks of the job */

    /* The newest op for which the digests of all hosts that were up are known here. */
    bool agreed;
    uint64_t agreed_seq, agreed_differ;
    uint64_t kept_count;
    uint64_t blocked; /* hosts that are to blame for that UDP does not get through, by the shell's word */
    uint64_t relayed; /* hosts with which packets go by relay, likewise, ... */
    uint64_t relays;  /* ... and those that forward them */
} ut_job_account;

/* What an op's receipt tells beyond what other parts of the op know. */
typedef struct ut_op_account {
    /* Given once (ut_account_init). */
    ut_job_account *job;
    const ut_op_what *what;
    const ut_op_plan *plan;
    const ut_op_fold *fold;

    uint8_t failed; /* 1: the op ended with UT_FAILED */
    uint64_t bytes_repaired, bytes_duplicate, kernel_drops_before;
    uint64_t wire_sent, wire_received; /* of payload */
    ut_replica replica;
    ut_note note[UT_HOSTS_MAX];
    uint16_t culprit; /* the host whose record differs, in a desync */
    uint8_t field;
    int32_t error;
    uint64_t value_here, value_there;
} ut_op_account;

/* What an op that ends tells of itself. Masks are of hosts. */
typedef struct ut_account_facts {
    uint64_t seq;
    ut_ns start, now;
    uint64_t tx_done;      /* hosts that send no more */
    uint64_t contributors; /* hosts that bring something, as far as is known; 0 if nothing is known */
    uint64_t started;      /* hosts on which, by their newest record, the op has started */
    const ut_record
        *record[UT_HOSTS_MAX];    /* the newest with the op's number modulo UT_OPS_MAX; its op may be another */
    ut_ns first_at[UT_HOSTS_MAX]; /* when the op of that record was first heard of */
    uint64_t full_mask, any_mask; /* hosts in every byte, and in some byte, of this host's shard */
    uint64_t peer_full;           /* hosts in every byte of the shards of `peer_masks` */
    uint64_t peer_masks;          /* hosts that have told the masks of their shards */
    uint64_t blamed; /* hosts for which it failed, as is known of it; 0: they are found by what is missing */
} ut_account_facts;

/* Assumes that |job| was filled in. The other parts of the op stay the caller's. */
void ut_account_init(ut_op_account *a, ut_job_account *job, const ut_op_what *what, const ut_op_plan *plan,
                     const ut_op_fold *fold);

/* The op failed because what this host's own ranks gave differs. Peers cannot see that: the record says it in words. */
static inline bool ut_account_own_fault(const ut_op_account *a)
{
    return a->failed && a->field && a->culprit == a->job->self;
}

/* witness.c */
/* An op opens that the hosts |started| have open already. */
void ut_witness_begin(ut_op_account *a, uint64_t started, ut_ns now);
/* Of |packets| from |host| that came at once, of which |h| is one, all were used. */
void ut_witness_data(ut_op_account *a, uint32_t host, const ut_data *h, uint32_t packets, ut_ns now);
/* A valid packet of |host| came. |opened|: its record says that it has the op open. */
void ut_witness_heard(ut_op_account *a, uint32_t host, bool opened, ut_ns now);
/* Mask of the hosts because of which a collective must fail: something of theirs is missing, or they were not heard to
 * have called it. If some of these are gone, only those; and never hosts that gave up themselves (|tx_done|) because of
 * another host. */
uint64_t ut_witness_breakers(const ut_op_account *a, uint64_t tx_done);
/* Fills in what the rows say of times and losses; and the culprit and its trouble, unless the op was COMPLETE. */
void ut_witness_tell(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r);

/* replica.c */
/* The op has ended here with a result: the digest of the slots is final. */
void ut_replica_ended(ut_op_account *a);
/* |host| says that its result of op |seq|, which has ended here with a result, has the digest |theirs|. */
void ut_replica_compare(ut_op_account *a, uint64_t seq, uint32_t host, uint32_t theirs);

/* receipt.c */
/* Fills in the rows of peers, and the sums of bytes, from what came. */
void ut_receipt_rows(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r);
/* Fills in the masks of the hosts in every byte, and in some byte, of an allreduce's result, over all shards. */
void ut_receipt_masks(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r);
void ut_receipt_keep(ut_job_account *j, const ut_receipt *r);
/* Returns the |back|-th newest receipt of those kept, 0 for the newest; NULL if there is none. */
const ut_receipt *ut_receipt_back(const ut_job_account *j, uint32_t back);

#endif
