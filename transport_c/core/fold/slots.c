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
#include "core/base/plant.h"
#include "core/op/op.h"

#include "kernels/kernels.h"

enum { FOLDS = 0x3f, RESULT = 0x40, SUMMED = 0x80 }; /* in ut_op.slot_state; FOLDS: contributions folded */
_Static_assert(UT_HOSTS_MAX - 1 <= FOLDS, "a chunk's owner may hear all other hosts");

static uint32_t slots_of(const ut_op *op, uint32_t chunk)
{
    return op->fold.first[chunk + 1] - op->fold.first[chunk];
}

static uint64_t offset_of(const ut_job *j, const ut_op *op, uint32_t chunk, uint32_t slot)
{
    return op->plan.schedule.from[chunk] + (uint64_t)slot * j->payload;
}

static size_t elements_of(const ut_job *j, const ut_op *op, uint32_t chunk, uint32_t slot)
{
    return UT_MIN2(op->plan.schedule.from[chunk + 1] - offset_of(j, op, chunk, slot), j->payload) / op->what.element;
}

/* This host's contribution, and its result, of what lies |at| bytes into the bucket. */
static const uint8_t *src_at(const ut_op *op, uint64_t at)
{
    return op->memory.src + (at - op->memory.src_from);
}

static uint8_t *dst_at(const ut_op *op, uint64_t at)
{
    return op->memory.dst + (at - op->memory.dst_from);
}

/* The accumulator of what lies |at| bytes into the bucket. */
static uint8_t *acc_at(const ut_op *op, uint64_t at)
{
    uint64_t into = at - op->memory.held_from;
    return op->memory.acc + (op->what.acc_element == op->what.element ? into : 2 * into);
}

static uint32_t divisor_of(const ut_job *j, const ut_op *op, uint32_t g)
{
    if (op->what.by_world)
        return j->world;
    if (ut_planted(UT_PLANT_PARTIAL_NULL_COUNTED) && op->partial.on)
        return UT_MAX2(op->fold.weight[g], j->config.hosts);
    if (ut_planted(UT_PLANT_WRONG_DIVISOR))
        return op->plan.schedule.steps / 4 + 1;
    return UT_MAX2(op->fold.weight[g], 1); /* a sum of nothing is zero, whatever it is divided by */
}

void ut_op_slots_open(ut_job *j, ut_op *op)
{
    const ut_schedule *s = &op->plan.schedule;
    memset(op->fold.ready, 0, sizeof op->fold.ready);
    memset(op->fold.due, 0, sizeof op->fold.due);
    memset(op->fold.up, 0xff, sizeof op->fold.up);
    memset(op->fold.down, 0xff, sizeof op->fold.down);
    op->fold.summed = op->fold.final = op->fold.thin = 0;
    op->fold.first[0] = 0;
    for (uint32_t c = 0; c < s->chunks; c++)
        op->fold.first[c + 1] = op->fold.first[c] + ut_slots(s->from[c + 1] - s->from[c], j->payload);
    for (uint32_t i = 0; i < s->steps; i++) {
        const ut_step *x = &s->step[i];
        if (x->kind == UT_STEP_SEND && x->stage == 1)
            op->fold.up[x->chunk] = i;
        else if (x->kind == UT_STEP_RECEIVE && x->stage == 2)
            op->fold.down[x->chunk] = i;
        else if (x->kind == UT_STEP_RECEIVE && x->bytes) /* who is gone contributes nothing */
            op->fold.due[x->chunk]++;
    }
    for (uint32_t c = 0; c < s->chunks; c++)
        if ((op->fold.due[c] == 0 || s->placed) && c != s->own) {
            op->fold.summed |= 1ULL << c; /* a leaf: what it sends is its own */
            op->fold.ready[0][c] = slots_of(op, c);
        }
    uint32_t slots = op->fold.first[s->chunks];
    memset(op->fold.state, 0, slots);
    /* What only moves is whole, unless a rank of this host did not call. */
    uint32_t lacking = j->config.local_ranks - UT_MIN2(j->config.local_ranks, op->local.weight);
    uint16_t weight = (uint16_t)(s->placed ? j->world - lacking : op->local.weight);
    for (uint32_t g = 0; g < slots; g++)
        op->fold.weight[g] = weight;
}

/* ---- one slot ---- */

static void set(ut_op *op, uint32_t chunk, uint32_t g, uint8_t flags)
{
    uint8_t *state = op->fold.state + op->fold.first[chunk];
    uint32_t slots = slots_of(op, chunk);
    op->fold.state[g] |= flags;
    for (unsigned stage = 0; stage < 2; stage++) {
        uint8_t flag = stage ? RESULT : SUMMED;
        if (!(flags & flag))
            continue;
        uint32_t *ready = &op->fold.ready[stage][chunk];
        while (*ready < slots && (state[*ready] & flag))
            ++*ready;
    }
}

static void is_result(const ut_job *j, ut_op *op, uint32_t chunk, uint32_t g, uint64_t at, size_t len, uint32_t crc)
{
    op->fold.crc[g] = crc;
    op->account.replica.digest += ut_replica_part(crc, at, len);
    uint32_t weight = op->fold.weight[g];
    op->fold.weight_min = UT_MIN2(op->fold.weight_min, weight);
    if (weight != j->world)
        op->fold.thin |= 1ULL << chunk;
    set(op, chunk, g, SUMMED | RESULT);
}

/* A sum on its way is not yet an average. */
static uint8_t redop_on_the_way(const ut_op *op)
{
    return op->what.redop == UT_AVG ? UT_SUM : op->what.redop;
}

bool ut_op_slot_moot(const ut_op *op, const ut_step *s, uint32_t slot)
{
    return op->fold.state[op->fold.first[s->chunk] + slot] & SUMMED;
}

void ut_op_slot_fold(ut_job *j, ut_op *op, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len,
                     unsigned ranks)
{
    uint32_t chunk = s->chunk, g = op->fold.first[chunk] + slot;
    uint64_t at = s->offset + (uint64_t)slot * j->payload;
    bool own = chunk == op->plan.schedule.own;
    bool first = (op->fold.state[g] & FOLDS) == 0;
    bool last = (++op->fold.state[g] & FOLDS) == op->fold.due[chunk];
    op->fold.weight[g] = (uint16_t)(op->fold.weight[g] + ranks);
    uint8_t *acc = acc_at(op, at);
    size_t bad = ut_fold(op->what.dtype, own ? op->what.redop : redop_on_the_way(op),
                         (first ? UT_A_IS_INPUT : 0) | (last ? UT_OUT_IS_RESULT : 0), last ? dst_at(op, at) : acc,
                         first ? src_at(op, at) : acc, payload, len / op->what.element, divisor_of(j, op, g));
    if (!last)
        return;
    if (own) {
        op->fold.nonfinite += bad;
        is_result(j, op, chunk, g, at, len, ut_crc32c(0, dst_at(op, at), len)); /* while it is in the cache */
    } else {
        set(op, chunk, g, SUMMED);
    }
}

void ut_op_slot_place(ut_job *j, ut_op *op, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len,
                      unsigned missing, uint32_t crc)
{
    uint64_t at = s->offset + (uint64_t)slot * j->payload;
    op->fold.nonfinite += ut_place(op->what.dtype, dst_at(op, at), payload, len / op->what.element);
    if (op->plan.schedule.direct && !missing && s->stage == 2) {
        op->account.replica.digest += ut_replica_part(crc, at, len);
        return;
    }
    uint32_t g = op->fold.first[s->chunk] + slot, up = op->fold.up[s->chunk];
    op->fold.weight[g] = (uint16_t)(j->world - UT_MIN2(missing, j->world));
    op->fold.least_of[s->peer] = UT_MIN2(op->fold.least_of[s->peer], op->fold.weight[g]);
    is_result(j, op, s->chunk, g, at, len, crc);
    if (op->plan.schedule.direct)
        op->peers.short_hosts |= missing ? ut_bit(s->peer) : 0;
    else if (up != UINT32_MAX) /* the owner goes on without it, or has it: the sum is gone here, and must not be sent */
        ut_transfer_mark(&op->plan.transfer[up], slot);
}

const uint8_t *ut_op_slot_payload(const ut_job *j, const ut_op *op, const ut_step *s, uint32_t slot,
                                  unsigned *ret_ranks)
{
    uint64_t at = offset_of(j, op, s->chunk, slot);
    if (s->stage == 1 && op->fold.due[s->chunk] == 0) {
        *ret_ranks = op->local.weight;
        return src_at(op, at);
    }
    uint32_t g = op->fold.first[s->chunk] + slot;
    *ret_ranks = op->fold.weight[g];
    if (ut_planted(UT_PLANT_WRONG_FORWARD) && s->stage == 1)
        return src_at(op, at);
    if (s->stage == 1)
        return (op->fold.state[g] & FOLDS) ? dst_at(op, at) : src_at(op, at);
    return op->memory.out + (at - op->memory.out_from);
}

/* ---- one chunk ---- */

/* Nothing more will be folded into a slot: it holds what it has. */
static void end_slot(ut_job *j, ut_op *op, uint32_t chunk, uint32_t slot)
{
    uint32_t g = op->fold.first[chunk] + slot;
    if (op->fold.state[g] & SUMMED)
        return;
    uint64_t at = offset_of(j, op, chunk, slot);
    bool alone = (op->fold.state[g] & FOLDS) == 0;
    size_t n = elements_of(j, op, chunk, slot);
    if (chunk == op->plan.schedule.own) {
        op->fold.nonfinite += op->plan.schedule.placed
                                  ? ut_place(op->what.dtype, dst_at(op, at), src_at(op, at), n)
                                  : ut_finish(op->what.dtype, op->what.redop, alone ? UT_A_IS_INPUT : 0, dst_at(op, at),
                                              alone ? src_at(op, at) : acc_at(op, at), n, divisor_of(j, op, g));
        is_result(j, op, chunk, g, at, n * op->what.element, ut_crc32c(0, dst_at(op, at), n * op->what.element));
    } else {
        if (!alone && op->what.acc_element != op->what.element)
            (void)ut_finish(op->what.dtype, redop_on_the_way(op), 0, dst_at(op, at), acc_at(op, at), n, 1);
        set(op, chunk, g, SUMMED);
    }
}

void ut_op_slot_fewer(ut_op *op, uint32_t chunk)
{
    assert(chunk == op->plan.schedule.own);
    op->fold.due[chunk]--;
    op->work.fewer_at = 0; /* some of its slots may be complete with what they have */
}

static bool may_pass(ut_job *j, const ut_op *op)
{
    return ut_work_pass(ut_engine_work(j->engine), op->what.bytes, j->payload);
}

/* After fewer hosts contribute than was expected: slots of the own chunk that have all now. */
static bool end_complete_slots(ut_job *j, ut_op *op)
{
    uint32_t chunk = op->plan.schedule.own, *slot = &op->work.fewer_at;
    for (; *slot < slots_of(op, chunk); ++*slot) {
        uint8_t state = op->fold.state[op->fold.first[chunk] + *slot];
        if ((state & SUMMED) || (state & FOLDS) != op->fold.due[chunk])
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
    bool own = chunk == op->plan.schedule.own;
    uint32_t slots = slots_of(op, chunk);
    bool nothing = op->plan.schedule.placed && op->fold.due[chunk]; /* of what never came nothing can be made */
    for (uint32_t slot = op->fold.ready[0][chunk]; slot < slots && !nothing; slot++) {
        if (op->fold.state[op->fold.first[chunk] + slot] & SUMMED)
            continue;
        if (!may_pass(j, op))
            return false;
        end_slot(j, op, chunk, slot);
    }
    op->fold.summed |= 1ULL << chunk;
    if (own && !nothing)
        op->fold.final |= 1ULL << chunk;
    return true;
}

/* No more of |chunk|'s result will come: its place is taken by what this host has gathered of it, at least its own. */
static bool fill(ut_job *j, ut_op *op, uint32_t chunk)
{
    const ut_transfer *t = &op->plan.transfer[op->fold.down[chunk]];
    uint32_t slot = op->work.fill_chunk == chunk ? op->work.fill_slot : 0;
    for (; slot < t->slots; slot++) {
        uint32_t g = op->fold.first[chunk] + slot;
        if (ut_transfer_has(t, slot) || (op->fold.state[g] & RESULT))
            continue;
        if (!may_pass(j, op)) {
            op->work.fill_chunk = chunk;
            op->work.fill_slot = slot;
            return false;
        }
        uint64_t at = offset_of(j, op, chunk, slot);
        const uint8_t *sum = (op->fold.state[g] & FOLDS) ? dst_at(op, at) : src_at(op, at);
        size_t n = elements_of(j, op, chunk, slot), len = n * op->what.element;
        if (op->local.weight == 0)
            memset(dst_at(op, at), 0, len); /* which is the sum, too */
        op->fold.nonfinite +=
            ut_finish(op->what.dtype, op->what.redop, UT_A_IS_INPUT, dst_at(op, at), sum, n, divisor_of(j, op, g));
        uint64_t digest = op->account.replica.digest;
        is_result(j, op, chunk, g, at, len, ut_crc32c(0, dst_at(op, at), len));
        if (ut_planted(UT_PLANT_HOLES_NOT_IN_DIGEST))
            op->account.replica.digest = digest;
    }
    op->fold.final |= 1ULL << chunk;
    return true;
}

static bool is_over(const ut_op *op, uint32_t step)
{
    return step == UINT32_MAX || ut_transfer_over(&op->plan.transfer[step]);
}

/* The whole result of |chunk| is here: its owner had what it wanted of the sum. */
static void close_sum(ut_op *op, uint32_t chunk)
{
    op->fold.summed |= 1ULL << chunk;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        ut_transfer *t = &op->plan.transfer[i];
        const ut_step *s = &op->plan.schedule.step[i];
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
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        if (s->kind == UT_STEP_RECEIVE && s->stage == 1 && !ut_transfer_over(&op->plan.transfer[i]))
            folding |= 1ULL << s->chunk;
    }
    for (uint32_t c = 0; c < op->plan.schedule.chunks; c++) {
        uint64_t bit = 1ULL << c;
        uint32_t down = op->fold.down[c];
        if (op->fold.final & bit)
            continue;
        if (down != UINT32_MAX && ut_transfer_complete(&op->plan.transfer[down])) {
            op->fold.final |= bit;
            if (!op->plan.schedule.direct)
                close_sum(op, c);
            continue;
        }
        if (!((op->fold.summed | folding) & bit) && !end_sum(j, op, c))
            return false;
        /* The sum still goes up, for the sake of others, before it becomes a result here. */
        if (op->what.collective == UT_ALLREDUCE && down != UINT32_MAX && is_over(op, down) && (op->fold.summed & bit) &&
            (ending || (!op->what.agree && is_over(op, op->fold.up[c]))) && /* who must agree passes on results alone */
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
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        const ut_transfer *t = &op->plan.transfer[i];
        if (s->kind != UT_STEP_SEND || s->stage != 2 || ut_transfer_over(t))
            continue;
        uint32_t w = 0, most = UT_MIN2(first[s->chunk], t->slots);
        while (w < most / 64 && t->bits[w] == UINT64_MAX)
            w++;
        first[s->chunk] = UT_MIN2(most, w * 64);
    }
    for (; op->work.index < op->plan.schedule.chunks; op->work.index++, op->work.at = 0) {
        uint32_t c = op->work.index;
        if (first[c] >= slots_of(op, c))
            continue;
        uint64_t at = UT_MAX2(op->work.at, offset_of(j, op, c, first[c])), end = op->plan.schedule.from[c + 1];
        while (at < end) {
            uint64_t some = ut_work_take(ut_engine_work(j->engine), op->what.bytes, end - at);
            if (some == 0) {
                op->work.at = at;
                return false;
            }
            memcpy(op->memory.held + (at - op->memory.held_from), dst_at(op, at), some);
            at += some;
        }
    }
    op->memory.out = op->memory.held;
    op->memory.out_from = op->memory.held_from;
    return true;
}
