/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded jobs: partial jobs with the policy CODED, one rank a host. They differ in four things. A gift is for one step,
 * and an op takes gifts of one step alone. Who gives while the op runs is still in. The call gets the result of the
 * step that it names, of which the last three stay. And the op ends when the sum over all data can be had from those
 * that have given (ext/coded/sums.h), or fails. coded_gift.c has gifts and answers, op_coded.c the op, coded_send.c
 * what is sent of it.
 *
 * The number of an op is its step's and the attempt's: step * UT_STEP_OPS + attempt * UT_OPS_MAX. A step has attempts
 * because an op that has failed can be tried again. As long as the sum can be had, this host tries again by itself with
 * what its rank has given; a call fails only when the sum cannot be had, or at a deadline. An op with a result takes
 * this host past all numbers of its step. So the floors that every feedback carries say which steps are over.
 */
#ifndef UT_CODED_H
#define UT_CODED_H

#include "core/partial/intake.h"
#include "ext/coded/sums.h"

enum {
    /* The most numbers that a step can have if all steps have room in those of ops, and one more than a multiple of
     * UT_OPS_MAX: every attempt at a step has the same place among the ops of the job, and the three steps before it
     * have the others, so that their results stay. */
    UT_STEP_OPS = (1 << (UT_OP_SEQ_BITS - 32)) - UT_OPS_MAX + 1,
    /* Attempts at a step and one; after the last one the step is over without a result. */
    UT_STEP_ATTEMPTS = (UT_STEP_OPS - 1) / UT_OPS_MAX,
    /* After so many attempts at a step there are 64 ms between two of them, and twice as much after as many more. So a
     * step lasts a day and a half, however soon trainers try again and however many hosts do, and no attempt comes
     * later by much more than a hundredth of the time for which the step has failed. */
    UT_STEP_PACE = 64,
};

/* Steps are the trainers' numbers, so that the next one may be any. */
#define UT_STEP_NUMBERS ((UINT32_MAX + 1ULL) * UT_STEP_OPS)

static inline uint64_t ut_step_first_op(uint64_t step)
{
    return step * UT_STEP_OPS;
}
static inline uint64_t ut_step_of_op(uint64_t seq)
{
    return seq / UT_STEP_OPS;
}

/* A result that still lies in the memory of the op that made it. */
typedef struct ut_step_result {
    bool there;
    bool had; /* the rank here has had it, or asks for it no more */
    uint32_t step;
    uint64_t receipt; /* number of the op's receipt among those kept, plus one */
} ut_step_result;

/* What only a coded job knows. */
typedef struct ut_coded {
    ut_coded_sums sums;
    ut_linear code;
    bool exact;
    uint64_t
        at; /* the step at which this host stands: that of its newest op, or the one after it if there is a result */
    ut_step_result result[UT_OPS_MAX]; /* by op_seq modulo UT_OPS_MAX */

    uint32_t tried;   /* attempts that have failed one after the other, and answered nobody */
    uint64_t failing; /* the step of the newest attempt if that has failed, plus one; else 0 */

    /* Of the op that runs. */
    uint64_t enough; /* hosts that need nothing more of stage 1 */
    bool released;   /* this host sends what others of its group should have sent, too */
} ut_coded;

static inline ut_coded *ut_coded_of(const ut_job *j)
{
    return j->partial->own;
}

extern const ut_intake ut_intake_coded;

/* coded_gift.c */
/* For ut_intake. */
uint64_t ut_coded_arrive(ut_job *j, ut_inbox *r, const ut_waiting *call, ut_ns now, ut_receipt *ret);
void ut_coded_owed(ut_job *j, ut_inbox *r, const ut_submission *x);
bool ut_coded_is_for(const ut_op *op, const ut_gift *g);
bool ut_coded_answers(const ut_op *op, const ut_inbox *r, const ut_submission *x, bool ok);
/* |op| has ended; its receipt is kept. */
void ut_coded_ended(ut_job *j, const ut_op *op, const ut_receipt *receipt, ut_ns now);
/* The rank has gone: nobody here asks for the results that are there. */
void ut_coded_asks_no_more(const ut_job *j);
/* Answers those that ask for what is over and not here. */
void ut_coded_answer_behind(ut_job *j, ut_ns now);
/* The op that runs here; NULL for none. */
ut_op *ut_coded_running(ut_job *j);
/* The op that starts with what waits here; the next one if nothing does. */
uint64_t ut_coded_first_op(const ut_job *j);
/* For ut_intake. This host joins op |seq|, which |host| says that it runs: the rank here goes to that step itself, or
 * further and lets the others have its shard; or it has nothing to give, and the step is within reach. */
bool ut_coded_joins(const ut_job *j, uint32_t host, uint64_t seq);
/* For ut_intake. Op |seq| waits: its memory holds a result that the rank here has not had, or it is the first and not
 * all hosts have met, or its step is under way at the root, or it would fail for want of an owner. */
ut_ns ut_coded_waits_until(const ut_job *j, uint64_t seq, ut_ns since, ut_ns end);

/* coded_step.c */
/* The op below which every op is over, by what this host's peers say; 0 if they say nothing that is believed. */
uint64_t ut_coded_over_elsewhere(const ut_job *j);
/* The step of |op| was over before this host began it: so say hosts that are not in the op. */
bool ut_coded_was_over(const ut_job *j, const ut_op *op);
/* |host| says that it runs op |seq|, and that is believed: the word of one host counts for the step at which this one
 * stands and for the one after. More could send everybody away for good. */
bool ut_coded_reaches(const ut_job *j, uint32_t host, uint64_t seq);

/* coded_send.c */
/* In a tree, |host| has others below it. */
bool ut_coded_has_below(const ut_job *j, uint32_t host);
/* Two hosts compute the same. With a linear code each host is a group by itself. */
bool ut_coded_same_group(const ut_job *j, uint32_t a, uint32_t b);
/* An op opens: which slots go first. */
void ut_coded_begin_sends(ut_job *j, ut_op *op, ut_ns now);
/* How much of stage 1 may be sent by now. */
void ut_coded_release(ut_job *j, ut_op *op, ut_ns now);

/* op_coded.c */
/* The sum of a step can still be had from the ranks that are there; which ops have failed has nothing to do with it. */
bool ut_coded_can_be_had(const ut_job *j);
/* For ut_intake. */
void ut_coded_look(ut_job *j, ut_ns now);
extern const ut_gathering ut_gathering_coded;

#endif
