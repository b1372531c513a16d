/* SPDX-License-Identifier: Apache-2.0
 *
 * What each slot and each chunk of an op's bucket holds on this host. This room knows no op: it sees what is computed,
 * the plan, and where the bytes lie, so that a test can drive it with a table of steps alone (tests/c/fold/).
 *
 * A slot is first a sum: this host's own contribution, into which the contributions of its children in the chunk's tree
 * are folded as they come. When all of them have come, or can come no more, the slot is *summed* and may go to the
 * parent. At the chunk's owner that sum is the result. On every other host the result comes from the parent and
 * replaces the sum.
 */
#ifndef UT_FOLD_H
#define UT_FOLD_H

#include "core/base/what.h"
#include "core/base/work.h"
#include "core/plan/plan.h"

typedef struct ut_op_fold ut_op_fold;

/* How contributions become a slot's result, where that is another thing than their plain sum: a sum over blocks that
 * cover different parts of a slot, or one with coefficients that depend on who came. A rule is asked for each slot that
 * this host folds contributions into. It keeps what it needs in memory of its own (ut_op_fold.rule_memory), by slot of
 * the bucket, and begins anew with each op. */
typedef struct ut_fold_rule {
    /* A slot is finished when it has enough, and not because nothing more comes: it then waits for ut_fold_join or for
     * ut_op_fold.forced. What a host sums up for its parent it sends only of slots that are finished. */
    bool strict;
    /* It adds up the digest itself, wherever it makes or places results. */
    bool digests;
    /* An op begins. */
    void (*open)(ut_op_fold *f);
    /* A contribution of |ranks| ranks to |slot| of |s|->chunk came from |s|->peer, once: takes it in. False: it adds
     * nothing to what is there, so its ranks do not count. */
    bool (*arrive)(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len, unsigned ranks);
    /* What has come suffices: the slot is finished, and later contributions to it are moot. When all slots of a chunk
     * are, the transfers that still bring some of it are closed. NULL where each contribution counts, as in the plain
     * sum: a slot is then finished when all have come. */
    bool (*enough)(const ut_op_fold *f, uint32_t chunk, uint32_t slot);
    /* Makes |dst|, |len| bytes, of this host's own contribution (ut_fold_own) and of what has come, be it enough or
     * not. Returns the elements of it that are NaN or infinite. */
    size_t (*finish)(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint8_t *dst, size_t len);

    /* A rule under which payloads decode alone has the following ones. */
    /* In the place of `finish`: makes the results of what was contributed to |slot|, ut_op_fold.parts of them from that
     * slot of the result on, and calls ut_fold_has_result for each. Returns the same. */
    size_t (*results)(ut_op_fold *f, uint32_t chunk, uint32_t slot);
    /* The payload of a slot that has not come yet may be taken in, if it is of this slot; if not, it is refused. */
    bool (*takes)(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len);
    /* Takes in the result of |slot|, for which `takes` was asked before. Returns the elements of it that are NaN or
     * infinite. */
    size_t (*place)(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len);
    /* Where slots of two hosts do not match (ext/sparse/blocks.h), in the place of `enough` and `results`: no more
     * comes of |chunk|, whose owner this host is: makes its results, and calls ut_fold_has_result for each. False if
     * the turn does not allow all of it. */
    bool (*end)(ut_op_fold *f, uint32_t chunk);
    /* No more comes of |chunk|'s result: its holes become what a result of this host alone would be. |*at| says from
     * where on, at first 0, and then how far it came. False as above. */
    bool (*fill)(ut_op_fold *f, uint32_t chunk, uint32_t *at);
} ut_fold_rule;

/* What came for |slots| slots that follow each other: |len| bytes for each, |stride| bytes apart. */
typedef struct ut_payloads {
    const uint8_t *first;
    size_t len, stride;
    uint32_t slots;
    const uint32_t *crc; /* CRC32C of each */
} ut_payloads;

/* What is known of the result so far. */
typedef struct ut_fold_result {
    uint64_t thin;                   /* bit per chunk: it lacks ranks in some slot */
    uint64_t nonfinite;              /* elements that are NaN or infinite */
    uint64_t digest;                 /* of the slots whose result is here (core/base/digest.h) */
    uint32_t weight_min;             /* ranks in the least covered slot */
    uint32_t least_of[UT_HOSTS_MAX]; /* and in the least covered one that came straight from its owner */
    uint64_t short_hosts;            /* owners whose shard came straight from them with ranks missing in some slot */
} ut_fold_result;

struct ut_op_fold {
    /* Given once (ut_fold_init). */
    const ut_op_what *what;
    ut_op_plan *plan;
    ut_op_memory *memory;
    ut_work *turn;
    uint32_t payload; /* bytes of a full slot */
    uint32_t world;   /* ranks of the job */
    uint32_t hosts;   /* of the job, and which of them this one is */
    uint32_t self;
    uint8_t *state;   /* per slot of the bucket: see slots.c */
    uint16_t *weight; /* per slot of the bucket: ranks in what it holds */
    uint32_t *crc;    /* per slot that holds its result, where it may be sent on: its CRC32C */

    /* May be set before each ut_fold_open. */
    uint64_t seq;             /* of the op, for rules that draw by it */
    const ut_fold_rule *rule; /* NULL: the plain sum */
    void *rule_memory;        /* the rule's own */

    /* From ut_fold_open on. */
    uint16_t ranks;                   /* of this host, that are in its own contribution */
    uint32_t share[UT_HOSTS_MAX];     /* of a weighted op, by host: the weight of its contribution (weighted.h) */
    uint32_t first[UT_HOSTS_MAX + 1]; /* per chunk: its first slot, counted over the whole bucket */
    uint32_t ready[2][UT_HOSTS_MAX];  /* per stage and chunk: its slots [0, ready) may be sent */
    uint16_t summing;                 /* the own chunk; of a strict rule, on a host without one, that which it sums up
                                       * for its parent; UT_CHUNK_NONE for none */
    uint8_t due[UT_HOSTS_MAX];        /* per chunk: contributions that this host folds into its own */
    uint32_t up[UT_HOSTS_MAX];        /* per chunk: the step that sends the sum on; UINT32_MAX at its owner */
    uint32_t down[UT_HOSTS_MAX];      /* per chunk: the step that brings the result; UINT32_MAX at its owner */
    uint64_t summed;                  /* bit per chunk: no more will be folded into it */
    uint64_t final;                   /* bit per chunk: its result is here, or what stands for it */
    ut_fold_result result;
    /* Slots of a result that one slot of contributions becomes; 1 unless a rule's `open` says otherwise. All that is
     * kept by slot is kept by slot of the result; of contributions it stands at the first of theirs. */
    uint32_t parts;
    bool averaged;     /* the own contribution is the average already: nothing divides it again */
    bool forced;       /* of a strict rule: slots that have not enough are finished with what they have */
    uint64_t moot;     /* bytes of contributions that came when their slot, or all slots, needed no more */
    uint32_t fewer_at; /* the next slot of `summing` to look at since fewer contribute to it; UINT32_MAX: none */
    uint32_t fill_chunk, fill_slot; /* where holes are being filled; UINT32_MAX: nowhere yet */
};

/* Of the job: bytes of a full slot, ranks, hosts, and which of them this one is. */
typedef struct ut_fold_job {
    uint32_t payload, world, hosts, self;
} ut_fold_job;
/* |what|, |plan|, |memory| and |turn| stay the caller's, who sets them before each ut_fold_open. `state`, `weight` and
 * `crc` are the caller's too: an element for each slot of the largest bucket. */
void ut_fold_init(ut_op_fold *f, const ut_op_what *what, ut_op_plan *plan, ut_op_memory *memory, ut_work *turn,
                  const ut_fold_job *job);
/* An op begins: its schedule, transfers and buffers are in place. |ranks| of this host are in its contribution, and
 * |lacking| have not called. */
void ut_fold_open(ut_op_fold *f, uint16_t ranks, uint32_t lacking);
/* Each contribution that comes counts, and nothing else is wanted: the plain sum, or a rule that is like it in this. */
static inline bool ut_fold_is_sum(const ut_op_fold *f)
{
    return !f->rule || !(f->rule->enough || f->rule->end);
}
/* This host's own contribution to the slot. */
const uint8_t *ut_fold_own(const ut_op_fold *f, uint32_t chunk, uint32_t slot);
/* Whether what came with step |s| may be taken in. */
static inline bool ut_fold_takes(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len)
{
    return !f->rule || !f->rule->takes || f->rule->takes(f, s, slot, payload, len);
}
/* Slot |g|, counted over the whole bucket, becomes an average by this divisor. */
uint32_t ut_fold_divisor(const ut_op_fold *f, uint32_t g);
/* Of a weighted op: the weight of all contributions in |slot| of |chunk|, which this host sums up. */
double ut_fold_weight_of(const ut_op_fold *f, uint32_t chunk, uint32_t slot);
/* For rules: the slot holds its result, |len| bytes with CRC32C |crc|, |at| bytes into the bucket; its weight is set.
 */
void ut_fold_has_result(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint64_t at, size_t len, uint32_t crc);
/* A contribution to this slot is of no use any more: its result is here, or its sum is closed. */
bool ut_fold_moot(const ut_op_fold *f, const ut_step *s, uint32_t slot);
/* Folds contributions of |ranks| ranks in that came with step |s|, for the slots from |slot| on. None of these is moot,
 * and |p| has the length of each. */
void ut_fold_add(ut_op_fold *f, const ut_step *s, uint32_t slot, const ut_payloads *p, unsigned ranks);
/* Places results likewise, from which |missing| ranks of the job are missing. */
void ut_fold_place(ut_op_fold *f, const ut_step *s, uint32_t slot, const ut_payloads *p, unsigned missing);
/* What a send of this slot carries, and the ranks in it. |*slots|: from so many slots, this one the first, it is to be;
 * and of so many it lies there in a row, with as many ranks in each. */
const uint8_t *ut_fold_payload(const ut_op_fold *f, const ut_step *s, uint32_t slot, uint32_t *slots,
                               unsigned *ret_ranks);
/* One host less will contribute to |chunk|, of which nothing came. */
void ut_fold_fewer(ut_op_fold *f, uint32_t chunk);
/* This host's own contribution has come while the op runs, from |ranks| ranks: `memory.src` holds it. The rule looks
 * again at what has enough. */
void ut_fold_join(ut_op_fold *f, uint16_t ranks);
/* All slots of `summing` are finished, or have their result, or there is none. */
bool ut_fold_own_done(const ut_op_fold *f);
/* After receives have ended: sums and results of which no more will come are made of what there is. |ending|: nothing
 * more is sent up. False if the turn does not allow all of it. */
bool ut_fold_settle(ut_op_fold *f, bool ending);
/* Copies the results that peers may still ask for into the memory `held`, and sends from the copy from now on. |way|
 * says from which chunk (`index`) and byte (`at`) on, and then how far it came. False as above. */
bool ut_fold_keep(const ut_op_fold *f, ut_progress *way);

#endif
