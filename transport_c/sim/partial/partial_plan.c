/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds with partial jobs: a drawn world (plan.c), some or all of whose jobs get a policy, trainers of different
 * styles, and a control plane that fails. Drawn apart, so that the same seed without it is the same world as ever.
 */
#include "sim/partial/partial.h"

#include "kernels/quant.h"

/* What each rank does, and how slow it is. */
static void draw_trainers(const sim_plan *p, sim_job_plan *j, uint32_t ranks, sim_rng *rng)
{
    uint64_t mood = sim_below(rng, 100);
    bool slow = sim_chance(rng, 500000);
    for (uint32_t k = 0; k < ranks; k++) {
        uint64_t pick = sim_below(rng, 100);
        uint8_t mixed = pick < 45 ? SIM_EAGER : pick < 75 ? SIM_RNA : pick < 85 ? SIM_STICKY : SIM_READER;
        j->part.style[k] = (uint8_t)(mood < 40 ? SIM_EAGER : mood < 65 ? SIM_RNA : mixed);
        if (k > 0 && sim_chance(rng, 60000))
            j->part.style[k] = SIM_SLEEPER;
        if (slow && sim_chance(rng, 400000))
            j->part.late[k] = sim_octaves(rng, 100 * UT_US, 20 * UT_MS);
    }
    if (!p->faultless && sim_chance(rng, 100000)) /* skewed as in the benchmark */
        for (uint32_t k = 0; k < ranks; k++)
            j->part.late[k] = k * UT_MS;
}

void sim_plan_draw_policy(ut_job_options *o, uint32_t ranks, sim_rng *rng)
{
    o->policy = (uint8_t)sim_between(rng, UT_POLICY_FULL, UT_POLICY_SEEDED);
    o->tau = (uint8_t)(sim_chance(rng, 500000) ? 0 : 1 + sim_below(rng, 4));
    o->quorum = (uint32_t)(sim_chance(rng, 300000) ? 0 : 1 + sim_below(rng, ranks));
    o->probes = (uint32_t)(sim_chance(rng, 300000) ? 0 : 1 + sim_below(rng, ranks));
}

enum { GROUPS_MOST = 10 /* of ranks, for which elements take turns: then most slots tell of all */ };

static bool draw_kind(sim_part_plan *part, uint32_t ranks, sim_rng *rng)
{
    uint64_t pick = sim_below(rng, 100);
    part->mode = pick < 60 ? UT_BOUNDED : pick < 80 ? UT_BEST_EFFORT : UT_RELIABLE;
    for (unsigned tries = 0; tries < 40; tries++) {
        part->dtype = (uint8_t)(1 + sim_below(rng, part->mode == UT_BEST_EFFORT ? UT_BFLOAT16 : UT_INT64));
        part->redop = (uint8_t)(sim_chance(rng, 600000) ? UT_AVG : UT_SUM);
        part->world = part->redop == UT_AVG && sim_chance(rng, 500000);
        uint32_t groups = sim_gift_groups(part->dtype, 0, part->redop, ranks);
        if (groups >= 1 && groups <= GROUPS_MOST)
            return true;
    }
    return false;
}

static void make_partial(sim_plan *p, sim_job_plan *j, sim_rng *rng)
{
    uint32_t ranks = 0;
    sim_part_plan *part = &j->part;
    for (uint32_t i = 0; i < j->hosts; i++)
        ranks += j->local[i];
    if (!draw_kind(part, ranks, rng)) {
        part->dtype = UT_FLOAT64;
        part->redop = UT_AVG;
    }
    const sim_op *op = &j->op[0];
    uint64_t element = ut_dtype_bytes(part->dtype), most = j->hosts > SIM_MANY ? 16 << 10 : 64 << 10;
    part->count = sim_chance(rng, 30000)    ? 0
                  : sim_chance(rng, 150000) ? 1 + sim_below(rng, 2 * j->hosts)
                                            : 1 + sim_octaves(rng, 64, most) / element;
    j->bucket_max = part->count * element + 64;
    part->steps = (uint32_t)sim_between(rng, 4, ranks > SIM_MANY ? 5 : ranks > 8 ? 8 : 20);
    uint64_t wire = 4 * j->bucket_max * UT_SECOND / UT_MIN2(p->rate_up, p->rate_down);
    part->deadline = 20 * wire + 20 * p->delay_max + sim_between(rng, 300, 1500) * UT_MS;
    if (!p->faultless && op->mode != UT_RELIABLE && sim_chance(rng, 200000))
        part->deadline = 4 * p->delay_max + wire * sim_between(rng, 2, 8) + sim_octaves(rng, UT_MS, 32 * UT_MS);
    if (p->faultless && part->deadline < 2 * UT_SECOND)
        part->deadline = 2 * UT_SECOND;
    j->options.algorithm = 0;
    j->options.hadamard = j->hadamard_then = 0;
    j->hadamard_at = 0;
    sim_plan_draw_policy(&j->options, ranks, rng);
    j->options.policy_seed = sim_next(rng);
    draw_trainers(p, j, ranks, rng);
    if (sim_chance(rng, 200000)) {
        part->change = (sim_part_change){.at = sim_octaves(rng, UT_MS, 50 * UT_MS), .options = j->options};
        sim_plan_draw_policy(&part->change.options, ranks, rng);
    }
    if (!p->faultless) {
        part->probe_lost = sim_chance(rng, 400000) ? (uint32_t)sim_octaves(rng, 1000, 300000) : 0;
        part->probe_twice = sim_chance(rng, 400000) ? (uint32_t)sim_octaves(rng, 1000, 300000) : 0;
        part->probe_lie = sim_chance(rng, 250000) ? (uint32_t)sim_octaves(rng, 1000, 300000) : 0;
        part->probe_late = sim_chance(rng, 400000) ? sim_octaves(rng, 100 * UT_US, 30 * UT_MS) : 0;
        part->two_controllers = sim_chance(rng, 250000);
    }
}

/* In forms whose error leaves a sum readable (partial_code.c). */
static void make_quant(sim_job_plan *j, sim_rng *rng)
{
    static const uint8_t forms[] = {UT_QUANT_INT16 | UT_QUANT_INT16 << 4, UT_QUANT_INT8 | UT_QUANT_INT8 << 4,
                                    UT_QUANT_INT8 | UT_QUANT_INT16 << 4};
    sim_part_plan *part = &j->part;
    const uint8_t wire = forms[sim_below(rng, sizeof forms)];
    if (sim_gift_groups(UT_FLOAT32, wire, part->redop, sim_ranks_of(j)) > GROUPS_MOST)
        return;
    part->wire = wire;
    part->feeds = sim_chance(rng, 500000);
    part->count = UT_MIN2(part->count, (j->bucket_max - 64) / sizeof(float));
    part->dtype = UT_FLOAT32;
}

void sim_plan_draw_partial_quant(sim_plan *p, uint64_t seed, uint32_t hosts)
{
    sim_plan_draw_partial(p, seed, hosts);
    sim_rng rng = sim_rng_for(seed, 23);
    for (uint32_t n = 0; n < p->jobs; n++)
        if (sim_is_partial(&p->job[n]))
            make_quant(&p->job[n], &rng);
}

void sim_plan_draw_partial(sim_plan *p, uint64_t seed, uint32_t hosts)
{
    sim_plan_draw(p, seed, hosts);
    sim_rng rng = sim_rng_for(seed, 13);
    p->quiet = false;
    p->partial = true;
    p->bad_submission = 0;
    for (uint32_t n = 0; n < p->jobs; n++)
        if (n == 0 || sim_chance(&rng, 600000))
            make_partial(p, &p->job[n], &rng);
}
