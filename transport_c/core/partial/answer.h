/* SPDX-License-Identifier: Apache-2.0
 *
 * What gift.c, which takes what ranks give and ask, and answer.c, which answers their calls, need of each other. A
 * rank's *slot* in these names is the record of what the rank has given and waits for (ut_rank_gifts).
 */
#ifndef UT_ANSWER_H
#define UT_ANSWER_H

#include "core/partial/intake.h"

/* gift.c */
/* The slot of the session's rank. */
const ut_rank_gifts *ut_gift_seen(const ut_job *j, uint32_t session);
static inline ut_rank_gifts *ut_gift_of(ut_job *j, uint32_t session)
{
    return (ut_rank_gifts *)ut_gift_seen(j, session);
}
/* Tells a rank, in its ring, which of its gifts have been taken and what results there are. */
void ut_gift_tell_numbers(ut_job *j, const ut_rank_gifts *r);

/* answer.c */
/* Makes a receipt without a result. */
ut_receipt ut_answer_brief(const ut_job *j, const ut_submission *x, uint32_t status, int error);
/* Answers a call with |receipt|; |since| is when the call came. */
void ut_answer(ut_job *j, uint32_t session, const ut_submission *x, ut_receipt *receipt, ut_ns since, ut_ns now);
/* Lets the call of |r|'s trainer wait for an answer. |answer| is the number, among the kept receipts, of the one that
 * answers it, plus one; 0: an op to come answers it. */
void ut_gift_wait(ut_job *j, ut_rank_gifts *r, const ut_waiting *call, uint64_t answer);
/* |answer|, not 0, answers the call |w|. */
void ut_gift_owe(const ut_job *j, const ut_rank_gifts *r, ut_waiting *w, uint64_t answer);
/* |answer| (as above) answers all calls that wait for op |op_seq| or an earlier one. */
void ut_gifts_owe(ut_job *j, uint64_t op_seq, uint64_t answer);

#endif
