/* SPDX-License-Identifier: Apache-2.0 */
#include "ext/sparse/blocks.h"

#include "core/base/bits.h"

#include "ext/sparse/sparse.h"

#include "kernels/kernels.h"
#include "kernels/quant.h"

enum { SLICE = 1024 /* granules, at once */ };

static void open(ut_op_fold *f)
{
    ut_sparse *p = f->rule_memory;
    ut_sparse_transfers(p, &f->plan->schedule, f->plan->transfer);
    for (uint32_t c = 0; c < f->plan->schedule.chunks; c++)
        if (c != f->plan->schedule.own)
            f->ready[0][c] = p->blocks[c];
}

static bool has_above(const ut_transfer *t, uint32_t slot)
{
    return ut_sparse_any(t->bits, slot + 1, t->slots);
}

static bool takes(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len)
{
    ut_sparse *p = f->rule_memory;
    ut_transfer *t = &f->plan->transfer[s - f->plan->schedule.step];
    ut_block_shape shape = ut_sparse_shape(p, s->chunk, s->stage);
    ut_block *b = &p->block;
    if (slot >= t->slots)
        return false;
    if (ut_transfer_has(t, slot)) /* again */
        return true;
    if (ut_block_open(b, payload, len, &shape) || ut_sparse_any(t->granules, b->first, b->first + b->granules) ||
        (b->last ? has_above(t, slot) : slot + 1 == t->slots) || (b->runs && s->stage == 1))
        return false;
    if (b->last)
        t->slots = slot + 1;
    return true;
}

/* The block's range has come with step |s|. */
static void covers(ut_op_fold *f, const ut_step *s)
{
    ut_sparse *p = f->rule_memory;
    ut_transfer *t = &f->plan->transfer[s - f->plan->schedule.step];
    uint32_t first = p->block.first, end = first + p->block.granules;
    ut_sparse_set(t->granules, first, end);
    t->covered += ut_sparse_bytes(p, s->chunk, first, end);
}

static bool arrive(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len, unsigned ranks)
{
    ut_sparse *p = f->rule_memory;
    ut_block_shape shape = ut_sparse_shape(p, s->chunk, s->stage);
    (void)slot, (void)payload, (void)len, (void)ranks; /* `takes` has read the block */
    ut_block_add(&p->block, &shape, ut_sparse_sums(p));
    covers(f, s);
    return true;
}

/* The number of the chunk's first element. */
static uint64_t start_of(const ut_sparse *p, uint32_t chunk)
{
    return (uint64_t)ut_sparse_base(p, chunk) * p->group;
}

/* What the block says of this host: where it is not in the result, what its ranks gave is still theirs. */
static void note_who(ut_op_fold *f, uint32_t chunk)
{
    ut_sparse *p = f->rule_memory;
    uint32_t first = p->from[chunk] + p->block.first;
    for (uint32_t i = 0; i < p->block.runs; i++) {
        ut_block_run run = ut_block_run_at(&p->block, i);
        if (!(run.hosts & ut_bit(f->self))) {
            ut_sparse_set(p->without, first, first + run.granules);
            p->lacks = true;
        }
        first += run.granules;
    }
}

static size_t place(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len)
{
    (void)slot, (void)payload, (void)len; /* `takes` has read the block */
    ut_sparse *p = f->rule_memory;
    ut_block_shape shape = ut_sparse_shape(p, s->chunk, s->stage);
    covers(f, s);
    note_who(f, s->chunk);
    p->answered += ut_block_error(&p->block, &shape);
    if (!p->dense)
        return 0;
    return ut_block_place(&p->block, &shape, ut_sparse_chunk(p, s->chunk), start_of(p, s->chunk), &f->result.digest);
}

/* Ranks in granule |g| of the own chunk, their hosts, and by how many granules from there on, below |end|, the same
 * are. */
static uint32_t ranks_from(const ut_op_fold *f, uint32_t g, uint32_t end, uint32_t *ret_run, uint64_t *ret_hosts)
{
    const ut_schedule *s = &f->plan->schedule;
    uint32_t ranks = f->ranks, run = end - g;
    *ret_hosts = ranks ? ut_bit(f->self) : 0;
    for (uint32_t i = 0; i < s->steps; i++) {
        const ut_transfer *t = &f->plan->transfer[i];
        if (s->step[i].kind != UT_STEP_RECEIVE || s->step[i].stage != 1 || !t->covered)
            continue;
        bool in = ut_sparse_any(t->granules, g, g + 1);
        ranks += in ? t->weight : 0;
        *ret_hosts |= in ? ut_bit(s->step[i].peer) : 0;
        if (t->covered != t->whole)
            run = ut_sparse_run(t->granules, g, g + run);
    }
    *ret_run = run;
    return ranks;
}

static uint32_t least_ranks(const ut_op_fold *f, uint32_t g, uint32_t end)
{
    uint32_t least = UINT32_MAX;
    uint64_t hosts;
    for (uint32_t run; g < end; g += run)
        least = UT_MIN2(least, ranks_from(f, g, end, &run, &hosts));
    return least;
}

/* The next block of the own chunk's results, and who is in it. */
static size_t tell(const ut_op_fold *f, uint8_t *block, const ut_block_shape *shape, uint32_t granules,
                   uint32_t *ret_some)
{
    const ut_sparse *p = f->rule_memory;
    uint32_t fit = ut_block_fit(shape->group, shape->form, f->payload), run;
    ut_block_who who;
    assert(fit <= UT_BLOCK_RUNS_MAX);
    who.runs = 0;
    for (uint32_t g = p->told; g < granules && (g == p->told || g - p->told < fit); g += run) {
        uint64_t hosts;
        (void)ranks_from(f, g, UT_MIN2(granules, g + UT_BLOCK_RUN_GRANULES), &run, &hosts);
        if (g == p->told && run == granules - g && hosts == ut_bits_below(f->hosts))
            return ut_block_encode(block, f->payload, ut_sparse_sums(p), shape, p->told, 1, ret_some);
        who.run[who.runs++] = (ut_block_run){run, hosts};
    }
    return ut_block_encode_who(block, f->payload, ut_sparse_sums(p), shape, p->told, &who, ret_some);
}

/* Sums become what is sent of them. False if the turn does not allow all of it. */
static bool finish_sums(ut_op_fold *f, uint32_t chunk, uint32_t granules)
{
    ut_sparse *p = f->rule_memory;
    /* Sums of int8 answers are rounded when they are told, and NaN counted then. */
    bool later = p->down == UT_VALUE_INT8;
    unsigned form = later ? UT_VALUE_FLOAT32 : ut_sparse_answer(p->form, p->down);
    size_t each = (size_t)ut_granule_units(p->group) * p->group;
    while (p->finished < granules) {
        uint32_t run, end = UT_MIN2(granules, p->finished + SLICE);
        uint64_t hosts;
        uint32_t ranks = ranks_from(f, p->finished, end, &run, &hosts);
        uint64_t bytes = ut_sparse_bytes(p, chunk, p->finished, p->finished + run);
        if (!ut_work_pass(f->turn, f->what->bytes, bytes))
            return false;
        size_t bad = ut_sparse_finish(ut_sparse_sums(p) + p->finished * each, bytes / sizeof(float),
                                      f->what->redop == UT_AVG ? UT_MAX2(ranks, 1) : 1, form);
        f->result.nonfinite += later ? 0 : bad;
        p->finished += run;
    }
    return true;
}

/* All slots of the own chunk now have a number: |last| bytes are in the last one. */
static void know_slots(ut_op_fold *f, uint32_t chunk, uint32_t slots, uint32_t last)
{
    const ut_schedule *s = &f->plan->schedule;
    for (uint32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == UT_STEP_SEND && s->step[i].stage == 2 && s->step[i].chunk == chunk) {
            f->plan->transfer[i].slots = slots;
            f->plan->transfer[i].bytes_last = last;
        }
}

/* Sums become what their |len| bytes of int8 say of them, as for all other hosts. */
static void take_own(ut_op_fold *f, const uint8_t *block, size_t len, const ut_block_shape *shape, uint32_t chunk)
{
    ut_sparse *p = f->rule_memory;
    int error = ut_block_open(&p->block, block, len, shape);
    assert(!error);
    (void)error;
    p->answered += ut_block_error(&p->block, shape);
    f->result.nonfinite += ut_block_place(&p->block, shape, ut_sparse_sums(p), start_of(p, chunk), &f->result.digest);
}

/* This host keeps what it tells of |granules| from |first| on. */
static void keep_own(ut_op_fold *f, uint32_t chunk, uint32_t first, uint32_t granules)
{
    ut_sparse *p = f->rule_memory;
    size_t at = (size_t)first * ut_granule_units(p->group) * p->group;
    uint64_t bytes = ut_sparse_bytes(p, chunk, first, first + granules);
    if (p->down != UT_VALUE_INT8)
        f->result.digest += ut_sparse_digest(ut_sparse_sums(p) + at, bytes / sizeof(float), start_of(p, chunk) + at);
    if (p->listed && p->dense)
        memcpy(ut_sparse_chunk(p, chunk) + at, ut_sparse_sums(p) + at, bytes);
}

static bool end(ut_op_fold *f, uint32_t chunk)
{
    ut_sparse *p = f->rule_memory;
    ut_block_shape shape = ut_sparse_shape(p, chunk, 2);
    uint32_t granules = p->from[chunk + 1] - p->from[chunk], some;
    if (!finish_sums(f, chunk, granules))
        return false;
    while (p->told < granules) {
        uint64_t at = f->plan->schedule.from[chunk] + (uint64_t)p->made * f->payload;
        uint8_t *block = f->memory->encoded + at;
        if (!ut_work_pass(f->turn, f->what->bytes, f->payload))
            return false;
        shape.key = ut_quant_key(p->seq, 1, p->self, chunk, p->made);
        size_t len = tell(f, block, &shape, granules, &some);
        if (p->down == UT_VALUE_INT8)
            take_own(f, block, len, &shape, chunk);
        ut_work_add(f->turn, ut_sparse_bytes(p, chunk, p->told, p->told + some));
        keep_own(f, chunk, p->told, some);
        if (p->told + some == granules)
            know_slots(f, chunk, p->made + 1, (uint32_t)len);
        else
            memset(block + len, 0, f->payload - len);
        len = p->told + some == granules ? len : f->payload;
        uint32_t ranks = least_ranks(f, p->told, p->told + some);
        f->weight[f->first[chunk] + p->made] = (uint16_t)ranks;
        ut_fold_has_result(f, chunk, p->made, at, len, ut_crc32c(0, block, len));
        p->told += some;
        p->made++;
    }
    return true;
}

/* Passes over what the one rank of this host gave before unit |first| of a chunk. False if the turn does not allow
 * that: there may be as many entries as the chunk has. */
static bool pass_over(ut_op_fold *f, uint32_t chunk, uint32_t first)
{
    ut_sparse *p = f->rule_memory;
    for (uint32_t some = first; some;) { /* none lies before the chunk */
        uint64_t left = p->given.n - p->given.next;
        some = (uint32_t)(ut_work_take(f->turn, f->what->bytes, 4 * UT_MIN2(left, (uint64_t)SLICE)) / 4);
        if (some == 0 && left)
            return false;
        if (ut_entries_skip(&p->given, ut_sparse_base(p, chunk) + first, some) < some)
            break;
    }
    return true;
}

/* Puts |units| of it from |first| on to where they are missing. */
static void put_own(ut_sparse *p, uint32_t chunk, uint32_t first, uint32_t units, float *hole)
{
    ut_block_shape shape = {.units = units, .group = p->group, .form = p->form};
    memset(hole, 0, (size_t)units * p->group * sizeof *hole);
    (void)ut_entries_add(&p->given, hole, &shape, ut_sparse_base(p, chunk) + first, UINT32_MAX, p->scale);
}

/* What this host's ranks gave stands in the holes; it becomes what an owner would have sent of them alone. */
static bool fill(ut_op_fold *f, uint32_t chunk, uint32_t *at)
{
    ut_sparse *p = f->rule_memory;
    const ut_transfer *t = &f->plan->transfer[f->down[chunk]];
    uint32_t granules = p->from[chunk + 1] - p->from[chunk], run;
    uint32_t ranks = f->what->redop == UT_AVG ? f->ranks : 1;
    size_t each = (size_t)ut_granule_units(p->group) * p->group;
    if (*at == 0) {
        p->given.next = p->begins[chunk];
        p->given.more = 0;
    }
    for (; *at < granules && p->dense; *at += run) {
        bool came = ut_sparse_any(t->granules, *at, *at + 1);
        run = ut_sparse_run(t->granules, *at, came ? granules : UT_MIN2(granules, *at + SLICE));
        uint64_t bytes = ut_sparse_bytes(p, chunk, *at, *at + run);
        if (came)
            continue;
        uint32_t first = *at * ut_granule_units(p->group);
        if ((p->listed && !pass_over(f, chunk, first)) || !ut_work_pass(f->turn, f->what->bytes, bytes))
            return false;
        float *hole = ut_sparse_chunk(p, chunk) + *at * each;
        if (p->listed)
            put_own(p, chunk, first, (uint32_t)(bytes / sizeof(float) / p->group), hole);
        f->result.nonfinite += ut_sparse_finish(hole, bytes / sizeof(float), UT_MAX2(ranks, 1),
                                                p->down ? UT_VALUE_FLOAT32 : ut_sparse_answer(p->form, 0));
        f->result.digest += ut_sparse_digest(hole, bytes / sizeof(float), start_of(p, chunk) + *at * each);
    }
    return true;
}

const ut_fold_rule ut_fold_blocks = {
    .digests = true, .open = open, .arrive = arrive, .takes = takes, .place = place, .end = end, .fill = fill};
