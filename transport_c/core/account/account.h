/* SPDX-License-Identifier: Apache-2.0
 *
 * What is told of ops: what each peer did while one ran and who held it up (witness.c, culprit.c), what of its result
 * came and from whom (receipt.c), and whether all hosts got the same (replica.c). This room knows no op. It reads what
 * is computed, the plan, the slots and the paths, is told the rest as facts, and changes none of it.
 */
#ifndef UT_ACCOUNT_H
#define UT_ACCOUNT_H

#include "core/base/bits.h"
#include "core/base/host.h"
#include "core/fold/fold.h"
#include "core/path/conn.h"

/* What this host's result is, in a word, and which hosts said what theirs is. */
typedef struct ut_replica {
    uint64_t digest; /* once `known` */
    bool known;      /* the op has ended here with a result */
    uint64_t told;   /* hosts that a record with the digest was sent to */
    uint64_t heard;  /* hosts whose digest was held against ours */
    uint64_t differ; /* of those: it is another */
} ut_replica;

/* What is noted of one host while an op runs, for the verdict on who held it up (witness.c). */
typedef struct ut_note {
    ut_ns opened;                /* its record came; UT_NEVER: not yet */
    ut_ns first;                 /* its first data; 0 for none */
    ut_ns heard;                 /* the newest word of it */
    ut_ns quiet;                 /* longest time between two words while it had the op open */
    uint32_t lag_first;          /* arrival less sending, us modulo 2^24, of its first data packet */
    int32_t lag_least, lag_most; /* of all, less lag_first */
    uint64_t repaired;           /* bytes */
    uint64_t packets;            /* data packets used */
    uint64_t lost_before;        /* packets to it, when the op began */
    uint32_t drops_before;
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

    /* The newest op of which the digests of all hosts that were up are known here. */
    bool agreed;
    uint64_t agreed_seq, agreed_differ;
    uint64_t kept_count;
} ut_job_account;

/* What an op's receipt tells beyond what other parts of the op know. */
typedef struct ut_op_account {
    /* Given once (ut_account_init). */
    ut_job_account *job;
    const ut_op_what *what;
    const ut_op_plan *plan;
    const ut_op_fold *fold;

    uint8_t failed; /* it ended with UT_FAILED */
    uint64_t bytes_repaired, bytes_duplicate, kernel_drops_before;
    ut_replica replica;
    ut_note note[UT_HOSTS_MAX];
    uint16_t culprit; /* of a desync */
    uint8_t field;
    int32_t error;
    uint64_t value_here, value_there;
} ut_op_account;

/* What an op that ends tells of itself. Masks are of hosts. */
typedef struct ut_account_facts {
    uint64_t seq;
    ut_ns start, now;
    uint64_t tx_done;                      /* send no more */
    uint64_t contributors;                 /* bring something, as far as is known; 0 if nothing is known */
    uint64_t started;                      /* by their newest record the op has started there */
    const ut_record *record[UT_HOSTS_MAX]; /* the newest of the place of this op, be it of this op or of another */
    ut_ns first_at[UT_HOSTS_MAX];          /* when the op of that record was first heard of */
    uint64_t full_mask, any_mask;          /* are in every byte, and in some byte, of this host's shard */
    uint64_t peer_full;                    /* are in every byte of the shards of `peer_masks` */
    uint64_t peer_masks;                   /* have told the masks of their shards */
} ut_account_facts;

/* |job| was filled in. The other parts of the op stay the caller's. */
void ut_account_init(ut_op_account *a, ut_job_account *job, const ut_op_what *what, const ut_op_plan *plan,
                     const ut_op_fold *fold);

/* witness.c */
/* An op opens, which |started| have open already. */
void ut_witness_begin(ut_op_account *a, uint64_t started, ut_ns now);
/* |len| bytes of |host| were used. */
void ut_witness_data(ut_op_account *a, uint32_t host, const ut_data *h, size_t len, ut_ns now);
/* A valid packet of |host| came; |opened|: by its record it has the op open. */
void ut_witness_word(ut_op_account *a, uint32_t host, bool opened, ut_ns now);
/* Hosts that a collective must fail for: that it lacks something of, or that were not heard to have called it. Those
 * that are gone alone, if any are; not those that gave up themselves (|tx_done|), for another's sake. */
uint64_t ut_witness_breakers(const ut_op_account *a, uint64_t tx_done);
/* Fills what the rows say of times and losses; and the culprit and its trouble, unless the op was COMPLETE. */
void ut_witness_tell(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r);

/* replica.c */
/* The op has ended here with a result: the digest of the slots is final. */
void ut_replica_ended(ut_op_account *a);
/* |host| says that its result of op |seq|, which has ended here with a result, has the digest word |theirs|. */
void ut_replica_compare(ut_op_account *a, uint64_t seq, uint32_t host, uint32_t theirs);
/* An op that is over has still to tell |host| its digest. */
static inline bool ut_replica_untold(const ut_op_account *a, uint32_t host)
{
    return a->replica.known && !ut_bits_have(a->replica.told, host);
}

/* receipt.c */
/* Fills the rows of peers and the sums of bytes from what came. */
void ut_receipt_rows(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r);
/* Hosts in every byte, and in some byte, of an allreduce's result: over this host's shard and those of all others. */
void ut_receipt_masks(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r);
void ut_receipt_keep(ut_job_account *j, const ut_receipt *r);
/* The |back|-th newest of those kept, 0 for the newest; NULL if there is none. */
const ut_receipt *ut_receipt_back(const ut_job_account *j, uint32_t back);

#endif
