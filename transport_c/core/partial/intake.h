/* SPDX-License-Identifier: Apache-2.0
 *
 * How the ranks of a partial job give, which op takes what they give, and what their calls get. There are two ways. In
 * most such jobs a gift is for the next op, whichever that is (partial.c). In a coded job it is for the step that its
 * call names (coded.h). All that differs between the two beyond the ops themselves (core/op/gathering.h) is in this
 * table, so that no other file asks of which kind a partial job is. What is the same in both is done by the verbs
 * below it.
 */
#ifndef UT_INTAKE_H
#define UT_INTAKE_H

#include "core/op/ext.h"
#include "core/partial/part.h"

typedef struct ut_intake {
    const ut_gathering *gathering; /* how the ops of such a job run */
    bool lends;                    /* a call whose time is over gets its own value back; else it fails */

    /* ---- a job is made ---- */
    /* Options that only an intake's own jobs have go together. NULL: the job has none. */
    bool (*valid)(const ut_job_options *o, uint32_t hosts, uint32_t world);
    /* Carves what such a job needs (ut_partial.own), or only counts it; NULL if that is nothing. */
    void *(*lay_out)(ut_carver *c, const ut_job_config *config);
    /* |j| is a partial job now, and has that memory. */
    void (*init)(ut_job *j);

    /* ---- a rank calls ---- */
    /* What a submission may get wrong beyond the common (core/face/submit.c): an error, or UT_OK. */
    int (*check)(const ut_submission *s);
    /* A call of |r|'s rank came: puts what it gives into the inbox. Returns the number of the kept receipt that answers
     * the call, plus one; 0 if an op to come does; UT_ANSWERED if |ret| does, a receipt without a result. */
    uint64_t (*arrive)(ut_job *j, ut_inbox *r, const ut_waiting *call, ut_ns now, ut_receipt *ret);
    /* A kept receipt answers the call |x| of |r|'s rank. */
    void (*owed)(ut_job *j, ut_inbox *r, const ut_submission *x);

    /* ---- which op starts next (activate.c) ---- */
    /* Something has changed: a gift, a peer's record, a peer. */
    void (*look)(ut_job *j, ut_ns now);
    /* This host may join op |seq|, which |host| says that it runs. */
    bool (*joins)(const ut_job *j, uint32_t host, uint64_t seq);
    /* Leaves out ops that are over everywhere else. Returns the op that starts next; with |elsewhere| that runs on a
     * peer, and is the next one. */
    uint64_t (*next)(ut_job *j, bool elsewhere, ut_ns now);
    /* Until when op |seq| waits, which is due since |since| and has until |end|; 0: it need not wait. */
    ut_ns (*waits_until)(const ut_job *j, uint64_t seq, ut_ns since, ut_ns end);

    /* ---- an op begins ---- */
    /* |op| begins, in memory in which a result may have lain: sets in `what` what is known from the op's number. */
    void (*begin)(ut_job *j, ut_op *op);
    /* The op takes this gift. */
    bool (*is_for)(const ut_op *op, const ut_gift *g);

    /* ---- it ends ---- */
    /* The op, which has ended, with a result or not (|ok|), answers the call |x| of |r|'s rank. */
    bool (*answers)(const ut_op *op, const ut_inbox *r, const ut_submission *x, bool ok);
} ut_intake;

/* Of ut_intake.arrive. */
#define UT_ANSWERED UINT64_MAX

extern const ut_intake ut_intake_partial;

/* How the ranks of a job with such options give; NULL: it is not partial, or needs an extension that is not linked. */
static inline const ut_intake *ut_intake_of(const ut_job_options *o)
{
    if (o->policy <= UT_POLICY_NONE)
        return NULL;
    return o->policy == UT_POLICY_CODED ? ut_extensions_linked.coded : &ut_intake_partial;
}

/* inbox.c */
/* The inbox of the session's rank. */
const ut_inbox *ut_inbox_see(const ut_job *j, uint32_t session);
static inline ut_inbox *ut_inbox_of(ut_job *j, uint32_t session)
{
    return (ut_inbox *)ut_inbox_see(j, session);
}
/* Puts what |call| gives into the inbox, in the place of what waits there: see ut_gift. */
void ut_inbox_put(ut_inbox *r, const ut_waiting *call, uint64_t given_for, uint64_t arrived, ut_ns now);
/* Whether what the call |x| gave waits for an op, and whether it is in the op that is open. */
bool ut_inbox_has(const ut_inbox *r, const ut_submission *x);
bool ut_inbox_lent(const ut_inbox *r, const ut_submission *x);
/* No op takes what the call |x| gave, if none has taken it yet. */
void ut_inbox_drop(ut_inbox *r, const ut_submission *x);
/* What is in the op that has failed, of which |receipt| is kept, waits for the next one as if it were given |now|, if
 * its call still waits. That receipt answers nobody, and takes no room among those kept. Returns whether it is so. */
bool ut_inbox_give_again(ut_job *j, ut_inbox *r, const ut_receipt *receipt, ut_ns now);
/* The kept receipt number |answer| - 1 answers the call |w|. */
void ut_inbox_owe(ut_job *j, ut_inbox *r, ut_waiting *w, uint64_t answer);
/* Tells the rank, in its ring, which of its gifts have been taken and are free again, and what results there are. */
void ut_inbox_tell(ut_job *j, const ut_inbox *r);

/* answer.c */
/* Makes a receipt without a result. */
ut_receipt ut_answer_brief(const ut_job *j, const ut_submission *x, uint32_t status, int error);
/* Answers a call with |receipt|; |since| is when the call came. */
void ut_answer(ut_job *j, uint32_t session, const ut_submission *x, ut_receipt *receipt, ut_ns since, ut_ns now);
/* Answers |w|, which waits no more, with a receipt without a result, and drops what it gave. */
void ut_answer_without(ut_job *j, ut_inbox *r, const ut_waiting *w, ut_receipt receipt, ut_ns now);
/* The kept receipt number |answer| - 1; and what its op has computed, if that has a result: it lies in the op's memory
 * until all have it. */
const ut_receipt *ut_answer_kept(const ut_job *j, uint64_t answer);
const ut_op_what *ut_answer_what(const ut_job *j, const ut_receipt *kept);

#endif
