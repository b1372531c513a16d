/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trainer asks for. Submissions travel in shared memory (core/face/ring.h), so their layout is fixed.
 */
#ifndef UT_SUBMISSION_H
#define UT_SUBMISSION_H

#include "core/base/ut.h"

/* One request, 64 bytes. All offsets are bytes into the session's arena.
 *
 * The bucket of reduce-scatter, all-gather and all-to-all is as many equal shards as there are hosts, one rank on each;
 * `count` is of all of it. A rank gives all-gather its own shard alone, and gets its own shard alone of a
 * reduce-scatter: `src` and `dst` are where that shard lies. In place then means where it lies in the other's bucket.
 * An all-to-all is never in place, a broadcast always. A barrier's bucket is a byte (UT_BYTES) per
 * host, and its `count` no size but a note: any number, which all ranks must say alike. */
typedef struct ut_submission {
    uint64_t op_seq;      /* number of this op in the job, from 0, the same on every rank */
    uint64_t src;         /* where the rank's contribution lies; element-aligned */
    uint64_t dst;         /* where the result goes; equal to src for in place, else not overlapping it */
    uint64_t count;       /* elements of the bucket; 0 is legal */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; UT_NEVER for none */
    uint8_t dtype;        /* enum ut_dtype */
    uint8_t redop;        /* enum ut_redop; 0 where nothing is reduced */
    uint8_t mode;         /* enum ut_mode */
    uint8_t flags;        /* UT_SUBMIT_... */
    uint8_t collective;   /* enum ut_collective */
    uint8_t root;         /* host that a broadcast comes from; else 0 */
    uint16_t reserved;    /* 0 */
    uint64_t wanted;      /* partial jobs: the first op whose result the caller takes, or a later one's; else 0 */
    uint32_t oldest_step; /* partial jobs: the trainer's own number of the oldest step in what it gives; else 0 */
    uint32_t newest_step; /* and of the newest */
} ut_submission;

/* AGREE: all ranks that get a result get identical bytes. A host that cannot have all of every shard by the deadline
 * fails (TIMEOUT, ABSENT) instead of putting its own value in the holes; contributions may be missing as in the mode.
 */
/* ADAPTIVE, bounded: the caller named no deadline; deadline_ns is the latest, and the op ends earlier once it is known
 * how long such an op takes. The other modes heed it not: reliable has no bound of its own, best effort t_B and t_C. */
/* In a partial job a submission is no op but a word to the rank's slot, and `op_seq` counts the session's submissions.
 * GIVE: `src` holds a contribution; it is the engine's until an op has taken it and ended (ut_completion_ring.freed),
 * or another took its place. One waits at most. REPLACE, with GIVE: this one holds what waits as well, and takes its
 * place; if an op was quicker, nothing is done and the receipt says OVERTAKEN. Without REPLACE the slot must be empty.
 * STICKY, with GIVE: ops take it again and again, until it is replaced. NOWAIT: if no op from `wanted` on has ended,
 * the answer comes at once, EMPTY. Else the call waits for one, until its deadline: then what it gave is taken back,
 * if no op took it, and it is answered INSUFFICIENT with its own value. The deadline less the time of the submission
 * is also what an op has that this contribution starts. */
enum {
    UT_SUBMIT_AGREE = 0x01,
    UT_SUBMIT_ADAPTIVE = 0x02,
    UT_SUBMIT_GIVE = 0x04,
    UT_SUBMIT_REPLACE = 0x08,
    UT_SUBMIT_STICKY = 0x10,
    UT_SUBMIT_NOWAIT = 0x20,
    UT_SUBMIT_WORLD = 0x40, /* AVG divides by the ranks of the job, not by those that are in it */
};

#endif
