/* SPDX-License-Identifier: Apache-2.0
 *
 * The lanes of a job as its trainer sees them: one engine, one number for a call, one receipt.
 *
 * A host has one or more engines, each with a thread of its own, and a job is served by the first few of them: its
 * lanes. In each lane a session has a pair of rings (core/face/ring.h). Calls take turns (core/base/portion.h), so two
 * of them in a row are worked on by two threads. A large one is split: each lane gets a portion of the bucket, and does
 * it as an op of its own. Such a call has as many numbers as lanes, from a multiple of their count on; no rank uses the
 * numbers that stay free before it.
 *
 * All is kept in memory that the caller gives, and no engine knows of it. It is not safe for several threads, but that
 * ut_lanes_portions and ut_lanes_room may be called while another thread takes receipts: room that is seen then stays.
 */
#ifndef UT_LANES_H
#define UT_LANES_H

#include "core/face/ring.h"

enum {
    UT_PORTION_BYTES = 1 << 20, /* a portion has as much at least: two turns of an engine, worth waking a thread for */
    UT_PORTION_BURST = 1 << 16, /* and this for each host: it fills a burst; in smaller ones packets cost more */
    UT_PORTION_STEP = 64, /* elements that it is a multiple of, but for the last: no cache line belongs to two lanes */
};

/* What ut_lanes_take found. EARLY: ranks differ in one portion, so the call has failed: the others may have nobody to
 * meet, and wait for their deadline. Its memory is in use still; WHOLE comes later. */
enum ut_lanes_found { UT_LANES_NOTHING, UT_LANES_WHOLE, UT_LANES_EARLY };

typedef struct ut_lane {
    ut_submission_ring *submissions;
    const ut_completion_ring *completions;
    uint32_t outstanding; /* calls that were put here, of which the receipt was not taken; at most UT_RING_ENTRIES */
} ut_lane;

/* A call that was split and of which some portions have ended. */
typedef struct ut_joining {
    uint64_t op_seq;
    uint32_t ended; /* bit per portion; 0: free */
} ut_joining;

typedef struct ut_lanes {
    uint32_t lanes;
    uint32_t portions; /* into how many a large call is split: 1, or |lanes| */
    uint32_t hosts;
    uint32_t turn; /* lane whose receipts are looked for first */
    uint64_t next; /* number that follows the newest call */
    ut_lane lane[UT_LANES_MAX];
    ut_joining joining[UT_RING_ENTRIES];
    uint64_t receipts[]; /* of each split, one per portion, with |hosts| rows */
} ut_lanes;

/* Bytes that ut_lanes_init needs. */
size_t ut_lanes_bytes(uint32_t portions, uint32_t hosts);
/* Begins in |memory|, which is aligned as a uint64_t. |first|: number of the next call. The rings of each lane are set
 * by ut_lanes_ring before anything else. */
ut_lanes *ut_lanes_init(void *memory, uint32_t lanes, uint32_t portions, uint32_t hosts, uint64_t first);
void ut_lanes_ring(ut_lanes *l, uint32_t lane, ut_submission_ring *submissions, const ut_completion_ring *completions);

/* Into how many portions a call with a bucket of |bytes| is split. It is so on all ranks, which know all of this alike.
 */
uint32_t ut_lanes_portions(const ut_lanes *l, unsigned collective, uint64_t bytes);
/* Whether a call with that number has room in all lanes that it uses. */
bool ut_lanes_room(const ut_lanes *l, uint64_t op_seq, uint32_t portions);
/* Puts |call| into the rings. Its op_seq is the job's number, its portion ut_portion(0, n) to split it into n, or 0;
 * its `skipped` is not read. Returns the lanes whose engines must be woken, a bit each; 0 if a ring is full, where
 * ut_lanes_room would have said so. */
uint32_t ut_lanes_submit(ut_lanes *l, const ut_submission *call);
/* The receipt of the next call that has ended, in the job's numbers; of a call that is split once all portions have.
 * Those of two lanes may come in another order than their calls. */
int ut_lanes_take(ut_lanes *l, ut_receipt *ret);

#endif
