/* SPDX-License-Identifier: Apache-2.0
 *
 * What the core asks of a sparse allreduce, but for the passes over what ranks bring (op_sparse.c).
 */
#include "ext/sparse/variant.h"

/* Jobs that have such ops: TAR cuts a tensor among owners, who add up blocks in whichever order these come. */
static bool runs(const ut_job_config *config)
{
    return config->options.policy <= UT_POLICY_NONE && ut_options_algorithm(&config->options) == UT_TAR &&
           !ut_options_deterministic(&config->options);
}

static void *lay_out(ut_carver *c, const ut_job_config *config)
{
    if (!runs(config))
        return NULL;
    ut_sparse *p = ut_carve(c, sizeof *p);
    size_t words = config->hosts > 1 ? ut_sparse_words(config->bucket_bytes_max, config->hosts) : 0;
    uint64_t *granules = ut_carve(c, words * sizeof *granules);
    if (p)
        p->granules = granules;
    return p;
}

static uint64_t encoded(const ut_job_config *config, uint32_t payload)
{
    return runs(config) ? ut_sparse_bound(config->bucket_bytes_max, payload, config->hosts) : 0;
}

/* Numbers that are out of their ranges, whatever the others are. */
static int check_words(const ut_submission *s)
{
    uint32_t group = s->alike.sparse.group;
    if (group == 0 || group > UT_BLOCK_GROUP_MAX || s->alike.sparse.form >= UT_VALUE_FORMS_END ||
        (s->alike.sparse.down && s->alike.sparse.down != UT_VALUE_INT8) ||
        (s->flags & ~(UT_SUBMIT_AGREE | UT_SUBMIT_ADAPTIVE | UT_SUBMIT_RETURN)))
        return UT_ERR_ARGUMENT;
    if (s->dtype != UT_FLOAT32)
        return UT_ERR_DTYPE;
    return s->redop > UT_AVG ? UT_ERR_REDOP : UT_OK;
}

/* What lies where. */
static int check_memory(uint64_t arena, const ut_submission *s)
{
    uint64_t src = s->entries * 4 * (1 + s->alike.sparse.group), bytes = s->count * sizeof(float);
    if (!ut_lies_inside(s->src, src, arena) || !ut_lies_inside(s->dst, bytes, arena) || s->src % 4 || s->dst % 4)
        return UT_ERR_RANGE;
    return src == 0 || bytes == 0 || s->src >= s->dst + bytes || s->dst >= s->src + src ? UT_OK : UT_ERR_RANGE;
}

/* Indices and values are read when the op opens, and only then seen to be good or bad. */
static int check(const ut_job *j, uint64_t arena, const ut_submission *s)
{
    const uint64_t most = j->config.bucket_bytes_max;
    const uint32_t hosts = j->config.hosts;
    if (!runs(&j->config))
        return UT_ERR_ARGUMENT;
    int error = check_words(s);
    if (error)
        return error;
    if (s->count > most / sizeof(float))
        return UT_ERR_TOO_LARGE;
    uint32_t group = s->alike.sparse.group;
    uint64_t units = s->count / group;
    if (s->count % group || s->entries > units)
        return UT_ERR_ARGUMENT;
    if (units && hosts > 1 &&
        !ut_sparse_granules((uint32_t)units, group, s->alike.sparse.form, s->alike.sparse.down, j->payload, hosts,
                            encoded(&j->config, j->payload)))
        return UT_ERR_TOO_LARGE;
    return check_memory(arena, s);
}

static void gather(ut_op *op, const ut_submission *s)
{
    ut_sparse *p = ut_op_sparse(op);
    assert(p);
    p->group = s->alike.sparse.group;
    p->form = s->alike.sparse.form;
    p->down = s->alike.sparse.down;
    p->answered = 0;
    op->what.timed = UT_TIMED_APART | (8ULL * s->alike.sparse.hint);
    p->units = (uint32_t)(s->count / p->group);
}

static bool plan(ut_job *j, ut_op *op)
{
    uint32_t granules = ut_op_sparse_granules(j, op);
    if (granules == 0)
        return false;
    ut_schedule_build(&op->plan.schedule, &(ut_layout){j->config.hosts, j->config.self, granules, 1}, UT_TAR,
                      op->plan.incast, op->seq, op->plan.owners);
    ut_sparse_cut(ut_op_sparse(op), &op->plan.schedule, j->payload);
    ut_op_sparse(op)->seq = op->seq;
    ut_op_sparse(op)->self = (uint8_t)j->config.self;
    return true;
}

static uint8_t *bucket(const ut_op *op)
{
    return ut_op_sparse(op)->dense;
}

static void gone(ut_op *op)
{
    ut_sparse *p = ut_op_sparse(op);
    if (p->listed && op->local.calls == 0) {
        p->dense = NULL;
        p->given.n = 0;
    }
}

static void account(const ut_op *op, ut_receipt *r)
{
    r->values = ut_op_sparse(op)->values;
    r->lacks = ut_op_sparse(op)->lacks;
    r->error_answer_squared = ut_op_sparse(op)->answered / 6 / (double)UT_MAX2(op->what.count, 1);
}

const ut_variant ut_variant_sparse = {.codec = &ut_codec_sparse,
                                      .lay_out = lay_out,
                                      .encoded = encoded,
                                      .check = check,
                                      .own = ut_sparse_own,
                                      .gather = gather,
                                      .combine = ut_op_sparse_combine,
                                      .plan = plan,
                                      .bucket = bucket,
                                      .gone = gone,
                                      .give_back = ut_op_sparse_return,
                                      .account = account};
