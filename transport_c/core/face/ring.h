/* SPDX-License-Identifier: Apache-2.0
 *
 * The two rings between a trainer and its daemon, in shared memory: submissions one way, receipts the other.
 *
 * Each ring has one producer and one consumer: the trainer submits, the engine completes. The engine trusts nothing in
 * the submission ring: it copies an entry out before it looks at it, bounds its own reading by UT_RING_ENTRIES, and
 * never waits there. The trainer maps the completion ring read-only (its descriptor is for reading alone), so a wild
 * trainer can spoil its own requests and data, but not what the daemon says of them. Therefore the trainer tells in the
 * submission ring how many completions it has taken (`completions_taken`).
 */
#ifndef UT_RING_H
#define UT_RING_H

#include "core/base/receipt.h"
#include "core/base/submission.h"

typedef struct ut_submission_ring {
    uint64_t head;              /* entries ever written; trainer only; release store */
    uint64_t completions_taken; /* completion entries ever read; trainer only */
    uint64_t reserved[6];
    ut_submission entries[UT_RING_ENTRIES];
} ut_submission_ring;

typedef struct ut_completion_ring {
    uint64_t head;              /* entries ever written; engine only; release store */
    uint64_t submissions_taken; /* submissions ever consumed; engine only */
    /* Partial jobs; engine only, release stores. Numbers are those of submissions that gave something, plus one. */
    uint64_t taken;   /* the newest submission whose contribution an op took */
    uint64_t freed;   /* the engine reads no contribution up to this one any more, except one that waits for an op */
    uint64_t results; /* op_seq of the newest op that ended here with a result, plus one */
    uint64_t reserved[3];
    ut_receipt entries[UT_RING_ENTRIES];
} ut_completion_ring;

/* The trainer's side: puts |entry| into the ring. Returns UT_ERR_FULL when 64 submissions or unread completions are
 * outstanding. */
int ut_ring_submit(ut_submission_ring *submissions, const ut_completion_ring *completions, const ut_submission *entry);
/* Copies the next receipt out and returns 1; returns 0 when there is none. */
int ut_ring_take_completion(ut_submission_ring *submissions, const ut_completion_ring *completions, ut_receipt *ret);

/* The engine's side: whether there is a submission to take. |taken| is the engine's private count, see below. */
int ut_ring_has_submission(const ut_submission_ring *submissions, uint64_t taken);
/* The engine's side: copies the next submission out. |taken| is the engine's private count of submissions; the shared
 * count is only ever written. Returns 1, or 0 if there is none. */
int ut_ring_take_submission(const ut_submission_ring *submissions, ut_completion_ring *completions, uint64_t *taken,
                            ut_submission *ret);
/* The engine's side: puts |receipt| into the ring. |written| is the engine's private count of receipts. Returns
 * UT_ERR_FULL if the trainer has not taken the receipts that are in the ring. */
int ut_ring_complete(const ut_submission_ring *submissions, ut_completion_ring *completions, uint64_t *written,
                     const ut_receipt *receipt);

#endif
