/* SPDX-License-Identifier: Apache-2.0
 *
 * What the core asks of a quantised allreduce.
 */
#include "ext/quant/variant.h"

static ut_quant *quant_of(const ut_op *op)
{
    return op->variant_memory;
}

/* Jobs that have such ops. Elsewhere sums would be rounded at every hop, or must be exact, as coded ones, or come
 * together in an order that is fixed. */
static bool runs(const ut_job_config *config)
{
    return config->options.policy != UT_POLICY_CODED && ut_options_algorithm(&config->options) == UT_TAR &&
           !ut_options_deterministic(&config->options);
}

static void *lay_out(ut_carver *c, const ut_job_config *config)
{
    return runs(config) ? ut_carve(c, sizeof(ut_quant)) : NULL;
}

static uint64_t encoded(const ut_job_config *config, uint32_t payload)
{
    return runs(config) ? ut_quant_bound(config->bucket_bytes_max, payload, config->hosts) : 0;
}

static bool apart(uint64_t a, uint64_t b, uint64_t bytes)
{
    return a >= b + bytes || b >= a + bytes || bytes == 0;
}

/* Where |bytes| of contribution, result and residual lie. */
static int check_memory(uint64_t arena, const ut_submission *s, uint64_t bytes)
{
    const uint64_t residual = ut_submission_residual(s) - 1;
    if (!ut_lies_inside(s->src, bytes, arena) || !ut_lies_inside(s->dst, bytes, arena) || s->src % 4 || s->dst % 4)
        return UT_ERR_RANGE;
    if (s->src != s->dst && !apart(s->src, s->dst, bytes))
        return UT_ERR_RANGE;
    if (!ut_submission_residual(s))
        return UT_OK;
    if (!ut_lies_inside(residual, bytes, arena) || residual % 4)
        return UT_ERR_RANGE;
    return apart(residual, s->src, bytes) && apart(residual, s->dst, bytes) ? UT_OK : UT_ERR_RANGE;
}

static int check(const ut_job *j, uint64_t arena, const ut_submission *s)
{
    const uint8_t forms = s->alike.quant.forms;
    const bool weighted = s->flags & UT_SUBMIT_WEIGHTED;
    if (!runs(&j->config) || (s->flags & ~(UT_SUBMIT_AGREE | UT_SUBMIT_ADAPTIVE | UT_SUBMIT_WEIGHTED)) ||
        !ut_quant_forms_valid(forms) || (!weighted && ut_submission_weight(s)) ||
        s->alike.all != (ut_alike){.quant = {.forms = forms}}.all)
        return UT_ERR_ARGUMENT;
    if (s->dtype != UT_FLOAT32)
        return UT_ERR_DTYPE;
    if (s->redop > UT_AVG || (weighted && s->redop != UT_AVG))
        return UT_ERR_REDOP;
    if (s->count > j->config.bucket_bytes_max / sizeof(float))
        return UT_ERR_TOO_LARGE;
    return check_memory(arena, s, s->count * sizeof(float));
}

/* Ops of the same bytes on the wire take as long. */
static void gather(ut_op *op, const ut_submission *s)
{
    ut_quant *q = quant_of(op);
    assert(q);
    q->form = ut_quant_form_of(s->alike.quant.forms);
    q->answer = ut_quant_answer_of(s->alike.quant.forms);
    q->nearest = s->rounding;
    /* A form has half the bytes of the one before it, and int16 half of float32's. */
    op->what.timed = UT_TIMED_APART | ((op->what.bytes >> (q->form - 3)) + (op->what.bytes >> (q->answer - 3)));
}

/* What the ranks of this host bring, and where they want the result. */
static void find_buffers(ut_job *j, ut_op *op)
{
    ut_quant *q = quant_of(op);
    j->gathering->place(j, op);
    q->own = op->memory.src;
    q->bucket = op->memory.dst;
    q->residuals = j->gathering->residuals(j, op, q->residual);
}

static bool plan(ut_job *j, ut_op *op)
{
    ut_quant *q = quant_of(op);
    find_buffers(j, op);
    q->weighted = op->what.weighted;
    q->share = op->local.share;
    ut_quant_divide(q, j->payload);
    q->from[0] = 0;
    q->from[1] = op->what.count;
    if (j->config.hosts == 1 || op->what.count == 0)
        return false;
    ut_schedule_build(&op->plan.schedule, &(ut_layout){j->config.hosts, j->config.self, op->what.count, 1}, UT_TAR,
                      op->plan.incast, op->seq, op->plan.owners);
    ut_quant_cut(q, &op->plan.schedule, j->payload);
    return true;
}

static uint8_t *bucket(const ut_op *op)
{
    return quant_of(op)->bucket;
}

static void gone(ut_op *op)
{
    if (op->local.calls == 0)
        quant_of(op)->bucket = NULL;
}

static void account(const ut_op *op, ut_receipt *r)
{
    const ut_quant *q = quant_of(op);
    const uint64_t n = UT_MAX2(op->what.count, 1);
    r->wire = op->what.alike.quant.forms;
    if (op->codec->id != UT_CODEC_QUANT)
        return;
    r->nonfinite_given = q->nonfinite_given;
    const double times = q->weighted ? UT_MAX2(q->share, 1) : 1; /* what travelled is so many times what was given */
    r->error_given_squared = q->given / (q->nearest ? 12 : 6) / (double)n / (times * times);
    r->error_answer_squared = q->answered / 6 / (double)UT_MAX2(q->answers, 1);
}

const ut_variant ut_variant_quant = {.codec = &ut_codec_quant,
                                     .lay_out = lay_out,
                                     .encoded = encoded,
                                     .check = check,
                                     .gather = gather,
                                     .plan = plan,
                                     .result_alone = true,
                                     .bucket = bucket,
                                     .gone = gone,
                                     .account = account};
