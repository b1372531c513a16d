/* SPDX-License-Identifier: Apache-2.0
 *
 * How the ranks of a partial job give, which op takes what they give, and what their calls get. There are two ways. In
 * most such jobs a gift is for the next op, whichever that is (partial.c). In a coded job it is for the step that its
 * call names (coded.h). All that differs between the two beyond the ops themselves (core/op/gathering.h) is in this
 * table, so that no other file asks of which kind a partial job is.
 */
#ifndef UT_INTAKE_H
#define UT_INTAKE_H

#include "core/partial/part.h"

typedef struct ut_intake {
    const ut_gathering *gathering; /* how the ops of such a job run */
    bool lends;                    /* a call whose time is over gets its own value back; else it fails */

    /* ---- a job is made ---- */
    /* Carves what such a job needs (ut_partial.own), or only counts it; NULL if that is nothing. */
    void *(*lay_out)(ut_carver *c, const ut_job_config *config);
    /* |j| is a partial job now, and has that memory. */
    void (*init)(ut_job *j);

    /* ---- a rank calls ---- */
    /* What a submission may get wrong beyond the common (core/face/submit.c): an error, or UT_OK. */
    int (*check)(const ut_submission *s);
    /* Takes a rank's call, which was checked. */
    void (*submit)(ut_job *j, uint32_t session, const ut_waiting *call, ut_ns now);

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

    /* ---- an op starts ---- */
    /* Sets in `what` what is known from the op's number. */
    void (*begin)(ut_op *op);
    /* Takes the gifts that are for |op| in. Returns a gift's submission that asks for another kind of op than this one;
     * NULL if there is none. */
    const ut_submission *(*take)(ut_job *j, ut_op *op);
} ut_intake;

extern const ut_intake ut_intake_partial, ut_intake_coded;

/* How the ranks of a job with such options give; NULL: it is not partial. */
static inline const ut_intake *ut_intake_of(const ut_job_options *o)
{
    if (o->policy <= UT_POLICY_NONE)
        return NULL;
    return o->policy == UT_POLICY_CODED ? &ut_intake_coded : &ut_intake_partial;
}

#endif
