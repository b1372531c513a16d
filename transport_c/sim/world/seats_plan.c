/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds with one job whose hosts come and go: a drawn world (plan.c) in which hosts leave in good order, vanish, come
 * late and come back to a seat that they or others had, at any op and beside all other faults of that world. The first
 * host of the job stays: somebody has to know where the job stands.
 */
#include "sim/world/plan_later.h"
#include "sim/world/seats.h"

enum { OPS_LEAST = 12, OPS_SPREAD = 13, MOVES_LEAST = 3, MOVES_SPREAD = 8 };

/* What elastic jobs have: average or sum, in a mode that does without a host. */
static void make_fit(const sim_job_plan *j, sim_op *op)
{
    if (op->collective != UT_ALLREDUCE) {
        op->collective = UT_ALLREDUCE;
        op->dtype = UT_FLOAT32;
        op->count = UT_MIN2(op->count, j->bucket_max / 4);
    }
    op->mode = op->mode == UT_RELIABLE ? UT_BOUNDED : op->mode;
    op->redop = op->redop > UT_AVG ? UT_SUM : op->redop;
    op->agree = false;
    op->odd_rank = UINT32_MAX;
    op->deadline = UT_MIN2(op->deadline, 5 * UT_SECOND);
}

static void make_ops(sim_job_plan *j, sim_rng *rng)
{
    sim_op drawn[SIM_OPS];
    uint32_t had = j->ops;
    memcpy(drawn, j->op, sizeof drawn);
    j->ops = OPS_LEAST + (uint32_t)sim_below(rng, OPS_SPREAD);
    j->calm = 0;
    for (uint32_t k = 0; k < j->ops + SIM_CALM_OPS; k++) {
        bool calm = k >= j->ops;
        j->op[k] = calm ? drawn[had + k - j->ops] : drawn[k % had];
        make_fit(j, &j->op[k]);
        if (calm)
            j->op[k].deadline = 60 * UT_SECOND;
    }
    j->compute_min = sim_octaves(rng, 200 * UT_US, 3 * UT_MS);
    j->compute_max = 2 * j->compute_min;
}

static void draw_moves(sim_plan *p, sim_rng *rng)
{
    const sim_job_plan *j = &p->job[0];
    ut_ns span = j->ops * (j->compute_max + 3 * UT_MS);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->items; i++)
        if (p->item[i].kind <= SIM_PARTITION)
            p->item[kept++] = p->item[i];
    p->items = kept;
    uint32_t moves = MOVES_LEAST + (uint32_t)sim_below(rng, MOVES_SPREAD);
    for (uint32_t n = 0; n < moves && p->items < SIM_ITEMS; n++) {
        sim_item item = {.host = j->host[1 + sim_below(rng, j->hosts - 1)], .told = sim_chance(rng, 700000)};
        item.kind = sim_chance(rng, 500000) ? SIM_LEAVE : SIM_DAEMON_DEATH;
        bool comes_late = sim_chance(rng, 100000);
        item.kind = comes_late ? SIM_DAEMON_DEATH : item.kind;
        item.at = comes_late ? 0 : sim_below(rng, span);
        item.told_after = sim_octaves(rng, 50 * UT_US, 20 * UT_MS);
        item.grace = sim_octaves(rng, 500 * UT_US, 60 * UT_MS);
        item.for_good = sim_chance(rng, 100000);
        item.told = item.told || item.for_good;
        item.lasts = item.for_good ? UT_NEVER : item.told_after + sim_octaves(rng, 2 * UT_MS, 60 * UT_MS);
        p->item[p->items++] = item;
    }
}

void sim_plan_draw_seats(sim_plan *p, uint64_t seed, uint32_t hosts)
{
    sim_rng rng = sim_rng_for(seed, 47);
    uint32_t drawn = 3 + (uint32_t)sim_below(&rng, 4);
    sim_plan_draw(p, seed, hosts ? UT_MIN2(UT_MAX2(hosts, 2u), (uint32_t)SIM_SEATS) : drawn);
    if (p->evil) {
        p->evil = false;
        p->inject = p->inject_every = 0;
    }
    p->faultless = p->quiet = false;
    p->jobs = 1;
    sim_job_plan *j = &p->job[0];
    j->seats = true;
    for (uint32_t h = 0; h < j->hosts; h++)
        j->local[h] = 1;
    j->options.algorithm = UT_TAR;
    j->options.hadamard = UT_HADAMARD_OFF;
    j->hadamard_then = 0;
    make_ops(j, &rng);
    draw_moves(p, &rng);
}
