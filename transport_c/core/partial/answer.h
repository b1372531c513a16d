/* SPDX-License-Identifier: Apache-2.0
 *
 * Between gift.c, which takes what ranks give and say, and answer.c, which answers their calls.
 */
#ifndef UT_ANSWER_H
#define UT_ANSWER_H

#include "core/partial/part.h"

/* gift.c */
/* The slot of the session's rank. */
const ut_rank_slot *ut_slot_seen(const ut_job *j, uint32_t session);
static inline ut_rank_slot *ut_slot_of(ut_job *j, uint32_t session)
{
    return (ut_rank_slot *)ut_slot_seen(j, session);
}
/* Tells a rank by its ring what has been taken of what it gave, and what results there are. */
void ut_slot_tell_words(ut_job *j, const ut_rank_slot *r);

/* answer.c */
/* A receipt without a result. */
ut_receipt ut_answer_word(const ut_job *j, const ut_submission *x, uint32_t status, int error);
/* Answers a call that came |since| then with |receipt|. */
void ut_answer(ut_job *j, uint32_t session, const ut_submission *x, ut_receipt *receipt, ut_ns since, ut_ns now);
/* The call of |r|'s trainer waits for an answer. |answer|: the receipt that it is owed, of those kept, plus one; 0: of
 * an op to come. */
void ut_slot_wait(ut_job *j, ut_rank_slot *r, const ut_waiting *call, uint64_t answer);
/* All calls that wait for op |op_seq| or an earlier one are owed |answer|. */
void ut_slots_owe(ut_job *j, uint64_t op_seq, uint64_t answer);

#endif
