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
#include "core/base/bits.h"
#include "core/base/digest.h"
#include "core/base/prefetch.h"
#include "core/fold/slots_impl.h"

#include "kernels/kernels.h"

enum { FOLDS = UT_SLOT_FOLDS, RESULT = 0x40, SUMMED = 0x80 }; /* in ut_op_fold.state */
_Static_assert(UT_HOSTS_MAX - 1 <= FOLDS, "a chunk's owner may hear all other hosts");

void ut_fold_init(ut_op_fold *f, const ut_op_what *what, ut_op_plan *plan, ut_op_memory *memory, ut_work *turn,
                  const ut_fold_job *job)
{
    assert(what && plan && memory && turn);
    assert(job->payload > 0 && job->world > 0 && job->hosts <= UT_HOSTS_MAX && job->self < job->hosts);
    f->what = what;
    f->plan = plan;
    f->memory = memory;
    f->turn = turn;
    f->payload = job->payload;
    f->world = job->world, f->hosts = job->hosts, f->self = job->self;
}

/* Which steps bring what is summed here, send the sums on, and bring the results. */
static void find_steps(ut_op_fold *f)
{
    const ut_schedule *s = &f->plan->schedule;
    const bool strict = f->rule && f->rule->strict;
    f->summing = UT_CHUNK_NONE;
    for (uint32_t i = 0; i < s->steps; i++) {
        const ut_step *x = &s->step[i];
        if (x->kind == UT_STEP_SEND && x->stage == 1)
            f->up[x->chunk] = i;
        else if (x->kind == UT_STEP_RECEIVE && x->stage == 2)
            f->down[x->chunk] = i;
        else if (x->kind == UT_STEP_RECEIVE && (x->bytes || strict))
            f->due[f->summing = x->chunk]++; /* who is gone contributes nothing; a strict rule waits for enough */
    }
    f->summing = s->own != UT_CHUNK_NONE || !strict ? s->own : f->summing;
}

/* A leaf: what it sends is its own. */
static void close_leaves(ut_op_fold *f)
{
    const ut_schedule *s = &f->plan->schedule;
    for (uint32_t c = 0; c < s->chunks; c++) {
        assert(f->due[c] < f->hosts); /* each other host sends it once at most */
        if ((f->due[c] == 0 || s->placed) && c != s->own) {
            f->summed |= 1ULL << c;
            f->ready[0][c] = slots_of(f, c);
        }
    }
}

void ut_fold_open(ut_op_fold *f, uint16_t ranks, uint32_t lacking)
{
    const ut_schedule *s = &f->plan->schedule;
    assert(s->chunks >= 1 && s->chunks <= UT_HOSTS_MAX && s->steps <= UT_STEPS_MAX);
    assert(ranks <= f->world && lacking <= f->world);
    assert(s->own == UT_CHUNK_NONE || s->own < s->chunks);
    memset(f->ready, 0, sizeof f->ready);
    memset(f->due, 0, sizeof f->due);
    memset(f->up, 0xff, sizeof f->up);
    memset(f->down, 0xff, sizeof f->down);
    memset(f->result.least_of, 0xff, sizeof f->result.least_of);
    f->ranks = ranks;
    f->summed = f->final = f->result.thin = 0;
    f->result.nonfinite = f->result.digest = f->result.short_hosts = f->moot = 0;
    f->result.weight_min = f->world;
    f->fewer_at = f->fill_chunk = UINT32_MAX;
    f->forced = false;
    f->parts = 1;
    f->first[0] = 0;
    for (uint32_t c = 0; c < s->chunks; c++)
        f->first[c + 1] = f->first[c] + ut_slots(s->from[c + 1] - s->from[c], f->payload);
    find_steps(f);
    close_leaves(f);
    uint32_t slots = f->first[s->chunks];
    memset(f->state, 0, slots);
    /* What only moves is whole, unless a rank of this host did not call. */
    uint16_t weight = (uint16_t)(s->placed ? f->world - lacking : ranks);
    for (uint32_t g = 0; g < slots; g++)
        f->weight[g] = weight;
    if (f->rule)
        f->rule->open(f);
}

/* ---- one slot ---- */

static void set(ut_op_fold *f, uint32_t chunk, uint32_t g, uint8_t flags)
{
    uint8_t *state = f->state + f->first[chunk];
    uint32_t slots = slots_of(f, chunk);
    f->state[g] |= flags;
    for (unsigned stage = 0; stage < 2; stage++) {
        uint8_t flag = stage ? RESULT : SUMMED;
        if (!(flags & flag))
            continue;
        uint32_t *ready = &f->ready[stage][chunk];
        while (*ready < slots && (state[*ready] & flag))
            ++*ready;
    }
}

static void add_digest(ut_op_fold *f, uint64_t at, size_t len, uint32_t crc)
{
    if (!f->rule || !f->rule->digests)
        f->result.digest += ut_digest_part(crc, at, len);
}

static void is_result(ut_op_fold *f, uint32_t chunk, uint32_t g, uint64_t at, size_t len, uint32_t crc)
{
    f->crc[g] = crc;
    add_digest(f, at, len, crc);
    uint32_t weight = f->weight[g];
    f->result.weight_min = UT_MIN2(f->result.weight_min, weight);
    if (weight != f->world)
        f->result.thin |= 1ULL << chunk;
    set(f, chunk, g, SUMMED | RESULT);
}

void ut_fold_has_result(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint64_t at, size_t len, uint32_t crc)
{
    is_result(f, chunk, f->first[chunk] + slot, at, len, crc);
}

/* A sum on its way is not yet an average. */
static uint8_t redop_on_the_way(const ut_op_fold *f)
{
    return f->what->redop == UT_AVG ? UT_SUM : f->what->redop;
}

const uint8_t *ut_fold_own(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    assert(chunk < f->plan->schedule.chunks);
    return src_at(f, offset_of(f, chunk, slot));
}

bool ut_fold_moot(const ut_op_fold *f, const ut_step *s, uint32_t slot)
{
    assert(s->stage == 1 && s->chunk < f->plan->schedule.chunks);
    return f->state[f->first[s->chunk] + slot * f->parts] & SUMMED;
}

static void end_slot(ut_op_fold *f, uint32_t chunk, uint32_t slot);

/* All slots of |chunk| have enough: what is still on its way is not waited for, and what is lost is not missing. */
static void close_receives(ut_op_fold *f, uint32_t chunk)
{
    for (uint32_t i = 0; i < f->plan->schedule.steps; i++) {
        const ut_step *s = &f->plan->schedule.step[i];
        ut_transfer *t = &f->plan->transfer[i];
        if (s->kind != UT_STEP_RECEIVE || s->stage != 1 || s->chunk != chunk || ut_transfer_complete(t))
            continue;
        t->closed = 1;
        t->why = UT_MISSING_NOTHING;
    }
}

static void add_by_rule(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len,
                        unsigned ranks)
{
    uint32_t chunk = s->chunk, g = f->first[chunk] + slot * f->parts;
    if (f->rule->arrive(f, s, slot, payload, len, ranks))
        f->weight[g] = (uint16_t)(f->weight[g] + ranks);
    bool last = (++f->state[g] & FOLDS) == f->due[chunk] && !f->rule->strict;
    if (f->rule->end || (!last && !(f->rule->enough && f->rule->enough(f, chunk, slot))))
        return;
    end_slot(f, chunk, slot * f->parts);
    if (!ut_fold_is_sum(f) && f->ready[0][chunk] == slots_of(f, chunk))
        close_receives(f, chunk);
}

/* There are slots of |chunk| as far ahead of |at| as memory is asked for. */
static bool more_follows(const ut_op_fold *f, uint32_t chunk, uint64_t at)
{
    return at + UT_PREFETCH_AHEAD < f->plan->schedule.from[chunk + 1];
}

/* One slot of a plain sum. */
static void add(ut_op_fold *f, uint32_t chunk, uint32_t slot, const uint8_t *payload, size_t len, unsigned ranks)
{
    uint32_t g = f->first[chunk] + slot;
    uint64_t at = offset_of(f, chunk, slot);
    assert((f->state[g] & FOLDS) < f->due[chunk]);
    bool own = chunk == f->plan->schedule.own;
    bool first = (f->state[g] & FOLDS) == 0;
    bool last = (++f->state[g] & FOLDS) == f->due[chunk];
    f->weight[g] = (uint16_t)(f->weight[g] + ranks);
    uint8_t *acc = acc_at(f, at), *out = last ? dst_at(f, at) : acc;
    const uint8_t *in = first ? src_at(f, at) : acc;
    if (more_follows(f, chunk, at)) {
        ut_prefetch_ahead(in, len);
        if (out != in)
            ut_prefetch_ahead(out, len);
    }
    size_t bad = ut_fold(f->what->dtype, own ? f->what->redop : redop_on_the_way(f),
                         (first ? UT_A_IS_INPUT : 0) | (last ? UT_OUT_IS_RESULT : 0), out, in, payload,
                         len / f->what->element, ut_fold_divisor(f, g));
    if (!last)
        return;
    if (own) {
        f->result.nonfinite += bad;
        is_result(f, chunk, g, at, len, ut_crc32c(0, dst_at(f, at), len)); /* while it is in the cache */
    } else {
        set(f, chunk, g, SUMMED);
    }
}

void ut_fold_add(ut_op_fold *f, const ut_step *s, uint32_t slot, const ut_payloads *p, unsigned ranks)
{
    assert(s->kind == UT_STEP_RECEIVE && s->stage == 1 && p->slots > 0);
    assert(f->rule || slot + p->slots <= slots_of(f, s->chunk));
    for (uint32_t i = 0; i < p->slots; i++)
        if (f->rule)
            add_by_rule(f, s, slot + i, p->first + i * p->stride, p->len, ranks);
        else
            add(f, s->chunk, slot + i, p->first + i * p->stride, p->len, ranks);
}

/* One slot's result is in its place. */
static void placed(ut_op_fold *f, const ut_step *s, uint32_t slot, uint64_t at, size_t len, unsigned missing,
                   uint32_t crc)
{
    uint32_t g = f->first[s->chunk] + slot, up = f->up[s->chunk];
    f->weight[g] = (uint16_t)(f->world - UT_MIN2(missing, f->world));
    f->result.least_of[s->peer] = UT_MIN2(f->result.least_of[s->peer], f->weight[g]);
    is_result(f, s->chunk, g, at, len, crc);
    if (f->plan->schedule.direct)
        f->result.short_hosts |= missing ? ut_bit(s->peer) : 0;
    else if (up != UINT32_MAX) /* the owner goes on without it, or has it: the sum is gone here, and must not be sent */
        ut_transfer_mark(&f->plan->transfer[up], slot);
}

void ut_fold_place(ut_op_fold *f, const ut_step *s, uint32_t slot, const ut_payloads *p, unsigned missing)
{
    assert(s->kind == UT_STEP_RECEIVE && p->slots > 0 && p->crc);
    const bool by_rule = f->rule && f->rule->place, whole = f->plan->schedule.direct && !missing && s->stage == 2;
    for (uint32_t i = 0; i < p->slots; i++) {
        const uint8_t *payload = p->first + i * p->stride;
        uint64_t at = s->offset + (uint64_t)(slot + i) * f->payload;
        if (!by_rule && more_follows(f, s->chunk, at))
            ut_prefetch_ahead(dst_at(f, at), p->len);
        f->result.nonfinite += by_rule ? f->rule->place(f, s, slot + i, payload, p->len)
                                       : ut_place(f->what->dtype, dst_at(f, at), payload, p->len / f->what->element);
        if (whole)
            add_digest(f, at, p->len, p->crc[i]);
        else
            placed(f, s, slot + i, at, p->len, missing, p->crc[i]);
    }
}

const uint8_t *ut_fold_payload(const ut_op_fold *f, const ut_step *s, uint32_t slot, uint32_t *slots,
                               unsigned *ret_ranks)
{
    assert(s->kind == UT_STEP_SEND && *slots > 0);
    uint64_t at = offset_of(f, s->chunk, slot);
    if (s->stage == 1 && f->due[s->chunk] == 0) {
        *ret_ranks = f->ranks;
        return src_at(f, at);
    }
    uint32_t g = f->first[s->chunk] + slot, alike = 1;
    *ret_ranks = f->weight[g];
    while (s->stage == 2 && alike < *slots && f->weight[g + alike] == f->weight[g])
        alike++;
    *slots = UT_MIN2(*slots, alike);
    if (s->stage == 1)
        return (f->state[g] & FOLDS) ? dst_at(f, at) : src_at(f, at);
    return f->memory->out + (at - f->memory->out_from);
}

/* ---- one chunk ---- */

/* Nothing more will be folded into a slot, and those that are of the same contributions: they hold what they have. */
static void end_slot(ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    uint32_t g = f->first[chunk] + slot;
    assert(slot < slots_of(f, chunk));
    if (f->state[g] & SUMMED)
        return;
    uint64_t at = offset_of(f, chunk, slot);
    bool alone = (f->state[g] & FOLDS) == 0;
    size_t n = elements_of(f, chunk, slot);
    bool own = chunk == f->plan->schedule.own;
    if (f->rule && f->rule->results) {
        assert(own && slot % f->parts == 0);
        f->result.nonfinite += f->rule->results(f, chunk, slot);
        return;
    }
    if (f->rule) {
        size_t bad = f->rule->finish(f, chunk, slot, dst_at(f, at), n * f->what->element);
        f->result.nonfinite += own ? bad : 0;
    } else if (own) {
        f->result.nonfinite += f->plan->schedule.placed
                                   ? ut_place(f->what->dtype, dst_at(f, at), src_at(f, at), n)
                                   : ut_finish(f->what->dtype, f->what->redop, alone ? UT_A_IS_INPUT : 0, dst_at(f, at),
                                               alone ? src_at(f, at) : acc_at(f, at), n, ut_fold_divisor(f, g));
    } else if (!alone && f->what->acc_element != f->what->element) {
        (void)ut_finish(f->what->dtype, redop_on_the_way(f), 0, dst_at(f, at), acc_at(f, at), n, 1);
    }
    if (own)
        is_result(f, chunk, g, at, n * f->what->element, ut_crc32c(0, dst_at(f, at), n * f->what->element));
    else
        set(f, chunk, g, SUMMED);
}

void ut_fold_fewer(ut_op_fold *f, uint32_t chunk)
{
    assert(chunk == f->plan->schedule.own && f->due[chunk] > 0);
    f->due[chunk]--;
    f->fewer_at = 0; /* some of its slots may be complete with what they have */
}

void ut_fold_join(ut_op_fold *f, uint16_t ranks)
{
    assert(ranks <= f->world);
    f->ranks = ranks;
    if (f->summing != UT_CHUNK_NONE)
        f->fewer_at = 0;
}

bool ut_fold_own_done(const ut_op_fold *f)
{
    uint32_t chunk = f->summing;
    return chunk == UT_CHUNK_NONE || f->ready[0][chunk] == slots_of(f, chunk);
}

/* Nothing more is to be folded into a slot of the chunk that is summed here. */
static bool is_complete(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    if (f->rule && f->rule->strict)
        return f->rule->enough(f, chunk, slot);
    return (f->state[f->first[chunk] + slot] & FOLDS) == f->due[chunk];
}

static bool may_pass(const ut_op_fold *f)
{
    return ut_work_pass(f->turn, f->what->bytes, f->payload);
}

/* After fewer hosts contribute than was expected: slots of that chunk that have all now. */
static bool end_complete_slots(ut_op_fold *f)
{
    uint32_t chunk = f->summing, *slot = &f->fewer_at;
    assert(chunk < f->plan->schedule.chunks);
    for (; *slot < slots_of(f, chunk); ++*slot) {
        if ((f->state[f->first[chunk] + *slot] & SUMMED) || !is_complete(f, chunk, *slot))
            continue;
        if (!may_pass(f))
            return false;
        end_slot(f, chunk, *slot);
    }
    *slot = UINT32_MAX;
    if (!ut_fold_is_sum(f) && f->ready[0][chunk] == slots_of(f, chunk))
        close_receives(f, chunk);
    return true;
}

/* Nothing more will be folded into |chunk|: slots that wait for more hold what they have. */
static bool end_sum(ut_op_fold *f, uint32_t chunk)
{
    bool own = chunk == f->plan->schedule.own;
    uint32_t slots = slots_of(f, chunk);
    bool nothing = f->plan->schedule.placed && f->due[chunk]; /* of what never came nothing can be made */
    if (f->rule && f->rule->end) {
        if (own && !f->rule->end(f, chunk))
            return false;
        slots = 0;
    }
    for (uint32_t slot = f->ready[0][chunk]; slot < slots && !nothing; slot++) {
        if (f->state[f->first[chunk] + slot] & SUMMED)
            continue;
        if (!may_pass(f))
            return false;
        end_slot(f, chunk, slot);
    }
    f->summed |= 1ULL << chunk;
    if (own && !nothing)
        f->final |= 1ULL << chunk;
    return true;
}

/* No more of |chunk|'s result will come: its place is taken by what this host has gathered of it, at least its own. */
static bool fill(ut_op_fold *f, uint32_t chunk)
{
    assert(f->down[chunk] < f->plan->schedule.steps); /* an owner has no holes in its result */
    const ut_transfer *t = &f->plan->transfer[f->down[chunk]];
    uint32_t slot = f->fill_chunk == chunk ? f->fill_slot : 0;
    bool stands = f->rule && f->rule->fill; /* where results are placed, the own contribution is already */
    if (stands) {
        f->fill_chunk = chunk;
        f->fill_slot = slot;
        if (!f->rule->fill(f, chunk, &f->fill_slot))
            return false;
        f->result.weight_min = UT_MIN2(f->result.weight_min, f->ranks);
        f->result.thin |= 1ULL << chunk;
    }
    for (; slot < t->slots && !stands; slot++) {
        uint32_t g = f->first[chunk] + slot;
        if (ut_transfer_has(t, slot) || (f->state[g] & RESULT))
            continue;
        if (!may_pass(f)) {
            f->fill_chunk = chunk;
            f->fill_slot = slot;
            return false;
        }
        uint64_t at = offset_of(f, chunk, slot);
        const uint8_t *sum = (f->state[g] & FOLDS) ? dst_at(f, at) : src_at(f, at);
        size_t n = elements_of(f, chunk, slot), len = n * f->what->element;
        if (f->ranks == 0)
            memset(dst_at(f, at), 0, len); /* which is the sum, too */
        f->result.nonfinite +=
            ut_finish(f->what->dtype, f->what->redop, UT_A_IS_INPUT, dst_at(f, at), sum, n, ut_fold_divisor(f, g));
        is_result(f, chunk, g, at, len, ut_crc32c(0, dst_at(f, at), len));
    }
    f->final |= 1ULL << chunk;
    return true;
}

static bool is_over(const ut_op_fold *f, uint32_t step)
{
    return step == UINT32_MAX || ut_transfer_over(&f->plan->transfer[step]);
}

/* The whole result of |chunk| is here: its owner had what it wanted. By a strict rule nothing is missing then. */
static void close_sum(ut_op_fold *f, uint32_t chunk)
{
    f->summed |= 1ULL << chunk;
    if (f->rule && f->rule->strict)
        close_receives(f, chunk);
    for (uint32_t i = 0; i < f->plan->schedule.steps; i++) {
        ut_transfer *t = &f->plan->transfer[i];
        const ut_step *s = &f->plan->schedule.step[i];
        if (s->stage != 1 || s->chunk != chunk || ut_transfer_over(t))
            continue;
        t->closed = 1;
        t->why = t->done ? UT_MISSING_LOST : UT_MISSING_SILENT;
    }
}

/* Bit per chunk: something may still be folded into it. */
static uint64_t still_folding(const ut_op_fold *f)
{
    uint64_t folding = 0;
    for (uint32_t i = 0; i < f->plan->schedule.steps; i++) {
        const ut_step *s = &f->plan->schedule.step[i];
        if (s->kind == UT_STEP_RECEIVE && s->stage == 1 && !ut_transfer_over(&f->plan->transfer[i]))
            folding |= 1ULL << s->chunk;
    }
    if (f->rule && f->rule->strict && !f->forced && !ut_fold_own_done(f))
        folding |= 1ULL << f->summing;
    return folding;
}

/* Chunk |c| has no result yet, and more is folded into it only if |folding|. False as of ut_fold_settle. */
static bool settle_chunk(ut_op_fold *f, uint32_t c, bool folding, bool ending)
{
    uint32_t down = f->down[c];
    if (down != UINT32_MAX && ut_transfer_complete(&f->plan->transfer[down])) {
        f->final |= 1ULL << c;
        if (!f->plan->schedule.direct)
            close_sum(f, c);
        return true;
    }
    if (!folding && !(f->summed >> c & 1) && !end_sum(f, c))
        return false;
    if (f->what->collective != UT_ALLREDUCE || down == UINT32_MAX || !is_over(f, down) || !(f->summed >> c & 1))
        return true;
    /* The sum still goes up, for the sake of others, before it becomes a result here; who must agree passes on results
     * alone. */
    return !(ending || (!f->what->agree && is_over(f, f->up[c]))) || fill(f, c);
}

bool ut_fold_settle(ut_op_fold *f, bool ending)
{
    if (f->fewer_at != UINT32_MAX && !end_complete_slots(f))
        return false;
    uint64_t folding = still_folding(f);
    for (uint32_t c = 0; c < f->plan->schedule.chunks; c++)
        if (!(f->final >> c & 1) && !settle_chunk(f, c, folding >> c & 1, ending))
            return false;
    return true;
}
