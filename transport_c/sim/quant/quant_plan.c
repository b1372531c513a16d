/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds with quantised allreduces: a drawn world (plan.c), many of whose allreduces become quantised ones. Drawn
 * apart, so that the same seed without it is the same world as ever.
 */
#include "sim/quant/quant.h"
#include "sim/world/plan_later.h"

#include "kernels/quant.h"

static uint8_t draw_wire(sim_rng *rng)
{
    const unsigned form = (unsigned)sim_between(rng, UT_QUANT_INT16, UT_QUANT_INT4);
    const unsigned answer = sim_chance(rng, 600000) ? form : (unsigned)sim_between(rng, UT_QUANT_INT16, form);
    return (uint8_t)(form | answer << 4);
}

static void make_quant(sim_op *op, sim_rng *rng)
{
    op->count = op->count * ut_dtype_bytes(op->dtype) / sizeof(float);
    op->dtype = UT_FLOAT32;
    op->redop = sim_chance(rng, 400000) ? UT_SUM : UT_AVG;
    op->wire = draw_wire(rng);
    op->nearest = sim_chance(rng, 400000);
    op->feeds = sim_chance(rng, 400000);
    op->agree = sim_chance(rng, 250000);
}

/* Averages become weighted ones, where few ranks can be told apart by what weights add up to, and all mean the same.
 * Drawn apart: all else is as without. */
static void weigh(sim_job_plan *j, sim_rng *rng)
{
    for (uint32_t k = 0; k < j->ops + sim_calm_ops(j) && sim_ranks_of(j) <= 10 && j->ops <= 20; k++) {
        sim_op *op = &j->op[k];
        const bool dense = op->wire == 0;
        if (!sim_chance(rng, 350000) || op->collective != UT_ALLREDUCE || op->odd_rank != UINT32_MAX ||
            !(dense || (op->wire && op->redop == UT_AVG)))
            continue;
        op->weighed = true;
        op->nonfinite = false;
        if (!dense)
            continue;
        op->count = op->count * ut_dtype_bytes(op->dtype) / sizeof(float);
        op->dtype = UT_FLOAT32;
        op->redop = UT_AVG;
    }
}

/* One rank calls it otherwise, which must not be refused before anybody hears of it. */
static void draw_desync(const sim_job_plan *j, sim_op *op, sim_rng *rng)
{
    static const uint8_t fields[] = {UT_FIELD_REDOP, UT_FIELD_COUNT, UT_FIELD_MODE,
                                     UT_FIELD_AGREE, UT_FIELD_WIRE,  UT_FIELD_WIRE};
    const uint32_t ranks = sim_ranks_of(j);
    if (op->odd_rank == UINT32_MAX && (ranks < 2 || op->deadline < UT_MS))
        return;
    if (op->odd_rank == UINT32_MAX)
        op->odd_rank = (uint32_t)sim_below(rng, ranks);
    op->odd_field = fields[sim_below(rng, sizeof fields)];
    if (op->deadline == UT_NEVER)
        op->deadline = 5 * UT_SECOND;
}

static void make_job(sim_job_plan *j, bool faulty, sim_rng *rng)
{
    bool steady = j->ops > 20; /* of one kind, to be measured */
    j->options.algorithm = UT_TAR;
    j->options.deterministic = 0;
    for (uint32_t k = 0; k < j->ops + sim_calm_ops(j); k++) {
        sim_op *op = &j->op[k];
        if (steady && k > 0 && k < j->ops) {
            ut_ns deadline = op->deadline;
            *op = j->op[0];
            op->deadline = deadline;
            continue;
        }
        if (op->collective != UT_ALLREDUCE || sim_chance(rng, 150000))
            continue;
        make_quant(op, rng);
        bool differs = faulty && !steady && k < j->ops && sim_chance(rng, 100000);
        if (op->odd_rank != UINT32_MAX || differs)
            draw_desync(j, op, rng);
    }
    j->bucket_max = UT_MAX2(j->bucket_max, 64);
    for (uint32_t k = 0; k < j->ops + sim_calm_ops(j); k++)
        j->bucket_max = UT_MAX2(j->bucket_max, j->op[k].count * ut_dtype_bytes(j->op[k].dtype));
    j->sparse_room = sim_quant_room(j->bucket_max);
}

void sim_plan_draw_quant(sim_plan *p, uint64_t seed, uint32_t hosts)
{
    sim_plan_draw(p, seed, hosts);
    sim_rng rng = sim_rng_for(seed, 22);
    p->quiet = false;
    p->quant = true;
    for (uint32_t n = 0; n < p->jobs; n++)
        if (n == 0 || sim_chance(&rng, 600000))
            make_job(&p->job[n], !p->faultless, &rng);
    sim_rng weights = sim_rng_for(seed, 24);
    for (uint32_t n = 0; n < p->jobs; n++)
        if (p->job[n].sparse_room)
            weigh(&p->job[n], &weights);
}
