/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds with a coded job: a drawn world (plan.c) whose first job is coded, one rank a host, with ranks that stall, and
 * with deaths of as many hosts of a group as it can do without, or of one more. Drawn apart, so that the same seed
 * without it is the same world as ever.
 */
#include "ext/coded/code.h"
#include "sim/coded/coded.h"

/* Hosts of the job: as many that they can be cut into groups. */
static void draw_groups(sim_job_plan *j, sim_rng *rng)
{
    uint32_t divisors[SIM_HOSTS], n = 0;
    if (j->hosts > 3 && j->hosts % 2 && sim_chance(rng, 700000))
        j->hosts--;
    for (uint32_t d = 1; d <= j->hosts; d++)
        if (j->hosts % d == 0)
            divisors[n++] = d;
    uint32_t at = (uint32_t)sim_below(rng, UT_MIN2(n, 4u));
    uint32_t replicas = n > 1 && sim_chance(rng, 500000) ? divisors[1] : divisors[at];
    memset(j->local, 1, j->hosts);
    j->options = (ut_job_options){.policy = UT_POLICY_CODED,
                                  .congestion = j->options.congestion,
                                  .incast = j->options.incast,
                                  .early_percent = j->options.early_percent,
                                  .stragglers = (uint8_t)(replicas - 1),
                                  .exact = sim_chance(rng, 300000) ? UT_EXACT_NO : 0};
    if (j->options.incast >= j->hosts)
        j->options.incast = 0;
    j->hadamard_then = 0;
    j->hadamard_at = 0;
}

/* A linear code for the same hosts. Of such a code there is no estimate. */
static void draw_linear(sim_job_plan *j, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 29);
    j->options.code = UT_CODE_LINEAR;
    j->options.exact = 0;
    do
        j->options.stragglers = (uint8_t)sim_below(&rng, UT_MIN2(j->hosts, 5u));
    while (!ut_code_bears(j->hosts, j->options.stragglers));
}

/* A tree of some of the same hosts, with groups or with a linear code; a job of one host stays a star. */
static void draw_tree(sim_job_plan *j, uint64_t seed)
{
    static const struct {
        uint8_t hosts, children;
    } shapes[] = {{2, 1}, {3, 2}, {3, 1}, {4, 3}, {5, 4}, {6, 5}, {7, 2}, {7, 6}, {13, 3}, {13, 12}, {15, 2}, {21, 4}};
    sim_rng rng = sim_rng_for(seed, 31);
    uint32_t fit = 0;
    while (fit < sizeof shapes / sizeof *shapes && shapes[fit].hosts <= j->hosts)
        fit++;
    if (fit == 0)
        return;
    uint32_t at = fit - 1 - (uint32_t)sim_below(&rng, UT_MIN2(fit, 3u));
    ut_job_options *o = &j->options;
    j->hosts = shapes[at].hosts;
    o->children = shapes[at].children;
    o->exact = 0;
    o->incast = o->incast < j->hosts ? o->incast : 0;
    o->code = sim_chance(&rng, 500000) ? UT_CODE_LINEAR : 0;
    do
        o->stragglers = (uint8_t)(sim_chance(&rng, 800000) ? 1 : sim_below(&rng, 4));
    while (o->stragglers >= o->children ? o->children > 1 || o->stragglers
           : o->code                    ? !ut_code_bears(o->children, o->stragglers)
                                        : o->children % (o->stragglers + 1u));
}

static void draw_vector(const sim_plan *p, sim_job_plan *j, sim_rng *rng)
{
    sim_part_plan *part = &j->part;
    uint64_t most = j->hosts > SIM_MANY ? 16 << 10 : 64 << 10;
    part->dtype = sim_chance(rng, 700000) ? UT_FLOAT32 : UT_FLOAT64;
    part->redop = UT_SUM;
    part->mode = UT_BOUNDED;
    uint64_t element = ut_dtype_bytes(part->dtype);
    part->count = sim_chance(rng, 30000)    ? 0
                  : sim_chance(rng, 150000) ? 1 + sim_below(rng, 2 * j->hosts)
                                            : 1 + sim_octaves(rng, 64, most) / element;
    j->bucket_max = part->count * element + 64;
    part->steps = (uint32_t)sim_between(rng, 4, j->hosts > SIM_MANY ? 5 : j->hosts > 8 ? 8 : 20);
    uint64_t wire = 4 * j->bucket_max * UT_SECOND / UT_MIN2(p->rate_up, p->rate_down);
    part->deadline = 20 * wire + 20 * p->delay_max + sim_between(rng, 300, 1500) * UT_MS;
    if (!p->faultless && sim_chance(rng, 200000))
        part->deadline = 4 * p->delay_max + wire * sim_between(rng, 2, 8) + sim_octaves(rng, UT_MS, 32 * UT_MS);
    if (p->faultless)
        part->deadline = UT_MAX2(part->deadline, 4 * UT_SECOND);
}

static void draw_trainers(const sim_plan *p, sim_job_plan *j, sim_rng *rng)
{
    sim_part_plan *part = &j->part;
    if (sim_chance(rng, 700000)) {
        part->stall_ppm = (uint32_t)sim_octaves(rng, 10000, 400000);
        part->stall = sim_octaves(rng, 2 * UT_MS, p->faultless ? 100 * UT_MS : 400 * UT_MS);
    }
    for (uint32_t k = 0; k < j->hosts; k++)
        part->style[k] = !p->faultless && k && sim_chance(rng, 40000) ? SIM_SLEEPER : SIM_EAGER;
}

/* Hosts, or their trainers, of one group die, or in a tree of one parent: as many as it can do without, or one more. */
static void draw_deaths(sim_plan *p, sim_job_plan *j, sim_rng *rng)
{
    uint32_t replicas = j->options.stragglers + 1u, group = (uint32_t)sim_below(rng, j->hosts / replicas);
    uint32_t first = group * replicas, children = j->options.children;
    if (children) { /* of one parent */
        uint32_t parents = (j->hosts - 1) / children;
        first = (group % parents) * children + 1 + (uint32_t)sim_below(rng, children - replicas + 1);
    }
    bool all = sim_chance(rng, 400000), daemons = sim_chance(rng, 600000);
    ut_ns at = sim_octaves(rng, 200 * UT_US, 100 * UT_MS);
    bool for_good = sim_chance(rng, 400000);
    uint32_t dying = all ? replicas : replicas - 1;
    if (daemons && dying == j->hosts)
        return; /* nobody would know where the job stands */
    for (uint32_t k = 0; k < dying && p->items < SIM_ITEMS; k++) {
        uint32_t host = first + k;
        sim_item item = {.kind = daemons ? SIM_DAEMON_DEATH : SIM_TRAINER_DEATH,
                         .at = at + sim_below(rng, 2 * UT_MS),
                         .lasts = for_good ? UT_NEVER : sim_octaves(rng, 3 * UT_MS, 400 * UT_MS),
                         .host = j->host[host],
                         .rank = host,
                         .for_good = daemons && for_good,
                         .told = for_good || sim_chance(rng, 700000),
                         .told_after = sim_octaves(rng, 50 * UT_US, 2 * UT_MS)};
        p->item[p->items++] = item;
    }
    j->calm = daemons && for_good && sim_chance(rng, 500000) && j->hosts <= 8 ? SIM_CALM_LONG : 0;
}

/* Which numbers trainers give to their steps: those of a checkpoint to begin with, and some later than where they were.
 */
static void draw_steps(sim_job_plan *j, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 37);
    sim_part_plan *part = &j->part;
    part->first_step = UT_MIN2(j->base, UINT32_MAX - 100000ULL);
    part->jump_at = UINT64_MAX;
    j->base = 0; /* hosts learn where the job is from what ranks give */
    if (!sim_chance(&rng, 150000))
        return;
    part->jump_at = part->first_step + sim_below(&rng, part->steps);
    part->jump = (uint32_t)sim_octaves(&rng, 1, 40000);
}

/* A host of the job must live on: somebody has to know where the job stands. */
static void drop_deaths_of_all(sim_plan *p, const sim_job_plan *j)
{
    uint64_t dying = 0, hosts = 0;
    for (uint32_t i = 0; i < j->hosts; i++)
        hosts |= sim_bit(j->host[i]);
    for (uint32_t i = 0; i < p->items; i++)
        dying |= p->item[i].kind == SIM_DAEMON_DEATH ? sim_bit(p->item[i].host) : 0;
    for (uint32_t i = 0; hosts == (dying & hosts) && i < p->items;) {
        if (p->item[i].kind == SIM_DAEMON_DEATH)
            p->item[i] = p->item[--p->items];
        else
            i++;
    }
}

void sim_plan_draw_coded(sim_plan *p, uint64_t seed, uint32_t hosts, enum sim_coded_kind kind)
{
    sim_plan_draw(p, seed, hosts);
    sim_rng rng = sim_rng_for(seed, 23);
    sim_job_plan *j = &p->job[0];
    p->quiet = false;
    p->partial = p->coded = true;
    p->bad_submission = 0;
    draw_groups(j, &rng);
    if (kind == SIM_STAR_LINEAR)
        draw_linear(j, seed);
    if (kind == SIM_TREE)
        draw_tree(j, seed);
    draw_vector(p, j, &rng);
    draw_trainers(p, j, &rng);
    draw_steps(j, seed);
    bool deaths = !p->faultless && !p->evil && j->hosts > 1 && sim_chance(&rng, 350000);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->items; i++) { /* ranks are others now; and these deaths are to be the only ones */
        sim_item *item = &p->item[i];
        bool dies = item->kind == SIM_DAEMON_DEATH || item->kind == SIM_TRAINER_DEATH;
        if (item->kind == SIM_TRAINER_DEATH && item->job == 0)
            item->rank %= j->hosts;
        if (!(dies && deaths))
            p->item[kept++] = *item;
    }
    p->items = kept;
    drop_deaths_of_all(p, j);
    if (deaths) {
        p->jobs = 1;
        for (uint32_t i = 0; i < p->items; i++)
            p->item[i].job = 0;
        draw_deaths(p, j, &rng);
    }
}
