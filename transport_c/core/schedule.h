/* SPDX-License-Identifier: Apache-2.0
 *
 * A collective is a table of steps: who, which bytes, folded or placed, after what. Builders (sched_*.c) only fill the
 * table; one executor (op*.c) runs any of them. Rounds are an order, not barriers: a step may run as soon as its data
 * is ready.
 */
#ifndef UT_SCHEDULE_H
#define UT_SCHEDULE_H

#include "ut.h"

enum ut_step_kind { UT_STEP_SEND = 1, UT_STEP_RECEIVE = 2 };

typedef struct ut_step {
    uint8_t kind;        /* enum ut_step_kind */
    uint8_t stage;       /* 1 scatter-reduce, 2 broadcast */
    uint8_t tag;         /* `step` on the wire: tells transfers of one peer and stage apart */
    uint8_t fold;        /* receive: 1 reduce into ours, 0 place */
    uint16_t round;      /* from 0, over both stages */
    uint16_t peer;       /* host index */
    uint16_t wait_first; /* send: the receives whose reduced slots it forwards are steps [wait_first, + wait_count) */
    uint16_t wait_count; /* 0: its data is there from the start */
    uint64_t offset;     /* bytes into the bucket */
    uint64_t bytes;      /* 0 is legal: the step is done at once */
} ut_step;

typedef struct ut_schedule {
    uint32_t steps;
    uint32_t rounds;                /* of both stages */
    uint64_t own_offset, own_bytes; /* the shard that this host reduces */
    ut_step step[UT_STEPS_MAX];
} ut_schedule;

/* First element of shard |j| of |count| elements among |hosts|: floor(j * count / hosts) (SPEC 1a.2). j <= hosts. */
uint64_t ut_shard_bound(uint64_t count, uint32_t hosts, uint32_t j);
/* The shard that |host| is responsible for in op |op_seq|: (host + op_seq) mod hosts, so that a bad link hurts each
 * shard in turn. */
uint32_t ut_shard_of(uint32_t host, uint64_t op_seq, uint32_t hosts);

/* Rounds of one TAR stage, ceil((hosts - 1) / incast); |incast| is clamped to 1 .. hosts - 1. */
uint32_t ut_tar_rounds(uint32_t hosts, uint32_t incast);
/* The |k|-th peer in sending order (0 <= k < hosts - 1) of |host|, and the one it hears at the same place. Even
 * |hosts|: circle-method pairs, each pair meets once. Odd: offsets 1, N-1, 2, N-2, ... */
uint32_t ut_tar_send_peer(uint32_t hosts, uint32_t host, uint32_t k);
uint32_t ut_tar_receive_peer(uint32_t hosts, uint32_t host, uint32_t k);

/* Transpose AllReduce (SPEC 1a.2) for |self| among |hosts|: receives of stage 1, sends of stage 1, sends of stage 2,
 * receives of stage 2. */
void ut_schedule_tar(ut_schedule *ret, uint32_t hosts, uint32_t self, uint32_t incast, uint64_t op_seq, uint64_t count,
                     size_t element_bytes);

#endif
