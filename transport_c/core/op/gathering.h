/* SPDX-License-Identifier: Apache-2.0
 *
 * How the contributions to a job's ops come together. There are two ways. In an ordinary job every rank calls every op,
 * and a host joins an op when its ranks have called it (gathering.c). In a partial job an op starts with what the ranks
 * have given so far, and goes on without ranks that have given nothing (core/partial/). All that differs between the
 * two while an op runs is in this table, so that no other file asks of which kind a job is.
 */
#ifndef UT_GATHERING_H
#define UT_GATHERING_H

#include "core/op/parts.h"
#include "core/wire/packets.h"

struct ut_job;

/* Why it is asked whether stage 1 has what it needs: it goes on, everything has come that will, or its time is over. */
enum ut_sum_over { UT_SUM_GOES_ON, UT_SUM_ALL_CAME, UT_SUM_IS_CUT };

typedef struct ut_gathering {
    uint8_t
        record_flags; /* flags of a peer's record once its op has started there; before, ranks there are only ready */
    bool starts_together;     /* an op starts on all hosts at once, so that t_B runs from its start here */
    const ut_fold_rule *rule; /* how contributions are folded; NULL: as the op's codec says */
    bool encodes;             /* contributions may travel encoded */
    bool keeps;               /* results lie in memory of the job, and an op outlives the trainers that gave to it */
    uint64_t early;           /* early data is kept for so many ops, from the next one on */

    /* ---- an op opens ---- */
    /* Returns how many contributions this host's ranks have, and in |ret|, which holds UT_LOCAL_MAX, where they lie. */
    unsigned (*sources)(const struct ut_job *j, const ut_op *op, const void **ret);
    /* Likewise of the residuals of a quantised op that its ranks brought. NULL: its ops are never quantised. */
    unsigned (*residuals)(const struct ut_job *j, const ut_op *op, float **ret);
    /* Sets where the host's contribution lies and where the result goes (`memory.src`, `.dst`), and how many ranks are
     * in the contribution (`local.weight`). Several sources were combined into `memory.bucket`. */
    void (*place)(struct ut_job *j, ut_op *op);
    /* The op runs: lets the peers hear of it. */
    void (*announce)(struct ut_job *j, ut_op *op, ut_ns now);

    /* ---- it runs ---- */
    /* |host|'s record of a running op was taken, and agrees. This may end the op. */
    void (*record)(struct ut_job *j, ut_op *op, uint32_t host, const ut_record *r, ut_ns now);
    /* Returns how many ranks a slot holds from which no rank is missing. */
    uint32_t (*whole)(const struct ut_job *j, const ut_op *op);
    /* Whether the own shard lacks something without which there is no result: an error with which the op fails; 1 if
     * stage 1 is to go on although it could end; 0 if there is nothing of the sort. */
    int (*lacks)(const struct ut_job *j, ut_op *op, enum ut_sum_over over);
    /* `time.hold_until` has come. */
    void (*held)(struct ut_job *j, ut_op *op, ut_ns now);
    /* What `whole` returns may have changed: finds anew which owners' shards lack a rank (`fold.result.short_hosts`).
     */
    void (*recount)(const struct ut_job *j, ut_op *op);
    /* Returns the mask of the hosts that contribute, as far as is known; 0 if nothing is known. */
    uint64_t (*contributors)(const struct ut_job *j, const ut_op *op);

    /* ---- it ends ---- */
    /* Adds to the op's receipt what no other part of the op knows. */
    void (*account)(const struct ut_job *j, const ut_op *op, ut_receipt *r);
    /* Returns the hosts for which a failed op failed, where it is known; 0: the receipt judges by what is missing.
     * NULL: it always does. */
    uint64_t (*blames)(const struct ut_job *j, const ut_op *op);
    /* Takes apart what the receipt's sums of bytes say of used bytes. */
    void (*count)(const struct ut_job *j, const ut_op *op, ut_receipt *r);
    /* The op has ended and its receipt is kept. Returns whether a rank here has the result, if there is a result. */
    bool (*ended)(struct ut_job *j, const ut_op *op, const ut_receipt *r, ut_ns now);

    /* ---- feedback ---- */
    /* Adds to this host's record of an op what no other part of the op knows. */
    void (*tell)(const struct ut_job *j, const ut_op *op, ut_record *r);
    /* Returns whether something is to be said to |host| of the next op although it has not started, and in |ret| what.
     */
    bool (*readiness)(const struct ut_job *j, uint32_t host, ut_record *ret);
    /* |host| sent a record. Returns whether the record's op has started there. */
    bool (*hear)(struct ut_job *j, uint32_t host, const ut_record *r);
    /* A feedback has been taken in. */
    void (*heard)(struct ut_job *j, ut_ns now);

    /* The trainer of |session| has gone; its memory must not be touched any more. */
    void (*gone)(struct ut_job *j, uint32_t session, ut_ns now);
} ut_gathering;

/* For `lacks`, where each sum is a result. */
int ut_gathering_lacks_nothing(const struct ut_job *j, ut_op *op, enum ut_sum_over over);
/* For `count`, where all that came was needed. */
void ut_gathering_counts_all(const struct ut_job *j, const ut_op *op, ut_receipt *r);
/* The table of ordinary jobs. */
extern const ut_gathering ut_gathering_ordinary;

#endif
