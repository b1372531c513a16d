/* SPDX-License-Identifier: Apache-2.0
 *
 * What the core asks of a coded job beyond its ops (op_coded.c): its memory, its options, and the table.
 */
#include "core/base/bits.h"
#include "ext/coded/coded.h"

/* One rank a host, with groups or with a linear code that the rounding of float32 bears. Of such a code, and in a tree,
 * there is no estimate. */
static bool valid(const ut_job_options *o, uint32_t hosts, uint32_t world)
{
    if (world != hosts || (o->children && (!ut_tree_fills(hosts, o->children) || o->exact > UT_EXACT_YES)))
        return false;
    uint32_t fan_out = o->children ? o->children : hosts;
    if (o->code == UT_CODE_LINEAR)
        return o->exact <= UT_EXACT_YES && o->stragglers < fan_out && ut_code_bears(fan_out, o->stragglers);
    return fan_out % (o->stragglers + 1u) == 0 && o->code <= UT_CODE_GROUPS && o->exact < UT_EXACT_END;
}

static void *lay_out(ut_carver *carver, const ut_job_config *config)
{
    const uint32_t children = config->options.children, n = children ? children : config->hosts;
    ut_coded none, *c = ut_carve(carver, sizeof *c);
    ut_coded *at = c ? c : &none;
    at->sums.parts = ut_carve(carver, ut_job_slots(config) * sizeof *at->sums.parts);
    if (config->options.code != UT_CODE_LINEAR)
        return c;
    at->code.encoding = ut_carve(carver, (size_t)n * n * sizeof *at->code.encoding);
    at->code.came = ut_carve(carver, UT_CODE_CACHED * sizeof *at->code.came);
    at->code.coefficient = ut_carve(carver, (size_t)UT_CODE_CACHED * n * sizeof *at->code.coefficient);
    bool adds_up = !children || ut_tree_below(config->self, children) < config->hosts;
    /* a shard is the whole bucket when all others are gone */
    at->sums.kept = adds_up ? ut_carve(carver, n * config->bucket_bytes_max) : NULL;
    return c;
}

static void init(ut_job *j)
{
    ut_coded *c = ut_coded_of(j);
    const ut_job_options *o = &j->config.options;
    bool linear = o->code == UT_CODE_LINEAR;
    uint32_t fan = o->children ? o->children : j->config.hosts, replicas = linear ? 1 : o->stragglers + 1u;
    uint32_t groups = fan / replicas;
    c->sums = (ut_coded_sums){.children = o->children,
                              .replicas = replicas,
                              .self = j->config.self,
                              .all = groups == 64 ? UINT64_MAX : ut_bits_below(groups),
                              .need = linear ? fan - o->stragglers : groups,
                              .parts = c->sums.parts,
                              .code = linear ? &c->code : NULL,
                              .kept = c->sums.kept,
                              .stride = j->config.bucket_bytes_max};
    if (linear)
        ut_code_init(&c->code, fan, o->stragglers, c->code.encoding, c->code.came, c->code.coefficient);
    c->exact = o->exact != UT_EXACT_NO;
    j->ledger.lag = UT_STEP_NUMBERS; /* a trainer may begin at any step, and leave out steps */
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        j->op[k].fold.rule_memory = &c->sums;
}

/* What is given and asked for is a step's. */
static int check(const ut_submission *x)
{
    bool give = x->flags & UT_SUBMIT_GIVE;
    uint64_t step = give ? x->wanted : 0;
    if ((x->flags & ~UT_SUBMIT_GIVE) || x->collective != UT_ALLREDUCE || x->mode != UT_BOUNDED ||
        x->wanted > UINT32_MAX || x->oldest_step != step || x->newest_step != step)
        return UT_ERR_ARGUMENT;
    if (x->dtype != UT_FLOAT32 && x->dtype != UT_FLOAT64)
        return UT_ERR_DTYPE;
    return x->redop != UT_SUM ? UT_ERR_REDOP : UT_OK;
}

static uint64_t next(ut_job *j, bool elsewhere, ut_ns now)
{
    ut_coded_answer_behind(j, now);
    return elsewhere ? j->next_open : ut_coded_first_op(j);
}

static void begin(ut_job *j, ut_op *op)
{
    ut_coded_of(j)->result[op->seq % UT_OPS_MAX].there = false; /* its memory is the new op's */
    op->what.step = (uint32_t)ut_step_of_op(op->seq);
    op->what.by_world = 0; /* results are sums, whatever the peer says that told of the op */
    op->what.agree = 1;    /* a shard that did not come has nothing in its place */
}

const ut_intake ut_intake_coded = {.gathering = &ut_gathering_coded,
                                   .valid = valid,
                                   .lay_out = lay_out,
                                   .init = init,
                                   .check = check,
                                   .arrive = ut_coded_arrive,
                                   .owed = ut_coded_owed,
                                   .look = ut_coded_look,
                                   .joins = ut_coded_joins,
                                   .next = next,
                                   .waits_until = ut_coded_waits_until,
                                   .begin = begin,
                                   .is_for = ut_coded_is_for,
                                   .answers = ut_coded_answers};
