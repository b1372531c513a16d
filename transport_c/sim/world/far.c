/* SPDX-License-Identifier: Apache-2.0
 *
 * Each op needs several round trips, so times that were drawn for near hosts grow; a few stay as they are, and are
 * missed.
 */
#include "sim/world/far.h"

#include "core/path/parity.h"
#include "sim/world/liar.h"

enum { TRIPS = 40 /* one way each, for an op with its repairs */ };

/* |time| and the ways, if it is one at all. */
static ut_ns longer(ut_ns time, ut_ns way, uint32_t ways)
{
    return time <= UT_US || time == UT_NEVER ? time : time + ways * way;
}

static void lengthen(sim_job_plan *j, ut_ns way, sim_rng *rng)
{
    const uint32_t all = sim_is_partial(j) ? 0 : j->ops + sim_calm_ops(j); /* those have one deadline for all */
    const bool hurry = sim_chance(rng, 200000);
    for (uint32_t k = 0; k < all; k++)
        if (!hurry || k >= j->ops)
            j->op[k].deadline = longer(j->op[k].deadline, way, TRIPS);
    if (!hurry)
        j->part.deadline = longer(j->part.deadline, way, TRIPS);
    if (sim_chance(rng, 700000))
        j->options.t_b_ns = longer(j->options.t_b_ns, way, TRIPS / 5);
}

void sim_plan_draw_far(sim_plan *p, uint64_t seed)
{
    sim_rng own = sim_rng_for(seed, 53), *rng = &own;
    if (p->hosts < 2 || p->faultless)
        return;
    const ut_ns way = sim_octaves(rng, 4 * UT_MS, 80 * UT_MS);
    p->delay_min += way;
    p->delay_max += way;
    p->jitter = sim_chance(rng, 500000) ? sim_octaves(rng, 100 * UT_US, 20 * UT_MS) : p->jitter;
    if (sim_chance(rng, 300000)) {
        p->reorder = (uint32_t)sim_octaves(rng, 1000, 100000);
        p->reorder_by = sim_octaves(rng, 100 * UT_US, 2 * way);
    }
    if (sim_chance(rng, 900000))
        p->loss = UT_MAX2(p->loss, (uint32_t)sim_octaves(rng, 2000, 60000));
    for (uint32_t n = 0; n < p->jobs; n++)
        lengthen(&p->job[n], p->delay_max, rng);
    if (p->hostile && sim_chance(rng, 700000))
        p->liar.about |= 1u << SIM_ABOUT_PARITY;
}

void sim_far_account(sim_world *w, const ut_stats *s)
{
    w->cover[SIM_FAR_parity_sent] += s->parity_sent;
    w->cover[SIM_FAR_parity_came] += s->data_parity;
    w->cover[SIM_FAR_rebuilt] += s->data_rebuilt;
    w->cover[SIM_FAR_came_too] += s->data_rebuilt ? s->data_duplicate : 0;
    w->cover[SIM_FAR_late_too] += s->data_rebuilt ? s->data_late : 0;
}

void sim_lie_of_parity(sim_world *w, ut_data *h, size_t payload)
{
    sim_rng *rng = &w->rng_liar;
    const uint32_t index = h->ultima.timeout >> 8, members = h->ultima.timeout & 255;
    switch (sim_below(rng, 7)) {
    case 0:
        h->ultima.timeout = ut_parity_place((uint32_t)sim_below(rng, 256), members);
        break;
    case 1:
        h->ultima.timeout = ut_parity_place(index, (uint32_t)sim_below(rng, 256));
        break;
    case 2:
        h->op_seq = (h->op_seq + sim_below(rng, 9) - 4) & UT_OP_SEQ_MAX; /* one that has ended, or has not begun */
        h->ultima.bucket = (uint16_t)h->op_seq;
        break;
    case 3:
        h->ultima.offset += (uint32_t)((sim_below(rng, 9) - 4) * payload);
        break;
    case 4:
        h->ultima.offset += (uint32_t)sim_below(rng, payload);
        break;
    case 5:
        h->coverage = h->coverage % UT_COVERAGE_MAX + 1;
        break;
    default:
        h->stage = (uint8_t)(3 - h->stage);
    }
    w->cover[SIM_FAR_parity_lied]++;
}
