/* SPDX-License-Identifier: Apache-2.0
 *
 * A collective is a table of steps. A step says which peer, which chunk of the bucket, and whether the chunk is folded
 * (added to a sum) or placed (stored). Builders (sched_*.c) only fill the table; one executor (op*.c) runs all tables.
 *
 * The bucket is cut into chunks, the same on all hosts, and a step moves one whole chunk. Each chunk has an owner and
 * two trees of hosts. Stage 1 runs towards the owner: a host folds what its children send of the chunk into its own,
 * and sends the sum on to its parent, once. Stage 2 runs away from the owner: a host places the result that its parent
 * sends, and sends it on to its children. So the table also says what a step waits for: in stage 1 for the folds of its
 * chunk here, in stage 2 for the chunk's result. Rounds are an order, not barriers: every slot goes as soon as it is
 * ready.
 */
#ifndef UT_SCHEDULE_H
#define UT_SCHEDULE_H

#include "core/base/ut.h"

enum ut_step_kind { UT_STEP_SEND = 1, UT_STEP_RECEIVE = 2 };

typedef struct ut_step {
    uint8_t kind;    /* enum ut_step_kind */
    uint8_t stage;   /* 1 scatter-reduce: a receive is folded; 2 broadcast: it is placed */
    uint16_t chunk;  /* index of the chunk that it moves */
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
    bool apart;                      /* each host has a result of its own, which differs from the others' */
    bool lasting;                    /* what is sent in stage 1 must arrive: no result comes back that would show it */
    uint64_t own_offset, own_bytes;  /* where the own chunk lies; 0, 0 for none */
    uint64_t from[UT_HOSTS_MAX + 1]; /* bytes: chunk c is [from[c], from[c + 1]) */
    ut_step step[UT_STEPS_MAX];
} ut_schedule;

/* What is cut, and among whom: a bucket of |count| elements among |hosts|, of which |self| is this one. */
typedef struct ut_layout {
    uint32_t hosts, self;
    uint64_t count;
    size_t element_bytes;
} ut_layout;

/* First element of shard |j| of |count| elements among |hosts|: floor(j * count / hosts) (docs/papers.md, section 1.2).
 * j <= hosts. */
uint64_t ut_shard_bound(uint64_t count, uint32_t hosts, uint32_t j);
/* The shard that |host| is responsible for in op |op_seq|: (host + op_seq) mod hosts, so that a bad link hurts each
 * shard in turn. If not all hosts are owners, |host| is its number among the owners, and |hosts| how many they are. */
uint32_t ut_shard_of(uint32_t host, uint64_t op_seq, uint32_t hosts);

/* For builders. The first cuts |count| elements into equal |chunks|, of which none is the own one yet; the second makes
 * |chunk| the own one; the third returns a step that moves |chunk|. */
void ut_schedule_cut(ut_schedule *s, uint32_t chunks, uint64_t count, size_t element_bytes);
void ut_schedule_own(ut_schedule *s, uint32_t chunk);
ut_step ut_schedule_step(const ut_schedule *s, enum ut_step_kind kind, unsigned stage, uint32_t round, uint32_t peer,
                         uint32_t chunk);

/* Rounds of one TAR stage, ceil((hosts - 1) / incast); |incast| is clamped to 1 .. hosts - 1. */
uint32_t ut_tar_rounds(uint32_t hosts, uint32_t incast);
/* The |k|-th peer (0 <= k < hosts - 1) to which |host| sends, and the |k|-th peer from which it receives. With an even
 * number of |hosts| they are the pairs of the circle method, in which each pair meets once; with an odd number the
 * peers are at the distances 1, N-1, 2, N-2, ... */
uint32_t ut_tar_send_peer(uint32_t hosts, uint32_t host, uint32_t k);
uint32_t ut_tar_receive_peer(uint32_t hosts, uint32_t host, uint32_t k);

/* Transpose AllReduce (docs/papers.md, section 1.2). The steps are the receives of stage 1,
 * the sends of stage 1, the sends of stage 2 and the receives of stage 2, in this order. |owners| is the mask of the
 * hosts among which the bucket is cut, not empty; the chunks of the others have 0 bytes and come last. */
void ut_schedule_tar(ut_schedule *ret, const ut_layout *l, uint32_t incast, uint64_t op_seq, uint64_t owners);

enum { UT_PS_SERVER = 0 /* the host that sums, in all ops */ };
/* Ring (2(N-1) rounds), BCube (a level per prime factor of N, each way) and parameter server (on host 0). Their files
 * describe them. */
void ut_schedule_ring(ut_schedule *ret, const ut_layout *l, uint64_t op_seq);
void ut_schedule_bcube(ut_schedule *ret, const ut_layout *l, uint64_t op_seq);
void ut_schedule_ps(ut_schedule *ret, const ut_layout *l);

/* The tree of a coded job: host 0 is the root and owns the one chunk, host h has the hosts h * |children| + 1 and those
 * after it below it. |owners|: of the hosts that are not among them no result is passed on; what is below such a host
 * gets it from the next one above. See sched_tree.c. */
void ut_schedule_tree(ut_schedule *ret, const ut_layout *l, uint32_t children, uint64_t owners);
/* |hosts| of them fill all layers of such a tree. |children| >= 1. */
bool ut_tree_fills(uint32_t hosts, uint32_t children);
static inline uint32_t ut_tree_parent(uint32_t host, uint32_t children)
{
    return (host - 1) / children;
}
/* The first host below |host|; at least |hosts| if there is none. */
static inline uint32_t ut_tree_below(uint32_t host, uint32_t children)
{
    return host * children + 1;
}

/* The collectives other than allreduce, for hosts with one rank each: chunk j always belongs to host j. |root| is that
 * of a broadcast. See sched_shard.c. */
void ut_schedule_shard(ut_schedule *ret, const ut_layout *l, unsigned collective, uint32_t root, uint32_t incast);

enum { UT_BCUBE_LEVELS = 6 /* 2^6 = UT_HOSTS_MAX */ };
/* The prime factors of |hosts|, the least first. Returns how many they are. */
uint32_t ut_bcube_radix(uint32_t hosts, uint8_t radix[UT_BCUBE_LEVELS]);

/* Fills the table of |algorithm| (enum ut_algorithm). Only TAR looks at |incast| and |owners|. */
void ut_schedule_build(ut_schedule *ret, const ut_layout *l, unsigned algorithm, uint32_t incast, uint64_t op_seq,
                       uint64_t owners);

#endif
