/* SPDX-License-Identifier: Apache-2.0
 *
 * A collective is a table of steps: who, which chunk of the bucket, folded or placed. Builders (sched_*.c) only fill
 * the table; one executor (op*.c) runs any of them.
 *
 * The bucket is cut into chunks, the same on all hosts, and a step moves one chunk whole. Each chunk has an owner and
 * two trees that end and begin there: in stage 1 a host folds what its children send of the chunk into its own and
 * sends the sum on to its parent, once; in stage 2 it places the result that its parent sends and sends it on to its
 * children. What a step waits for is thereby said: stage 1 for the folds of its chunk here, stage 2 for its result.
 * Rounds are an order, not barriers: every slot goes as soon as it is ready.
 */
#ifndef UT_SCHEDULE_H
#define UT_SCHEDULE_H

#include "core/base/ut.h"

enum ut_step_kind { UT_STEP_SEND = 1, UT_STEP_RECEIVE = 2 };

typedef struct ut_step {
    uint8_t kind;    /* enum ut_step_kind */
    uint8_t stage;   /* 1 scatter-reduce: a receive is folded; 2 broadcast: it is placed */
    uint16_t chunk;  /* index of the range that it moves */
    uint16_t round;  /* from 0, over both stages */
    uint16_t peer;   /* host index */
    uint64_t offset; /* the chunk's first byte in the bucket; of a send of all-to-all, where the receiver places it */
    uint64_t bytes;  /* 0 is legal: the step is done at once */
} ut_step;

enum { UT_CHUNK_NONE = 0xffff };

typedef struct ut_schedule {
    uint32_t steps;
    uint32_t rounds;                 /* of both stages */
    uint32_t chunks;                 /* 1 .. UT_HOSTS_MAX, covering the bucket in order */
    uint16_t own;                    /* the chunk whose result this host makes; UT_CHUNK_NONE for none */
    bool direct;                     /* every path is one hop: contributor to owner, owner to all */
    bool placed;                     /* stage 1 places as stage 2 does: nothing is folded */
    bool apart;                      /* each host's result is another one */
    bool lasting;                    /* what is sent in stage 1 must arrive: no result that comes back shows it */
    uint64_t own_offset, own_bytes;  /* the own chunk's range; 0, 0 for none */
    uint64_t from[UT_HOSTS_MAX + 1]; /* bytes: chunk c is [from[c], from[c + 1]) */
    ut_step step[UT_STEPS_MAX];
} ut_schedule;

/* First element of shard |j| of |count| elements among |hosts|: floor(j * count / hosts) (SPEC 1a.2). j <= hosts. */
uint64_t ut_shard_bound(uint64_t count, uint32_t hosts, uint32_t j);
/* The shard that |host| is responsible for in op |op_seq|: (host + op_seq) mod hosts, so that a bad link hurts each
 * shard in turn. Among owners: its place among them, and their number. */
uint32_t ut_shard_of(uint32_t host, uint64_t op_seq, uint32_t hosts);

/* For builders: cuts |count| elements into equal |chunks|, none of them own; makes |chunk| the own one; a step that
 * moves |chunk|. */
void ut_schedule_cut(ut_schedule *s, uint32_t chunks, uint64_t count, size_t element_bytes);
void ut_schedule_own(ut_schedule *s, uint32_t chunk);
ut_step ut_schedule_step(const ut_schedule *s, enum ut_step_kind kind, unsigned stage, uint32_t round, uint32_t peer,
                         uint32_t chunk);

/* Rounds of one TAR stage, ceil((hosts - 1) / incast); |incast| is clamped to 1 .. hosts - 1. */
uint32_t ut_tar_rounds(uint32_t hosts, uint32_t incast);
/* The |k|-th peer in sending order (0 <= k < hosts - 1) of |host|, and the one it hears at the same place. Even
 * |hosts|: circle-method pairs, each pair meets once. Odd: offsets 1, N-1, 2, N-2, ... */
uint32_t ut_tar_send_peer(uint32_t hosts, uint32_t host, uint32_t k);
uint32_t ut_tar_receive_peer(uint32_t hosts, uint32_t host, uint32_t k);

/* Transpose AllReduce (SPEC 1a.2) for |self| among |hosts|: receives of stage 1, sends of stage 1, sends of stage 2,
 * receives of stage 2. |owners|: mask of the hosts that the bucket is cut among, not empty; the chunks of the others
 * have 0 bytes and come last. */
void ut_schedule_tar(ut_schedule *ret, uint32_t hosts, uint32_t self, uint32_t incast, uint64_t op_seq, uint64_t owners,
                     uint64_t count, size_t element_bytes);

/* Ring (2(N-1) rounds), BCube (a level per prime factor of N, each way) and parameter server (host 0); see their
 * files. */
void ut_schedule_ring(ut_schedule *ret, uint32_t hosts, uint32_t self, uint64_t op_seq, uint64_t count,
                      size_t element_bytes);
void ut_schedule_bcube(ut_schedule *ret, uint32_t hosts, uint32_t self, uint64_t op_seq, uint64_t count,
                       size_t element_bytes);
void ut_schedule_ps(ut_schedule *ret, uint32_t hosts, uint32_t self, uint64_t count, size_t element_bytes);

/* The collectives other than allreduce, for |self| among |hosts| with a rank each: chunk j is host j's, always. |root|
 * is that of a broadcast. See sched_shard.c. */
void ut_schedule_shard(ut_schedule *ret, unsigned collective, uint32_t root, uint32_t hosts, uint32_t self,
                       uint32_t incast, uint64_t count, size_t element_bytes);

enum { UT_BCUBE_LEVELS = 6 /* 2^6 = UT_HOSTS_MAX */ };
/* The prime factors of |hosts|, the least first; the return value says how many. */
uint32_t ut_bcube_radix(uint32_t hosts, uint8_t radix[UT_BCUBE_LEVELS]);

/* The table of |algorithm| (enum ut_algorithm); |incast| and |owners| are looked at by TAR alone. */
void ut_schedule_build(ut_schedule *ret, unsigned algorithm, uint32_t hosts, uint32_t self, uint32_t incast,
                       uint64_t op_seq, uint64_t owners, uint64_t count, size_t element_bytes);

#endif
