/* SPDX-License-Identifier: Apache-2.0
 *
 * Sparse allreduces: what the ranks of this host bring, added up in a dense tensor. A host that is alone is done with
 * that; else the tensor lies in the job's memory, and is encoded from there (core/codec/sparse_codec.c).
 */
#include "core/op/op.h"

#include "kernels/block.h"

static ut_block_shape tensor_of(const ut_op *op)
{
    return (ut_block_shape){.units = op->plan.sparse.units, .group = op->what.group, .form = op->what.form};
}

void ut_op_sparse_gather(ut_op *op, const ut_submission *s)
{
    ut_sparse *p = &op->plan.sparse;
    p->group = op->what.group;
    p->form = op->what.form;
    p->units = (uint32_t)(s->count / op->what.group);
}

uint32_t ut_op_sparse_granules(const ut_job *j, const ut_op *op)
{
    ut_block_shape tensor = tensor_of(op);
    return op->what.group && j->config.hosts > 1 ? ut_block_granules(&tensor) : 0;
}

/* The largest magnitude that the ranks may have together, for the scale of float8. */
static float magnitude_of(const ut_op *op, unsigned i)
{
    uint64_t entries = ut_submission_entries(&op->local.call[i].submission);
    const void *values = op->local.call[i].src + 4 * entries;
    return op->what.form == UT_VALUE_FLOAT8 ? ut_largest_finite(values, entries * op->what.group) : 0;
}

/* Adds up to |most| entries of a rank, from work.at on. False at the first that is bad. */
static bool scatter(ut_op *op, const ut_call *call, uint64_t most)
{
    ut_sparse *p = &op->plan.sparse;
    uint64_t entries = ut_submission_entries(&call->submission), some = UT_MIN2(entries - op->work.at, most);
    ut_block_shape tensor = tensor_of(op);
    size_t taken =
        ut_sparse_scatter((float *)(void *)p->dense, &tensor, call->src + 4 * op->work.at,
                          call->src + 4 * (entries + op->work.at * op->what.group), some, p->scale, p->index);
    uint32_t last;
    if (taken)
        memcpy(&last, call->src + 4 * (op->work.at + taken - 1), 4);
    p->index = taken ? last + 1 : p->index;
    op->work.at += taken;
    return taken == some;
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

/* Step 0 of `work.index` clears the tensor, step i + 1 adds the entries of rank i. */
bool ut_op_sparse_combine(ut_job *j, ut_op *op)
{
    ut_sparse *p = &op->plan.sparse;
    uint64_t each = 8 + 4 * (uint64_t)op->what.group;
    bool alone = j->config.hosts == 1;
    p->dense = !alone ? op->memory.held : op->local.calls == 1 ? op->local.call[0].dst : op->memory.bucket;
    for (; op->work.index == 0 && op->work.at < op->what.bytes;) {
        uint64_t some = ut_work_take(j->host->turn, op->what.bytes, op->what.bytes - op->work.at);
        if (some == 0)
            return false;
        memset(p->dense + op->work.at, 0, some);
        op->work.at += some;
    }
    if (op->work.index == 0) {
        op->work.index = 1;
        op->work.at = p->index = 0;
    }
    for (; op->work.index <= op->local.calls; op->work.index++, op->work.at = p->index = 0) {
        const ut_call *call = &op->local.call[op->work.index - 1];
        if (op->work.at == 0)
            p->scale = ut_float8_scale(magnitude_of(op, op->work.index - 1));
        for (uint64_t entries = ut_submission_entries(&call->submission); op->work.at < entries;) {
            uint64_t some = ut_work_take(j->host->turn, op->what.bytes, (entries - op->work.at) * each) / each;
            if (some == 0)
                return false;
            if (!scatter(op, call, some)) {
                report(j, op, call);
                break;
            }
        }
    }
    float most = 0;
    for (unsigned i = 0; i < op->local.calls && op->local.calls > 1; i++)
        most += magnitude_of(op, i);
    if (op->local.calls > 1)
        p->scale = ut_float8_scale(UT_MIN2(most, 0x1.fffffep127f));
    return true;
}

void ut_sparse_own(const ut_submission *s, const uint8_t *src, uint8_t *dst)
{
    uint64_t entries = ut_submission_entries(s);
    ut_block_shape tensor = {.units = (uint32_t)(s->count / ut_submission_group(s)),
                             .group = ut_submission_group(s),
                             .form = ut_submission_form(s)};
    const void *values = src + 4 * entries;
    float scale =
        tensor.form == UT_VALUE_FLOAT8 ? ut_float8_scale(ut_largest_finite(values, entries * tensor.group)) : 1;
    memset(dst, 0, s->count * sizeof(float));
    (void)ut_sparse_scatter((float *)(void *)dst, &tensor, src, values, entries, scale, 0);
}
