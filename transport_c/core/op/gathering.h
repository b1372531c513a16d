/* SPDX-License-Identifier: Apache-2.0
 *
 * How the contributions to a job's ops come together. There are two ways. In an ordinary job every rank calls every op,
 * and a host joins an op when its ranks have called it (gathering.c). In a partial job an op starts with what lies in
 * the ranks' slots, and goes on without those who have given nothing (core/partial/). All that differs between the two
 * while an op runs is in this table, so that nobody else asks of which kind a job is.
 */
#ifndef UT_GATHERING_H
#define UT_GATHERING_H

#include "core/op/parts.h"
#include "core/wire/packets.h"

struct ut_job;

typedef struct ut_gathering {
    uint8_t record_flags; /* that a peer's record has once its op has started there; before, its ranks are but ready */
    bool starts_together; /* an op starts on all hosts at once: t_B bounds it from its start here */
    bool encodes;         /* contributions may travel encoded */
    bool keeps;           /* results lie in memory of the job, and an op outlives the trainers that gave to it */
    uint64_t early;       /* of this many ops from the next one on, what comes early is kept */

    /* ---- an op opens ---- */
    /* Where the contributions of this host's ranks lie; returns how many. |ret| holds UT_LOCAL_MAX. */
    unsigned (*sources)(const struct ut_job *j, const ut_op *op, const void **ret);
    /* Says where the host's contribution lies and where the result goes (`memory.src`, `.dst`), and how many ranks are
     * in it (`local.weight`). Several sources were combined into `memory.bucket`. */
    void (*place)(struct ut_job *j, ut_op *op);
    /* The op runs: peers are to hear of it. */
    void (*announce)(struct ut_job *j, const ut_op *op, ut_ns now);

    /* ---- it runs ---- */
    /* |host|'s record of a running op was taken, and agrees. It may end the op. */
    void (*record)(struct ut_job *j, ut_op *op, uint32_t host, const ut_record *r, ut_ns now);
    /* Ranks in a slot from which nobody is missing. */
    uint32_t (*whole)(const struct ut_job *j, const ut_op *op);
    /* What is whole may have changed: which owners' shards lack somebody is found anew (`fold.short_hosts`). */
    void (*recount)(const struct ut_job *j, ut_op *op);
    /* Hosts that contribute, as far as is known; 0 if nothing is. */
    uint64_t (*contributors)(const struct ut_job *j, const ut_op *op);

    /* ---- it ends ---- */
    /* Adds to the op's receipt what no other part of the op knows. */
    void (*account)(const struct ut_job *j, const ut_op *op, ut_receipt *r);
    /* The op has ended and its receipt is kept. True if somebody here has the result, should there be one. */
    bool (*ended)(struct ut_job *j, const ut_op *op, const ut_receipt *r, ut_ns now);

    /* ---- feedback ---- */
    /* Adds to this host's record of an op what no other part of the op knows. */
    void (*tell)(const struct ut_job *j, const ut_op *op, ut_record *r);
    /* Something is to be said of the next op although it has not started: |ret|. */
    bool (*readiness)(const struct ut_job *j, ut_record *ret);
    /* |host| sent a record. True if its op has started there. */
    bool (*hear)(struct ut_job *j, uint32_t host, const ut_record *r);
    /* A feedback was taken in. */
    void (*heard)(struct ut_job *j, ut_ns now);

    /* The trainer of |session| has gone; its memory must not be touched any more. */
    void (*gone)(struct ut_job *j, uint32_t session, ut_ns now);
} ut_gathering;

/* Of ordinary jobs. */
extern const ut_gathering ut_gathering_ordinary;

#endif
