/* SPDX-License-Identifier: Apache-2.0
 *
 * Who sends which part of an op's bucket to whom, what of it has travelled, and where its bytes lie on this host.
 */
#ifndef UT_PLAN_H
#define UT_PLAN_H

#include "core/plan/schedule.h"
#include "core/plan/transfer.h"

/* Laid out by op_open.c; the transfers then belong to op_recv.c and op_send.c. */
typedef struct ut_op_plan {
    uint64_t owners;      /* hosts that the bucket is cut among: all, but in TAR those alone that are not gone */
    uint16_t owners_tag;  /* names them on the wire */
    uint8_t owns_nothing; /* 1: this host is none of them */
    uint8_t incast;       /* factor in force when it opened */
    uint32_t rx_of[2][UT_HOSTS_MAX]; /* a step that receives from a host in a stage; UINT32_MAX for none */
    uint32_t rx_next[UT_STEPS_MAX];  /* and the next one from it in that stage */
    ut_schedule schedule;
    ut_transfer transfer[UT_STEPS_MAX];
    uint64_t *bitmaps; /* of the transfers; given at job_add */
    size_t bitmap_words;
} ut_op_plan;

/* Placed by op_open.c. The last four are given at job_add and reused by every op of this place. */
typedef struct ut_op_memory {
    const uint8_t *src;          /* this host's contribution, from src_from on */
    uint8_t *dst;                /* the result, from dst_from on; perhaps == src */
    uint64_t src_from, dst_from; /* bytes into the bucket: not 0 where it is the own shard alone */
    const uint8_t *own;          /* this host's contribution as it was before a codec */
    uint8_t *acc;                /* accumulators of what lies from held_from on: in dst, or in `held` for the halves */
    uint64_t held_from;          /* bytes into the bucket: `held` begins there */
    const uint8_t *out;          /* where stage 2 sends from: dst, later the linger copy */
    uint64_t out_from;           /* bytes into the bucket: `out` begins there */
    uint8_t transformed;         /* src, dst and all that travels are Hadamard-encoded, in `encoded` */
    uint8_t *held;               /* float32 sums of the halves, then what peers still need; NULL in a job of one host */
    uint8_t *bucket;  /* combined local contributions, NULL with one local rank; in partial jobs the result */
    uint8_t *encoded; /* the bucket transformed; NULL in a job of one host, and where it never is */
    uint8_t *orphan;  /* what a rank gave that has gone since; NULL in a job of one host, or one that is not partial */
} ut_op_memory;

/* What an op works on, and what it sends on of it, lies in the job's memory, not a trainer's. */
static inline bool ut_op_in_job_memory(const ut_op_memory *m)
{
    return m->transformed || m->dst == m->bucket;
}

#endif
