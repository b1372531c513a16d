/* SPDX-License-Identifier: Apache-2.0
 *
 * What the bucket's slots hold here. A slot is first a sum: our own contribution, into which the children's of its
 * chunk's tree are folded as they come. When all have, or will not, it is SUMMED and may go to the parent; at the
 * chunk's owner that is the RESULT, everywhere else the result comes from above and takes the sum's place. Each slot
 * carries the number of ranks in it, so that it is always divided by what is there, and says so to whoever gets it.
 *
 * The halves accumulate in float32 while they are on this host, and are rounded once when they leave it.
 *
 * Where all paths are one hop (TAR, parameter server) only the owner sums, nobody forwards, and the slots of other
 * chunks need no state at all: the bits of the transfers say everything.
 */
#include "core/op/op.h"

#include "kernels/kernels.h"

enum { FOLDS = 0x3f, RESULT = 0x40, SUMMED = 0x80 }; /* in ut_op.slot_state; FOLDS: contributions folded */
_Static_assert(UT_HOSTS_MAX - 1 <= FOLDS, "a chunk's owner may hear all other hosts");

static uint32_t slots_of(const ut_op *op, uint32_t chunk)
{
    return op->slot_first[chunk + 1] - op->slot_first[chunk];
}

static uint64_t offset_of(const ut_job *j, const ut_op *op, uint32_t chunk, uint32_t slot)
{
    return op->schedule.from[chunk] + (uint64_t)slot * j->payload;
}

static size_t elements_of(const ut_job *j, const ut_op *op, uint32_t chunk, uint32_t slot)
{
    return UT_MIN2(op->schedule.from[chunk + 1] - offset_of(j, op, chunk, slot), j->payload) / op->element;
}

/* This host's contribution, and its result, of what lies |at| bytes into the bucket. */
static const uint8_t *src_at(const ut_op *op, uint64_t at)
{
    return op->src + (at - op->src_from);
}

static uint8_t *dst_at(const ut_op *op, uint64_t at)
{
    return op->dst + (at - op->dst_from);
}

/* The accumulator of what lies |at| bytes into the bucket. */
static uint8_t *acc_at(const ut_op *op, uint64_t at)
{
    uint64_t into = at - op->held_from;
    return op->acc + (op->acc_element == op->element ? into : 2 * into);
}

static uint32_t divisor_of(const ut_job *j, const ut_op *op, uint32_t g)
{
    if (op->by_world)
        return j->world;
#ifdef UT_PLANT_PARTIAL_NULL_COUNTED
    if (op->partial)
        return UT_MAX2(op->slot_weight[g], j->config.hosts);
#endif
#ifdef UT_PLANT_WRONG_DIVISOR
    (void)g;
    return op->schedule.steps / 4 + 1;
#else
    return UT_MAX2(op->slot_weight[g], 1); /* a sum of nothing is zero, whatever it is divided by */
#endif
}

void ut_op_slots_open(ut_job *j, ut_op *op)
{
    const ut_schedule *s = &op->schedule;
    memset(op->ready, 0, sizeof op->ready);
    memset(op->folds, 0, sizeof op->folds);
    memset(op->up, 0xff, sizeof op->up);
    memset(op->down, 0xff, sizeof op->down);
    op->summed = op->final = op->thin = 0;
    op->slot_first[0] = 0;
    for (uint32_t c = 0; c < s->chunks; c++)
        op->slot_first[c + 1] = op->slot_first[c] + ut_slots(s->from[c + 1] - s->from[c], j->payload);
    for (uint32_t i = 0; i < s->steps; i++) {
        const ut_step *x = &s->step[i];
        if (x->kind == UT_STEP_SEND && x->stage == 1)
            op->up[x->chunk] = i;
        else if (x->kind == UT_STEP_RECEIVE && x->stage == 2)
            op->down[x->chunk] = i;
        else if (x->kind == UT_STEP_RECEIVE && x->bytes) /* who is gone contributes nothing */
            op->folds[x->chunk]++;
    }
    for (uint32_t c = 0; c < s->chunks; c++)
        if ((op->folds[c] == 0 || s->placed) && c != s->own) {
            op->summed |= 1ULL << c; /* a leaf: what it sends is its own */
            op->ready[0][c] = slots_of(op, c);
        }
    uint32_t slots = op->slot_first[s->chunks];
    memset(op->slot_state, 0, slots);
    /* What only moves is whole, unless a rank of this host did not call. */
    uint32_t lacking = j->config.local_ranks - UT_MIN2(j->config.local_ranks, op->weight);
    uint16_t weight = (uint16_t)(s->placed ? j->world - lacking : op->weight);
    for (uint32_t g = 0; g < slots; g++)
        op->slot_weight[g] = weight;
}

/* ---- one slot ---- */

static void set(ut_op *op, uint32_t chunk, uint32_t g, uint8_t flags)
{
    uint8_t *state = op->slot_state + op->slot_first[chunk];
    uint32_t slots = slots_of(op, chunk);
    op->slot_state[g] |= flags;
    for (unsigned stage = 0; stage < 2; stage++) {
        uint8_t flag = stage ? RESULT : SUMMED;
        if (!(flags & flag))
            continue;
        uint32_t *ready = &op->ready[stage][chunk];
        while (*ready < slots && (state[*ready] & flag))
            ++*ready;
    }
}

static void is_result(const ut_job *j, ut_op *op, uint32_t chunk, uint32_t g, uint64_t at, size_t len, uint32_t crc)
{
    op->slot_crc[g] = crc;
    op->replica.digest += ut_replica_part(crc, at, len);
    uint32_t weight = op->slot_weight[g];
    op->weight_min = UT_MIN2(op->weight_min, weight);
    if (weight != j->world)
        op->thin |= 1ULL << chunk;
    set(op, chunk, g, SUMMED | RESULT);
}

/* A sum on its way is not yet an average. */
static uint8_t redop_on_the_way(const ut_op *op)
{
    return op->redop == UT_AVG ? UT_SUM : op->redop;
}

bool ut_op_slot_moot(const ut_op *op, const ut_step *s, uint32_t slot)
{
    return op->slot_state[op->slot_first[s->chunk] + slot] & SUMMED;
}

void ut_op_slot_fold(ut_job *j, ut_op *op, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len,
                     unsigned ranks)
{
    uint32_t chunk = s->chunk, g = op->slot_first[chunk] + slot;
    uint64_t at = s->offset + (uint64_t)slot * j->payload;
    bool own = chunk == op->schedule.own;
    bool first = (op->slot_state[g] & FOLDS) == 0;
    bool last = (++op->slot_state[g] & FOLDS) == op->folds[chunk];
    op->slot_weight[g] = (uint16_t)(op->slot_weight[g] + ranks);
    uint8_t *acc = acc_at(op, at);
    size_t bad = ut_fold(op->dtype, own ? op->redop : redop_on_the_way(op),
                         (first ? UT_A_IS_INPUT : 0) | (last ? UT_OUT_IS_RESULT : 0), last ? dst_at(op, at) : acc,
                         first ? src_at(op, at) : acc, payload, len / op->element, divisor_of(j, op, g));
    if (!last)
        return;
    if (own) {
        op->nonfinite += bad;
        is_result(j, op, chunk, g, at, len, ut_crc32c(0, dst_at(op, at), len)); /* while it is in the cache */
    } else {
        set(op, chunk, g, SUMMED);
    }
}

void ut_op_slot_place(ut_job *j, ut_op *op, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len,
                      unsigned missing, uint32_t crc)
{
    uint64_t at = s->offset + (uint64_t)slot * j->payload;
    op->nonfinite += ut_place(op->dtype, dst_at(op, at), payload, len / op->element);
    if (op->schedule.direct && !missing && s->stage == 2) {
        op->replica.digest += ut_replica_part(crc, at, len);
        return;
    }
    uint32_t g = op->slot_first[s->chunk] + slot, up = op->up[s->chunk];
    op->slot_weight[g] = (uint16_t)(j->world - UT_MIN2(missing, j->world));
    op->least_of[s->peer] = UT_MIN2(op->least_of[s->peer], op->slot_weight[g]);
    is_result(j, op, s->chunk, g, at, len, crc);
    if (op->schedule.direct)
        op->short_hosts |= missing ? ut_bit(s->peer) : 0;
    else if (up != UINT32_MAX) /* the owner goes on without it, or has it: the sum is gone here, and must not be sent */
        ut_transfer_mark(&op->transfer[up], slot);
}

const uint8_t *ut_op_slot_payload(const ut_job *j, const ut_op *op, const ut_step *s, uint32_t slot,
                                  unsigned *ret_ranks)
{
    uint64_t at = offset_of(j, op, s->chunk, slot);
    if (s->stage == 1 && op->folds[s->chunk] == 0) {
        *ret_ranks = op->weight;
        return src_at(op, at);
    }
    uint32_t g = op->slot_first[s->chunk] + slot;
    *ret_ranks = op->slot_weight[g];
#ifdef UT_PLANT_WRONG_FORWARD
    if (s->stage == 1)
        return src_at(op, at);
#endif
    if (s->stage == 1)
        return (op->slot_state[g] & FOLDS) ? dst_at(op, at) : src_at(op, at);
    return op->out + (at - op->out_from);
}

/* ---- one chunk ---- */

/* Nothing more will be folded into a slot: it holds what it has. */
static void end_slot(ut_job *j, ut_op *op, uint32_t chunk, uint32_t slot)
{
    uint32_t g = op->slot_first[chunk] + slot;
    if (op->slot_state[g] & SUMMED)
        return;
    uint64_t at = offset_of(j, op, chunk, slot);
    bool alone = (op->slot_state[g] & FOLDS) == 0;
    size_t n = elements_of(j, op, chunk, slot);
    if (chunk == op->schedule.own) {
        op->nonfinite += op->schedule.placed
                             ? ut_place(op->dtype, dst_at(op, at), src_at(op, at), n)
                             : ut_finish(op->dtype, op->redop, alone ? UT_A_IS_INPUT : 0, dst_at(op, at),
                                         alone ? src_at(op, at) : acc_at(op, at), n, divisor_of(j, op, g));
        is_result(j, op, chunk, g, at, n * op->element, ut_crc32c(0, dst_at(op, at), n * op->element));
    } else {
        if (!alone && op->acc_element != op->element)
            (void)ut_finish(op->dtype, redop_on_the_way(op), 0, dst_at(op, at), acc_at(op, at), n, 1);
        set(op, chunk, g, SUMMED);
    }
}

void ut_op_slot_fewer(ut_op *op, uint32_t chunk)
{
    assert(chunk == op->schedule.own);
    op->folds[chunk]--;
    op->work.fewer_at = 0; /* some of its slots may be complete with what they have */
}

static bool may_pass(ut_job *j, const ut_op *op)
{
    return ut_work_pass(ut_engine_work(j->engine), op->bytes, j->payload);
}

/* After fewer hosts contribute than was expected: slots of the own chunk that have all now. */
static bool end_complete_slots(ut_job *j, ut_op *op)
{
    uint32_t chunk = op->schedule.own, *slot = &op->work.fewer_at;
    for (; *slot < slots_of(op, chunk); ++*slot) {
        uint8_t state = op->slot_state[op->slot_first[chunk] + *slot];
        if ((state & SUMMED) || (state & FOLDS) != op->folds[chunk])
            continue;
        if (!may_pass(j, op))
            return false;
        end_slot(j, op, chunk, *slot);
    }
    *slot = UINT32_MAX;
    return true;
}

/* Nothing more will be folded into |chunk|: slots that wait for more hold what they have. */
static bool end_sum(ut_job *j, ut_op *op, uint32_t chunk)
{
    bool own = chunk == op->schedule.own;
    uint32_t slots = slots_of(op, chunk);
    bool nothing = op->schedule.placed && op->folds[chunk]; /* of what never came nothing can be made */
    for (uint32_t slot = op->ready[0][chunk]; slot < slots && !nothing; slot++) {
        if (op->slot_state[op->slot_first[chunk] + slot] & SUMMED)
            continue;
        if (!may_pass(j, op))
            return false;
        end_slot(j, op, chunk, slot);
    }
    op->summed |= 1ULL << chunk;
    if (own && !nothing)
        op->final |= 1ULL << chunk;
    return true;
}

/* No more of |chunk|'s result will come: its place is taken by what this host has gathered of it, at least its own. */
static bool fill(ut_job *j, ut_op *op, uint32_t chunk)
{
    const ut_transfer *t = &op->transfer[op->down[chunk]];
    uint32_t slot = op->work.fill_chunk == chunk ? op->work.fill_slot : 0;
    for (; slot < t->slots; slot++) {
        uint32_t g = op->slot_first[chunk] + slot;
        if (ut_transfer_has(t, slot) || (op->slot_state[g] & RESULT))
            continue;
        if (!may_pass(j, op)) {
            op->work.fill_chunk = chunk;
            op->work.fill_slot = slot;
            return false;
        }
        uint64_t at = offset_of(j, op, chunk, slot);
        const uint8_t *sum = (op->slot_state[g] & FOLDS) ? dst_at(op, at) : src_at(op, at);
        size_t n = elements_of(j, op, chunk, slot), len = n * op->element;
        if (op->weight == 0)
            memset(dst_at(op, at), 0, len); /* which is the sum, too */
        op->nonfinite += ut_finish(op->dtype, op->redop, UT_A_IS_INPUT, dst_at(op, at), sum, n, divisor_of(j, op, g));
        uint64_t digest = op->replica.digest;
        is_result(j, op, chunk, g, at, len, ut_crc32c(0, dst_at(op, at), len));
#ifdef UT_PLANT_HOLES_NOT_IN_DIGEST
        op->replica.digest = digest;
#else
        (void)digest;
#endif
    }
    op->final |= 1ULL << chunk;
    return true;
}

static bool is_over(const ut_op *op, uint32_t step)
{
    return step == UINT32_MAX || ut_transfer_over(&op->transfer[step]);
}

/* The whole result of |chunk| is here: its owner had what it wanted of the sum. */
static void close_sum(ut_op *op, uint32_t chunk)
{
    op->summed |= 1ULL << chunk;
    for (uint32_t i = 0; i < op->schedule.steps; i++) {
        ut_transfer *t = &op->transfer[i];
        const ut_step *s = &op->schedule.step[i];
        if (s->stage != 1 || s->chunk != chunk || ut_transfer_over(t))
            continue;
        t->closed = 1;
        t->why = t->done ? UT_MISSING_LOST : UT_MISSING_SILENT;
    }
}

bool ut_op_settle(ut_job *j, ut_op *op, bool ending)
{
    uint64_t folding = 0;
    if (op->work.fewer_at != UINT32_MAX && !end_complete_slots(j, op))
        return false;
    for (uint32_t i = 0; i < op->schedule.steps; i++) {
        const ut_step *s = &op->schedule.step[i];
        if (s->kind == UT_STEP_RECEIVE && s->stage == 1 && !ut_transfer_over(&op->transfer[i]))
            folding |= 1ULL << s->chunk;
    }
    for (uint32_t c = 0; c < op->schedule.chunks; c++) {
        uint64_t bit = 1ULL << c;
        uint32_t down = op->down[c];
        if (op->final & bit)
            continue;
        if (down != UINT32_MAX && ut_transfer_complete(&op->transfer[down])) {
            op->final |= bit;
            if (!op->schedule.direct)
                close_sum(op, c);
            continue;
        }
        if (!((op->summed | folding) & bit) && !end_sum(j, op, c))
            return false;
        /* The sum still goes up, for the sake of others, before it becomes a result here. */
        if (op->collective == UT_ALLREDUCE && down != UINT32_MAX && is_over(op, down) && (op->summed & bit) &&
            (ending || (!op->agree && is_over(op, op->up[c]))) && /* who must agree passes on results alone */
            !fill(j, op, c))
            return false;
    }
    return true;
}

/* The trainer may write its buffer as soon as it has its receipt; what peers may still ask for is copied first, to
 * where the sums were. */
bool ut_op_keep(ut_job *j, ut_op *op)
{
    uint32_t first[UT_HOSTS_MAX]; /* per chunk: the first slot that somebody may still want */
    if (ut_op_in_job_memory(op))
        return true;
    memset(first, 0xff, sizeof first);
    for (uint32_t i = 0; i < op->schedule.steps; i++) {
        const ut_step *s = &op->schedule.step[i];
        const ut_transfer *t = &op->transfer[i];
        if (s->kind != UT_STEP_SEND || s->stage != 2 || ut_transfer_over(t))
            continue;
        uint32_t w = 0, most = UT_MIN2(first[s->chunk], t->slots);
        while (w < most / 64 && t->bits[w] == UINT64_MAX)
            w++;
        first[s->chunk] = UT_MIN2(most, w * 64);
    }
    for (; op->work.index < op->schedule.chunks; op->work.index++, op->work.at = 0) {
        uint32_t c = op->work.index;
        if (first[c] >= slots_of(op, c))
            continue;
        uint64_t at = UT_MAX2(op->work.at, offset_of(j, op, c, first[c])), end = op->schedule.from[c + 1];
        while (at < end) {
            uint64_t some = ut_work_take(ut_engine_work(j->engine), op->bytes, end - at);
            if (some == 0) {
                op->work.at = at;
                return false;
            }
            memcpy(op->held_memory + (at - op->held_from), dst_at(op, at), some);
            at += some;
        }
    }
    op->out = op->held_memory;
    op->out_from = op->held_from;
    return true;
}
