/* SPDX-License-Identifier: Apache-2.0
 *
 * What came into the menu later. It draws from generators of its own, so that old seeds keep their old worlds.
 */
#include "sim/world/plan_later.h"

#include "sim/world/seal.h"

/* Jobs that travel transformed, all the time, from some op on, or when they lose enough. Drawn apart: the same seed
 * gives the same world otherwise. */
void sim_plan_draw_hadamard(sim_plan *p, uint64_t seed)
{
    sim_rng own = sim_rng_for(seed, 5), *rng = &own;
    enum { ALWAYS = 7 }; /* the others: draw_widely */
    for (uint32_t n = 0; n < p->jobs; n++) {
        sim_job_plan *j = &p->job[n];
        uint32_t ranks = sim_ranks_of(j);
        if ((ranks > ALWAYS && ranks <= SIM_MANY) || !sim_chance(rng, 600000))
            continue;
        j->options.hadamard = (uint8_t)sim_between(rng, UT_HADAMARD_OFF, UT_HADAMARD_AUTO);
        if (sim_chance(rng, 500000)) {
            j->hadamard_then = (uint8_t)sim_between(rng, UT_HADAMARD_OFF, UT_HADAMARD_AUTO);
            j->hadamard_at = (uint32_t)sim_below(rng, j->ops);
        }
        for (uint32_t k = 0; k < j->ops + SIM_CALM_OPS; k++) {
            sim_op *op = &j->op[k];
            if (op->mode != UT_BOUNDED || ut_dtype_bytes(op->dtype) < 4 || !sim_chance(rng, 700000))
                continue;
            op->dtype = UT_FLOAT32;
            op->nonfinite = op->nonfinite && sim_chance(rng, 200000);
        }
    }
}

/* By a generator of their own, so that what came later into the menu leaves the rest of a world as it was. */
static void draw_agree(sim_plan *p, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 9);
    for (uint32_t i = 0; i < p->jobs; i++)
        for (uint32_t k = 0; k < p->job[i].ops + SIM_CALM_OPS; k++) {
            sim_op *op = &p->job[i].op[k];
            op->agree =
                sim_chance(&rng, 250000) && (sim_algorithm(&p->job[i]) == UT_TAR || sim_algorithm(&p->job[i]) == UT_PS);
            if (op->odd_rank != UINT32_MAX && op->odd_field == UT_FIELD_MODE && sim_chance(&rng, 500000) &&
                sim_algorithm(&p->job[i]) != UT_RING && sim_algorithm(&p->job[i]) != UT_BCUBE)
                op->odd_field = UT_FIELD_AGREE;
        }
}

/* Some reliable ops are another collective than allreduce; of ranks that share hosts only the barrier can be. */
static void draw_collectives(sim_plan *p, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 11);
    for (uint32_t i = 0; i < p->jobs && sim_chance(&rng, 500000); i++) {
        sim_job_plan *j = &p->job[i];
        bool alone = true;
        for (uint32_t h = 0; h < j->hosts; h++)
            alone = alone && j->local[h] == 1;
        for (uint32_t k = 0; k < j->ops + SIM_CALM_OPS; k++) {
            sim_op *op = &j->op[k];
            if (op->mode != UT_RELIABLE || op->odd_rank != UINT32_MAX || !sim_chance(&rng, 600000))
                continue;
            op->agree = false;
            op->collective = alone ? (uint8_t)sim_between(&rng, UT_REDUCE_SCATTER, UT_BARRIER) : UT_BARRIER;
            if (op->collective == UT_BROADCAST)
                op->root = (uint8_t)sim_below(&rng, j->hosts);
            else
                op->count -= op->count % j->hosts;
            if (op->collective == UT_BARRIER) {
                op->dtype = UT_BYTES;
                op->count = j->hosts;
                op->nonfinite = false;
            }
        }
    }
}

static void draw_timer_start(sim_plan *p, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 14);
    for (uint32_t i = 0; i < p->jobs; i++)
        p->job[i].options.timer_start = (uint8_t)sim_below(&rng, UT_TIMER_END);
}

static void draw_congestion(sim_plan *p, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 10);
    for (uint32_t i = 0; i < p->jobs; i++) {
        p->job[i].options.congestion = (uint8_t)sim_below(&rng, UT_CC_END);
        p->job[i].options.delay_target_ns = sim_chance(&rng, 500000) ? sim_octaves(&rng, UT_US, 20 * UT_MS) : 0;
    }
}

/* A faultless world in which it can be told who sends to whom at one time. */
static void make_quiet(sim_plan *p, sim_rng *rng)
{
    sim_job_plan *j = &p->job[0];
    p->quiet = true;
    p->jobs = 1;
    p->wake_max = p->packet_cost = 0;
    p->rate_up = p->rate_down = 125000000;
    p->delay_min = p->delay_max = 25 * UT_US;
    p->mark_above = UINT64_MAX;
    p->receive_budget = 1000000;
    p->receive_buffer = 8 << 20;
    p->packet_bytes = 1472;
    p->segments_max = 8;
    j->ops = 3;
    j->ahead = 1;
    j->rate = 0;
    j->hadamard_then = 0;
    j->skew = 0;
    j->compute_min = j->compute_max = 100 * UT_US;
    j->options = (ut_job_options){.incast = (uint8_t)(1 + sim_below(rng, 2))};
    for (uint32_t k = 0; k < j->ops + SIM_CALM_OPS; k++)
        j->op[k] = (sim_op){.count = j->hosts * (20000 + sim_below(rng, 20000)),
                            .dtype = UT_FLOAT64,
                            .redop = UT_SUM,
                            .mode = UT_BOUNDED,
                            .deadline = 10 * UT_SECOND,
                            .odd_rank = UINT32_MAX};
    j->bucket_max = (uint64_t)j->hosts * 40000 * 8;
}

/* Some paths carry less than both ends believe: from the start or from some moment on, for a while or for good. */
static void draw_hole(sim_plan *p, sim_rng *rng)
{
    enum { LEAST = 1232 }; /* what every path carries */
    if (!sim_chance(rng, 120000) || p->faultless || p->packet_bytes <= LEAST)
        return;
    p->hole_bytes = (uint32_t)sim_between(rng, LEAST, p->packet_bytes - 1);
    p->hole_hosts = sim_draw_set(rng, p->hosts);
    p->hole_from = sim_chance(rng, 500000) ? 0 : sim_octaves(rng, 100 * UT_US, 50 * UT_MS);
    p->hole_until = sim_chance(rng, 700000) ? UT_NEVER : p->hole_from + sim_octaves(rng, UT_MS, 400 * UT_MS);
}

/* Delays that differ from packet to packet, and links that are slower for a while: half to a fiftieth of the rate.
 */
static void draw_weather(sim_plan *p, sim_rng *rng)
{
    if (p->faultless)
        return;
    if (sim_chance(rng, 150000))
        p->jitter = sim_octaves(rng, 5 * UT_US, 5 * UT_MS);
    if (sim_chance(rng, 150000)) {
        p->slow_hosts = sim_draw_set(rng, p->hosts);
        p->slow_by = (uint32_t)sim_octaves(rng, 2, 50);
        p->slow_from = sim_octaves(rng, 100 * UT_US, 50 * UT_MS);
        p->slow_until = p->slow_from + sim_octaves(rng, UT_MS, 400 * UT_MS);
    }
}

/* One daemon dies, for good or for a while. */
static void draw_death(sim_plan *p, sim_rng *rng)
{
    sim_item item = {.kind = SIM_DAEMON_DEATH, .host = (uint32_t)sim_below(rng, p->hosts), .told = true};
    item.at = sim_octaves(rng, 500 * UT_US, 20 * UT_MS);
    item.told_after = sim_octaves(rng, 50 * UT_US, 5 * UT_MS);
    item.for_good = sim_chance(rng, 500000);
    item.lasts = item.for_good ? UT_NEVER : item.told_after + sim_octaves(rng, 2 * UT_MS, 100 * UT_MS);
    for (uint32_t n = 0; n < p->jobs; n++) {
        bool member = false;
        for (uint32_t h = 0; h < p->job[n].hosts; h++)
            member = member || p->job[n].host[h] == item.host;
        if (member && p->job[n].hosts < 2)
            return; /* nobody would know where the job stands */
    }
    for (uint32_t n = 0; n < p->jobs; n++)
        for (uint32_t k = 0; k < p->job[n].ops; k++)
            p->job[n].op[k].deadline = UT_MIN2(p->job[n].op[k].deadline, 5 * UT_SECOND);
    p->item[p->items++] = item;
}

void sim_plan_lengthen_calm(sim_job_plan *j, uint32_t ops)
{
    j->calm = ops;
    for (uint32_t k = j->ops; k < j->ops + j->calm; k++) {
        sim_op *op = &j->op[k];
        *op = j->op[j->ops + k % SIM_CALM_OPS];
        op->redop = op->redop > UT_AVG ? UT_SUM : op->redop;
        op->mode = op->redop <= UT_AVG && op->collective == UT_ALLREDUCE ? UT_BOUNDED : op->mode;
        op->nonfinite = false;
    }
}

/* Where a daemon dies the calm is long enough, in some worlds, for the others to notice what became of its shard. */
static void draw_long_calm(sim_plan *p, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 15);
    uint64_t dying = 0;
    uint32_t deaths = 0;
    for (uint32_t i = 0; i < p->items; i++)
        deaths += p->item[i].kind >= SIM_TRAINER_DEATH;
    if (!deaths && !p->faultless && !p->evil && p->items < SIM_ITEMS && sim_algorithm(&p->job[0]) == UT_TAR &&
        sim_chance(&rng, 350000))
        draw_death(p, &rng);
    for (uint32_t i = 0; i < p->items; i++)
        dying |= p->item[i].kind == SIM_DAEMON_DEATH ? sim_bit(p->item[i].host) : 0;
    for (uint32_t n = 0; n < p->jobs; n++) {
        sim_job_plan *j = &p->job[n];
        bool dies = false;
        for (uint32_t h = 0; h < j->hosts; h++)
            dies = dies || dying >> j->host[h] & 1;
        if (!dies || j->hosts < 2 || j->ops > SIM_OPS_FEW || sim_algorithm(j) != UT_TAR || !sim_chance(&rng, 700000))
            continue;
        sim_plan_lengthen_calm(j, SIM_CALM_LONG);
    }
}

/* Worlds whose fingerprints need the turns of code.c (its dtypes have no room for all ranks in one element), and hosts
 * with as many ranks as the core takes. */
static void draw_widely(sim_plan *p, uint64_t seed)
{
    sim_rng own = sim_rng_for(seed, 18), *rng = &own;
    for (uint32_t n = 0; n < p->jobs; n++) {
        sim_job_plan *j = &p->job[n];
        bool wide = sim_chance(rng, 150000), crowd = p->hosts <= 4 && sim_chance(rng, 20000);
        for (uint32_t i = 0; crowd && i < j->hosts; i++)
            j->local[i] = (uint8_t)(1 + sim_below(rng, UT_LOCAL_MAX));
        if (!wide || j->ops > 20) /* those are of one kind, to be measured */
            continue;
        for (uint32_t k = 0; k < j->ops + SIM_CALM_OPS; k++) {
            sim_op *op = &j->op[k];
            uint8_t dtype = (uint8_t)(1 + sim_below(rng, op->mode == UT_BEST_EFFORT ? UT_BFLOAT16 : UT_INT64));
            if (op->odd_rank != UINT32_MAX || ut_dtype_bytes(dtype) > ut_dtype_bytes(op->dtype))
                continue; /* what is no wider than before fits where that did */
            op->dtype = dtype;
            op->nonfinite = op->nonfinite && dtype <= UT_BFLOAT16;
        }
        if (sim_chance(rng, 300000))
            j->options.hadamard = (uint8_t)sim_between(rng, UT_HADAMARD_OFF, UT_HADAMARD_AUTO);
    }
}

void sim_plan_draw_later(sim_plan *p, uint64_t seed, sim_rng *rng)
{
    sim_rng later = sim_rng_for(seed, 7);
    draw_agree(p, seed);
    draw_hole(p, &later);
    draw_weather(p, &later);
    draw_timer_start(p, seed);
    draw_congestion(p, seed);
    draw_widely(p, seed);
    draw_collectives(p, seed);
    draw_long_calm(p, seed);
    sim_plan_draw_seal(p, seed);
    if (p->faultless && p->hosts >= 5 && p->hosts <= SIM_MANY && sim_chance(rng, 500000))
        make_quiet(p, rng);
}

void sim_plan_draw_deterministic(sim_plan *p, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 37);
    for (uint32_t n = 0; n < p->jobs; n++) {
        ut_job_options *o = &p->job[n].options;
        bool chosen = sim_chance(&rng, 300000);
        bool by_arrival = o->hadamard == UT_HADAMARD_AUTO || p->job[n].hadamard_then == UT_HADAMARD_AUTO;
        if (chosen && !by_arrival && sim_algorithm(&p->job[n]) != UT_BCUBE)
            o->deterministic = UT_DETERMINISTIC_YES;
    }
}
