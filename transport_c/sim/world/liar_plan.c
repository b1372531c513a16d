/* SPDX-License-Identifier: Apache-2.0
 *
 * Which host of a world is hostile, about what it lies and how often; and what the plan must leave out for its sake.
 */
#include "sim/world/liar.h"
#include "sim/world/plan_later.h"

/* So that what it has done has time to heal. */
static void lengthen_calm(sim_job_plan *j)
{
    if (j->hosts < 2 || sim_algorithm(j) != UT_TAR)
        return;
    if (j->ops > SIM_OPS_FEW) {
        memmove(&j->op[SIM_OPS_FEW], &j->op[j->ops], SIM_CALM_OPS * sizeof *j->op);
        j->ops = SIM_OPS_FEW;
    }
    sim_plan_lengthen_calm(j, SIM_CALM_LONG);
}

/* Without the |dying| hosts each job still has one that remembers where it stands. */
static bool remembered(const sim_plan *p, uint64_t dying)
{
    for (uint32_t n = 0; n < p->jobs; n++) {
        uint64_t hosts = 0;
        for (uint32_t i = 0; i < p->job[n].hosts; i++)
            hosts |= UINT64_C(1) << p->job[n].host[i];
        if (p->job[n].hosts > 1 && !(hosts & ~dying))
            return false;
    }
    return true;
}

void sim_plan_draw_hostile(sim_plan *p, uint64_t seed, bool always)
{
    enum { DEADLINE_MOST = 5 };
    sim_rng rng = sim_rng_for(seed, 16);
    bool hostile = sim_chance(&rng, 120000);
    if (always) {
        p->faultless = p->quiet = p->evil = false;
        p->inject &= ~(UINT64_C(1) << SIM_evil);
    }
    if ((p->coded && !always) || p->hosts < 2 || p->faultless || p->evil || !(hostile || always))
        return;
    p->hostile = true;
    sim_liar *l = &p->liar;
    l->host = (uint32_t)sim_below(&rng, p->hosts);
    l->often = (uint32_t)sim_octaves(&rng, 2000, 600000);
    l->until = sim_chance(&rng, 700000) ? UT_NEVER : sim_octaves(&rng, UT_MS, 200 * UT_MS);
    for (unsigned i = 0; i < SIM_ABOUTS; i++)
        l->about |= (uint32_t)sim_chance(&rng, 350000) << i;
    l->about |= sim_chance(&rng, 300000) ? 1u << SIM_ABOUT_EPOCH : 1u << sim_below(&rng, SIM_ABOUTS);
    uint32_t kept = 0;
    uint64_t dying = sim_bit(l->host); /* in the end; until then it is there all the time */
    for (uint32_t i = 0; i < p->items; i++) {
        const sim_item *item = &p->item[i];
        bool dies = item->kind == SIM_DAEMON_DEATH;
        if (dies && (item->host == l->host || !remembered(p, dying | sim_bit(item->host))))
            continue;
        dying |= dies ? sim_bit(item->host) : 0;
        p->item[kept++] = *item;
    }
    p->items = kept;
    for (uint32_t n = 0; n < p->jobs; n++) {
        sim_job_plan *j = &p->job[n];
        lengthen_calm(j);
        j->base = 0; /* a new job: of one that they join all at once nobody knows anything but what a liar says */
        for (uint32_t k = 0; k < j->ops + sim_calm_ops(j); k++)
            j->op[k].deadline =
                k < j->ops ? UT_MIN2(j->op[k].deadline, DEADLINE_MOST * UT_SECOND) : 12 * DEADLINE_MOST * UT_SECOND;
    }
}
