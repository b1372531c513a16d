/* SPDX-License-Identifier: Apache-2.0
 *
 * Which host sends which part of an op's bucket to which host, what of it has travelled, and where its bytes lie on
 * this host.
 */
#ifndef UT_PLAN_H
#define UT_PLAN_H

#include "core/plan/schedule.h"
#include "core/plan/transfer.h"

/* Laid out by op_open.c; the transfers then belong to op_recv.c and op_send.c. */
typedef struct ut_op_plan {
    uint64_t owners;                 /* mask of the hosts among which the bucket is cut: those of the op's epoch */
    uint16_t view_tag;               /* names on the wire, in short, the epoch under which the op runs */
    uint8_t owns_nothing;            /* 1: this host is not among the owners */
    uint8_t incast;                  /* the incast factor in force when the op opened */
    uint32_t rx_of[2][UT_HOSTS_MAX]; /* per stage and host: the first step that receives from it; UINT32_MAX for none */
    uint32_t tx_of[2][UT_HOSTS_MAX]; /* the same of steps that send to it */
    uint32_t peer_next[UT_STEPS_MAX]; /* the next such step of the same kind, stage and host; UINT32_MAX for none */
    ut_schedule schedule;
    ut_transfer transfer[UT_STEPS_MAX];
    uint64_t *bitmaps; /* memory for the bitmaps of the transfers; given at job_add */
    size_t bitmap_words;
} ut_op_plan;

/* Set by op_open.c. The last four are given at job_add; every op with the same op_seq modulo UT_OPS_MAX uses them. */
typedef struct ut_op_memory {
    const uint8_t *src;          /* this host's contribution, from src_from on */
    uint8_t *dst;                /* the result, from dst_from on; perhaps == src */
    uint64_t src_from, dst_from; /* bytes into the bucket; not 0 where only the own shard lies there */
    const uint8_t *own;          /* this host's contribution as it was before a codec */
    uint8_t *acc;                /* accumulators from held_from on: in dst, or in `held` for the half-width types */
    uint64_t held_from;          /* bytes into the bucket: `held` begins there */
    const uint8_t *out;          /* where stage 2 sends from: dst, later the linger copy */
    uint64_t out_from;           /* bytes into the bucket: `out` begins there */
    bool travels_encoded;        /* src, dst and all that travels are in `encoded`, by the codec of the op */
    uint8_t *held;    /* float32 sums of half-width types, then what peers still need; NULL in a job of one host */
    uint8_t *bucket;  /* the combined local contributions, NULL with one local rank; in partial jobs the result */
    uint8_t *encoded; /* the bucket as a codec made it; NULL in a job of one host, and in one that never encodes */
    uint8_t *orphan; /* the gift of a rank that has gone since; NULL in a job of one host, or one that is not partial */
} ut_op_memory;

/* Whether the op's data, and all that it sends of it, lies in the job's memory and not in a trainer's. */
static inline bool ut_op_in_job_memory(const ut_op_memory *m)
{
    return m->travels_encoded || m->dst == m->bucket || m->dst == m->held;
}

#endif
