/* SPDX-License-Identifier: Apache-2.0
 *
 *   O2 fingerprint: each granule of a sparse result is made of distinct ranks that called this op, by as many as are in
 *   it where it is an average
 *   O15 nothing lost: each entry of a rank that asked for what is left is in its result, or was returned, and not both
 */
#include "sim/sparse/sparse.h"
#include "sim/world/liar.h"

#include "kernels/block.h"

#include <stdlib.h>

#define FAIL SIM_VIEW_FAIL

/* The elements whose result came from the liar; all, where an average cannot be told from what it put in. */
static void liar_shard(const sim_view *v, uint64_t *from, uint64_t *to)
{
    *from = *to = 0;
    if (!v->liar || v->late)
        return;
    if (v->ask->as.redop != UT_SUM || v->ask->as.nonfinite)
        *to = v->ask->as.count;
    else
        sim_shard_of(v, (uint32_t)__builtin_ctzll(v->liar), from, to);
}

/* The rank's own entries: as it gave them, and as they are now. */
typedef struct own {
    uint8_t *given; /* NULL: it did not ask for any */
    const uint8_t *now;
    uint64_t n, next, row;
} own;

static own own_of(const sim_view *v, const sim_entries *code)
{
    const ut_submission *e = &v->ask->entry;
    own o = {.now = v->rank->arena + e->src, .row = 4 * (uint64_t)code->group};
    if (!(e->flags & UT_SUBMIT_RETURN) || v->liar)
        return o;
    o.given = sim_room(code->units * (4 + o.row));
    o.n = sim_entries_fill(code, v->rank->index, o.given);
    return o;
}

/* Those of a granule that ends before element |end| and in which are |held|. */
static void check_returned(const sim_view *v, own *o, uint64_t end, sim_held held)
{
    uint64_t mine = sim_bit(v->rank->index);
    for (uint32_t unit; o->given && o->next < o->n; o->next++) {
        uint64_t at = 4 * o->n + o->next * o->row;
        memcpy(&unit, o->given + 4 * o->next, 4);
        if (unit * o->row / 4 >= end)
            return;
        bool same = memcmp(o->given + at, o->now + at, o->row) == 0;
        bool back = v->r->lacks && same;
        if (!same && !(v->r->lacks && sim_all_bytes(o->now + at, o->row, 0)))
            FAIL("O15 nothing lost", "entry %u is neither as it was given nor zero, lacks %u", unit, v->r->lacks);
        if (back && held.ranks & mine)
            FAIL("O15 nothing lost", "entry %u is in the result, and was returned", unit);
        if (!back && !((held.ranks | held.unsure) & mine))
            FAIL("O15 nothing lost", "entry %u is not in the result, and was not returned", unit);
        v->w->cover[SIM_SPARSE_returned] += back;
    }
}

void sim_read_sparse(sim_view *v, const uint8_t *result)
{
    const sim_op *op = &v->ask->as;
    const float *values = (const float *)(const void *)result;
    sim_entries code = sim_entries_of(v->w, v->rank->job, v->ask->entry.op_seq, op);
    uint64_t each = (uint64_t)ut_granule_units(op->group) * op->group, nonfinite = 0, lied_from, lied_to;
    own mine = own_of(v, &code);
    sim_begin_notes(v);
    liar_shard(v, &lied_from, &lied_to);
    for (uint64_t i = 0, end; i < op->count; i = end) {
        sim_held held;
        sim_wrong wrong;
        end = UT_MIN2(i + each, op->count);
        for (uint64_t k = i; k < end; k++)
            nonfinite += !(values[k] - values[k] == 0);
        if (i >= lied_from && i < lied_to) {
            sim_note_unread(v, end);
            continue;
        }
        if (!sim_entries_read(&code, i, end, values, &held, &wrong))
            FAIL("O2 fingerprint",
                 "element %" PRIu64 " of %" PRIu64 " (form %u, redop %u, rows of %u, granule [%" PRIu64 ", %" PRIu64
                 ")) is %g, and %s",
                 wrong.element, op->count, op->form, op->redop, op->group, i, end, (double)values[wrong.element],
                 wrong.reason);
        sim_note_ranks(v, i, end, held);
        check_returned(v, &mine, end, held);
    }
    free(mine.given);
    v->nonfinite = nonfinite;
    if (v->r->nonfinite != nonfinite && !v->late && !v->liar)
        FAIL("O2 fingerprint", "the receipt counts %" PRIu64 " elements as not finite, there are %" PRIu64,
             v->r->nonfinite, nonfinite);
    const ut_receipt *r = v->r;
    v->w->cover[r->status == UT_COMPLETE       ? SIM_SPARSE_complete
                : r->status == UT_INSUFFICIENT ? SIM_SPARSE_insufficient
                                               : SIM_SPARSE_partial]++;
    v->w->cover[SIM_SPARSE_int8_partial] += op->down && r->status == UT_PARTIAL;
    v->w->cover[SIM_SPARSE_repaired] += r->bytes_repaired != 0;
    v->w->cover[SIM_SPARSE_late] += v->late;
    v->w->cover[SIM_SPARSE_fewer_owners] += !v->late && r->owners != sim_first(v->hosts);
    v->w->cover[SIM_SPARSE_cut_divisor] += op->redop == UT_AVG && v->runs > 1;
    for (uint32_t h = 0; h < v->hosts; h++)
        v->w->cover[SIM_SPARSE_hole] += h != v->self && r->peer[h].missing[1] != 0;
}
