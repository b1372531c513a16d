/* SPDX-License-Identifier: Apache-2.0
 *
 * What the lanes of a job tell of their ops becomes what is told of the job's (core/base/portion.h): numbers, and one
 * receipt and one event for a call that was split.
 */
#ifndef UT_JOIN_H
#define UT_JOIN_H

#include "core/base/host.h"
#include "core/base/receipt.h"

/* Turns the numbers of ops of which a receipt of a lane tells into those of the job. */
void ut_receipt_of_job(ut_receipt *r, uint32_t lane, uint32_t lanes);

/* |portion[0 .. portions-1]|, in their order, are receipts of one host; their op_seq and agreed_seq count the ops of
 * the job, not of a lane. The number is that of the first, bytes and counts are sums, times are the longest. The worst
 * status is that of all: FAILED, with what the first such portion says of it, and COMPLETE or INSUFFICIENT only if all
 * portions are. The culprit is that of the portion that lacks most. The digest depends on that of each portion. */
void ut_receipt_join(ut_receipt *ret, const ut_receipt *const *portion, unsigned portions);

/* The same of the OP_DONE events of all portions: the longest time, sums of bytes, the worst status, and the culprit
 * and its trouble by the portion that a receipt takes them from. */
void ut_event_join(ut_event *ret, const ut_event *portion, unsigned portions);

#endif
