/* SPDX-License-Identifier: Apache-2.0
 *
 * How a contribution travels. When an op opens, a codec encodes the host's contribution into the bytes that are sent;
 * when the op ends, it decodes the bytes that came back into the result. Between the two the op works on encoded bytes
 * alone, in memory of the job.
 *
 * The encoding of a sum by a *linear* codec is the sum of the encodings. Owners therefore sum what comes without
 * decoding it; the encoding takes the place of the plain values and has as many bytes. The encodings of any other codec
 * are *blocks*: each packet's payload is one block, decodes alone, and says which part of the chunk it covers. Such a
 * codec names the rule (core/fold/fold.h) by which an owner takes a block in; the plain sum would add bytes that are no
 * numbers.
 *
 * Codecs have no state. Hosts agree beforehand on the codec in which an op travels. It is a part of the epoch that each
 * packet names (ut_op_epoch_tag), so a packet in another codec than its receiver expects is refused, never folded.
 */
#ifndef UT_CODEC_H
#define UT_CODEC_H

#include "core/base/what.h"
#include "core/base/work.h"
#include "core/plan/plan.h"

/* UT_CODEC_NONE is 0, so that zeroed memory means plain values. */
enum ut_codec_id { UT_CODEC_NONE, UT_CODEC_HADAMARD, UT_CODEC_SPARSE, UT_CODEC_QUANT, UT_CODECS_END };

struct ut_fold_rule;

/* What a codec sees of an op. */
typedef struct ut_codec_op {
    uint64_t seq;   /* of the op */
    uint32_t hosts; /* of the job */
    uint32_t self;
    uint32_t world;         /* ranks of the job */
    uint32_t payload;       /* bytes of a full slot */
    uint16_t ranks;         /* number of ranks in this host's contribution; 1 where that is their mean */
    const ut_op_what *what; /* .bytes is the size of the plain bucket */
    const ut_op_plan *plan;
    const ut_op_memory *memory; /* .own: the plain contribution; .encoded: what travels */
    void *variant;              /* memory of the op's variant (core/op/variant.h), if it has one */
    ut_work *turn;
    ut_progress *way; /* `index` and `at` are the codec's own, 0 at the start of a pass */
} ut_codec_op;

typedef struct ut_codec {
    uint8_t id; /* enum ut_codec_id */
    bool linear;
    const struct ut_fold_rule *rule; /* how owners take blocks in; NULL for a linear codec */
    /* Whether an op of |what| among |hosts| by |algorithm| (enum ut_algorithm) can travel in this codec. If not, the op
     * travels plainly. */
    bool (*fits)(const ut_op_what *what, uint32_t hosts, unsigned algorithm);
    /* The most bytes of memory that the encoding of |bytes| takes. */
    uint64_t (*bound)(uint64_t bytes);
    /* Encodes `memory.own` into `memory.encoded`. False if the turn does not allow all of it: the function is then
     * called again, and goes on where it stopped. */
    bool (*encode)(const ut_codec_op *c);
    /* NULL where results are decoded as they come, and lie in their place. Decodes what came into |dst|, a plain
     * bucket, and adds to |nonfinite| the number of its elements that are NaN or infinite. The codec decides what
     * stands where nothing came; this host's own value is at `memory.own`. Returns false as above. */
    bool (*decode)(const ut_codec_op *c, uint8_t *dst, uint64_t *nonfinite);
} ut_codec;

/* Plain values: nothing is encoded, and neither encode nor decode exists. */
extern const ut_codec ut_codec_none;
/* The randomized Hadamard transform: see hadamard_codec.c. */
extern const ut_codec ut_codec_hadamard;

/* Adds the digest (core/base/digest.h) of the plain bucket |dst| to |digest|. This is a pass of its own, after decode.
 * Returns false as above. */
bool ut_codec_digest(const ut_codec_op *c, const uint8_t *dst, uint64_t *digest);

#endif
