/* SPDX-License-Identifier: Apache-2.0
 *
 * One receipt for a call that was split over lanes (core/base/portion.h), of the receipts of its portions.
 */
#ifndef UT_JOIN_H
#define UT_JOIN_H

#include "core/base/receipt.h"

/* |portion[0 .. portions-1]|, in their order, are receipts of one host; their op_seq and agreed_seq count the ops of
 * the job, not of a lane. The number is that of the first, bytes and counts are sums, times are the longest. The worst
 * status is that of all: FAILED, with what the first such portion says of it, and COMPLETE or INSUFFICIENT only if all
 * portions are. The culprit is that of the portion that lacks most. The digest depends on that of each portion. */
void ut_receipt_join(ut_receipt *ret, const ut_receipt *const *portion, unsigned portions);

#endif
