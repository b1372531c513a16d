/* SPDX-License-Identifier: Apache-2.0
 *
 * Sparse allreduces: what the ranks of this host bring. What one rank gives is encoded as it is
 * (ext/sparse/sparse_codec.c), and results go straight into its buffer. What several give is added up in a dense tensor
 * of the job's memory first, which then holds the results, too. A host that is alone is done with that.
 */
#include "ext/sparse/variant.h"

#include "kernels/block.h"

static ut_block_shape tensor_of(const ut_op *op)
{
    return (ut_block_shape){
        .units = ut_op_sparse(op)->units, .group = op->what.alike.sparse.group, .form = op->what.alike.sparse.form};
}

uint32_t ut_op_sparse_granules(const ut_job *j, const ut_op *op)
{
    ut_block_shape tensor = tensor_of(op);
    return j->config.hosts > 1 ? ut_block_granules(&tensor) : 0;
}

static ut_entries entries_of(const ut_submission *s, const uint8_t *src)
{
    uint32_t n = (uint32_t)s->entries;
    return (ut_entries){.names = src, .values = src + 4 * (size_t)n, .n = n};
}

/* Looks for the largest magnitude of |values| floats at |from|, of which it has seen |*at| with |*most| as the largest.
 * False if the turn does not allow all of it. Only float8 has a scale. */
static bool measure(ut_work *turn, uint64_t bytes, const uint8_t *from, uint64_t values, uint64_t *at, float *most)
{
    while (*at < values) {
        uint64_t some = ut_work_take(turn, bytes, 4 * (values - *at)) / 4;
        if (some == 0)
            return false;
        *most = UT_MAX2(*most, ut_largest_finite((const void *)(from + 4 * *at), some));
        *at += some;
    }
    return true;
}

/* Begins with the entries of |call|. */
static void start_call(ut_op *op, const ut_call *call)
{
    ut_sparse *p = ut_op_sparse(op);
    p->given = entries_of(&call->submission, call->src);
    p->measured = 0;
    p->most = 0;
    op->work.at = 1;
}

/* The scale of the values that were begun with. False as above. */
static bool find_scale(ut_job *j, ut_op *op)
{
    ut_sparse *p = ut_op_sparse(op);
    uint64_t values =
        op->what.alike.sparse.form == UT_VALUE_FLOAT8 ? (uint64_t)p->given.n * op->what.alike.sparse.group : 0;
    if (!measure(j->host->turn, op->what.bytes, p->given.values, values, &p->measured, &p->most))
        return false;
    p->scale = ut_float8_scale(p->most);
    return true;
}

static void report(ut_job *j, const ut_op *op, const ut_call *call)
{
    j->host->counters->bad_submissions++;
    j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_BAD_SUBMISSION,
                                                .job = j->number,
                                                .session = call->session,
                                                .host = UINT32_MAX,
                                                .op_seq = op->seq,
                                                .a = (uint64_t)-UT_ERR_RANGE});
}

/* Looks at what the one rank here gives: what follows a bad index is not there. */
static bool look(ut_job *j, ut_op *op)
{
    ut_sparse *p = ut_op_sparse(op);
    const ut_call *call = &op->local.call[0];
    if (op->work.at == 0)
        start_call(op, call);
    if (!find_scale(j, op))
        return false;
    while (p->given.next < p->given.n) {
        uint64_t left = p->given.n - p->given.next;
        uint32_t some = (uint32_t)(ut_work_take(j->host->turn, op->what.bytes, 4 * left) / 4);
        if (some == 0)
            return false;
        if (ut_entries_skip(&p->given, p->units, some) != some) {
            report(j, op, call);
            p->given.n = p->given.next;
        }
    }
    p->values = (uint64_t)p->given.n * op->what.alike.sparse.group;
    return true;
}

/* Adds up what several ranks give, or the one of a host that is alone: step 0 of `work.index` clears the tensor, step
 * i + 1 adds the entries of rank i. */
static bool add_up(ut_job *j, ut_op *op)
{
    ut_sparse *p = ut_op_sparse(op);
    ut_block_shape tensor = tensor_of(op);
    uint64_t each = 4 + 4 * (uint64_t)op->what.alike.sparse.group;
    for (; op->work.index == 0 && op->work.at < op->what.bytes;) {
        uint64_t some = ut_work_take(j->host->turn, op->what.bytes, op->what.bytes - op->work.at);
        if (some == 0)
            return false;
        memset(p->dense + op->work.at, 0, some);
        op->work.at += some;
    }
    if (op->work.index == 0) {
        op->work.index = 1;
        op->work.at = p->values = 0;
        p->together = 0;
    }
    for (; op->work.index <= op->local.calls; op->work.index++, op->work.at = 0) {
        const ut_call *call = &op->local.call[op->work.index - 1];
        if (op->work.at == 0)
            start_call(op, call);
        if (!find_scale(j, op))
            return false;
        while (p->given.next < p->given.n) {
            uint64_t left = p->given.n - p->given.next;
            uint32_t some = (uint32_t)(ut_work_take(j->host->turn, op->what.bytes, left * each) / each);
            if (some == 0)
                return false;
            if (ut_entries_add(&p->given, (float *)(void *)p->dense, &tensor, 0, some, p->scale) != some) {
                report(j, op, call);
                break;
            }
        }
        p->values += (uint64_t)p->given.next * op->what.alike.sparse.group;
        p->together += p->most;
    }
    if (op->local.calls > 1) /* the largest magnitude that the ranks may have together */
        p->scale = ut_float8_scale(UT_MIN2(p->together, 0x1.fffffep127f));
    return true;
}

bool ut_op_sparse_combine(ut_job *j, ut_op *op)
{
    ut_sparse *p = ut_op_sparse(op);
    p->listed = op->local.calls == 1 && ut_op_sparse_granules(j, op);
    if (j->config.hosts == 1 || p->listed)
        p->dense = op->local.calls == 1 ? op->local.call[0].dst : op->memory.bucket;
    else
        p->dense = op->memory.held;
    p->sums = op->memory.held;
    return p->listed ? look(j, op) : add_up(j, op);
}

/* The same of one call, from entry op->work.at on. */
static bool return_call(ut_job *j, ut_op *op, const ut_call *call)
{
    const ut_sparse *p = ut_op_sparse(op);
    ut_entries e = entries_of(&call->submission, call->src);
    uint32_t row = 4 * (uint32_t)op->what.alike.sparse.group, each = ut_granule_units(op->what.alike.sparse.group);
    /* Both lie in one arena. */
    uint8_t *values = call->dst - call->submission.dst + call->submission.src + 4 * (size_t)e.n;
    while (op->work.at < e.n) {
        uint64_t some = ut_work_take(j->host->turn, op->what.bytes, (e.n - op->work.at) * (4 + (uint64_t)row));
        uint32_t end = (uint32_t)(op->work.at + some / (4 + row));
        if (end == op->work.at)
            return false;
        for (uint32_t i = (uint32_t)op->work.at; i < end; i++) {
            uint32_t unit = ut_entries_index(&e, i, 0, p->units);
            bool lacking = unit < p->units && ut_sparse_any(p->without, unit / each, unit / each + 1);
            if (!lacking)
                memset(values + (size_t)i * row, 0, row);
        }
        op->work.at = end;
    }
    return true;
}

bool ut_op_sparse_return(ut_job *j, ut_op *op)
{
    if (!ut_op_sparse(op)->lacks)
        return true;
    for (; op->work.index < op->local.calls; op->work.index++, op->work.at = 0) {
        const ut_call *call = &op->local.call[op->work.index];
        bool asked = call->session != UINT32_MAX && call->submission.flags & UT_SUBMIT_RETURN;
        if (asked && !return_call(j, op, call))
            return false;
    }
    return true;
}

/* Steps one after the other: `copied` counts what is done of the values that are measured, of the bytes that are
 * cleared and of the entries that are added. */
bool ut_sparse_own(ut_work *turn, ut_waiting *w)
{
    const ut_submission *s = &w->submission;
    ut_entries e = entries_of(s, w->src);
    ut_block_shape tensor = {.units = (uint32_t)(s->count / s->alike.sparse.group),
                             .group = s->alike.sparse.group,
                             .form = s->alike.sparse.form};
    uint64_t bytes = s->count * sizeof(float), each = 4 + 4 * (uint64_t)tensor.group;
    uint64_t values = tensor.form == UT_VALUE_FLOAT8 ? (uint64_t)e.n * tensor.group : 0;
    if (w->copied < values && !measure(turn, bytes, e.values, values, &w->copied, &w->most))
        return false;
    while (w->copied < values + bytes) {
        uint64_t some = ut_work_take(turn, bytes, values + bytes - w->copied);
        if (some == 0)
            return false;
        memset(w->dst + (w->copied - values), 0, some);
        w->copied += some;
    }
    e.next = (uint32_t)(w->copied - values - bytes);
    e.more = w->more;
    while (e.next < e.n) {
        uint32_t some = (uint32_t)(ut_work_take(turn, bytes, (e.n - e.next) * each) / each);
        bool all =
            some && ut_entries_add(&e, (float *)(void *)w->dst, &tensor, 0, some, ut_float8_scale(w->most)) == some;
        w->copied = values + bytes + e.next;
        w->more = e.more;
        if (!all)
            return some != 0; /* what follows a bad index is not there */
    }
    return true;
}
