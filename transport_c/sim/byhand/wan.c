/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the matrix with distance: wide areas, from the next town to the other side of the earth. A row is judged
 * by what an op takes of the bound of the wire and two round trips together, by how much longer the first op takes, and
 * by what it loses and leaves to others. What comes out depends on when hosts wake and on which packets are lost, so
 * each row is run with three seeds, and the worst of them counts.
 */
#include "sim/byhand/matrix.h"

enum { SEEDS = 3, OPS = 5, OPS_SHARED = 16 };

#define MB25 (UINT64_C(25) << 20)
#define QUEUE_LEAST (UINT64_C(128) << 10)
/* Percent of the bandwidth-delay product that a queue holds: one product unless the row says otherwise. */
#define BDP 100

static const char core[] = "in the first op the narrow link is found by the queue before it alone";

static const struct wan_row {
    uint64_t hosts, rate_mbit, delay_ms, queue_percent, loss_ppm, jitter_ppm, jitter_ms, gap_ms, bytes;
    enum sim_special special;
    bool quick;            /* it is of the short form, too */
    double goal_most;      /* what is asked; what is known to be missed stands in `known` */
    const char *shortfall; /* why; NULL: it is not */
    sim_limits known;
} wan_rows[] = {
    /* hosts, Mbit/s, ms, queue, loss, jitter: of packets, ms, gap ms, bytes, special, quick, asked. An op has a round
     * trip less than two where stage 2 need not wait for a grant: one row asks for that. */
    {2, 20, 1, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {2, 20, 20, BDP, 0, 0, 0, 0, 1 << 20, SIM_PLAIN, true, 1.05, NULL, {.goal_most = 0}},
    {2, 100, 50, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, true, 1.05, NULL, {.goal_most = 0}},
    {2, 250, 20, BDP, 0, 0, 0, 0, 4 << 20, SIM_PLAIN, true, 1.05, NULL, {.goal_most = 0}},
    {2, 500, 10, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {2, 1000, 75, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {2, 1000, 150, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {4, 20, 100, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {4, 100, 10, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {4, 500, 50, 25, 0, 0, 0, 0, MB25, SIM_PLAIN, true, 1.05, NULL, {.goal_most = 0}},
    {4, 1000, 75, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, true, 0.95, NULL, {.goal_most = 0}},
    {8, 500, 50, BDP, 0, 0, 0, 0, MB25, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {16, 100, 25, BDP, 0, 0, 0, 0, 6 << 20, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {2, 100, 10, BDP, 1000, 0, 0, 0, MB25, SIM_PLAIN, false, 1.10, NULL, {.goal_most = 0}},
    {4, 100, 50, BDP, 10000, 0, 0, 0, MB25, SIM_PLAIN, true, 1.10, NULL, {.goal_most = 0}},
    {2, 200, 100, BDP, 10000, 0, 0, 0, MB25, SIM_PLAIN, false, 1.15, NULL, {.goal_most = 0}},
    {4, 100, 25, BDP, 20000, 0, 0, 0, MB25, SIM_PLAIN, false, 1.15, NULL, {.goal_most = 0}},
    {4, 100, 35, BDP, 0, 200000, 10, 0, MB25, SIM_PLAIN, false, 1.05, NULL, {.goal_most = 0}},
    {4, 100, 50, BDP, 0, 0, 0, 0, MB25, SIM_APART, false, 1.05, NULL, {.goal_most = 0}},
    {4, 100, 25, BDP, 0, 0, 0, 0, MB25, SIM_SLOW, false, 1.05, NULL, {.goal_most = 0}},
    {2, 1000, 50, BDP, 0, 0, 0, 10000, MB25, SIM_PLAIN, true, 1.05, NULL, {.goal_most = 0}},
    {4, 100, 25, BDP, 0, 0, 0, 0, MB25, SIM_RIVAL, false, 0, NULL, {.goal_most = 0}},
    {2, 100, 25, BDP, 0, 0, 0, 0, MB25, SIM_RIVAL, false, 0, NULL, {.goal_most = 0}},
    {4, 100, 25, BDP, 0, 0, 0, 0, MB25, SIM_TWO, false, 0, NULL, {.goal_most = 0}},
    {4, 100, 25, BDP, 0, 0, 0, 0, MB25, SIM_CORE, false, 0, core, {.first_most = 7, .lost_most = 0.01}},
};

static void set_limits(const struct wan_row *r, sim_row *ret)
{
    sim_limits *asked = &ret->asked;
    asked->goal_most = r->goal_most;
    asked->first_most = 4;
    asked->lost_most = r->special == SIM_CORE ? 0.01 : r->special == SIM_RIVAL ? 0 : 0.001;
    asked->feedback_most = 0.25;
    if (r->special == SIM_RIVAL || r->special == SIM_TWO) {
        const double off = r->special == SIM_RIVAL ? 0.15 : 0.05;
        asked->share_least = 0.5 - off;
        asked->share_most = 0.5 + off;
        asked->first_most = 0; /* who is beside takes its part from the first op on, or not yet */
    }
    ret->shortfall = r->shortfall;
    ret->known = r->known;
}

static void make_row(const struct wan_row *r, sim_row *ret)
{
    *ret = (sim_row){.study = sim_study_default(), .special = r->special, .seeds = SEEDS};
    sim_study *s = &ret->study;
    sim_row_host(s);
    s->hosts = r->hosts;
    s->rate_mbit = r->rate_mbit;
    s->delay_us = r->delay_ms * 1000;
    s->queue_bytes = r->rate_mbit * 125 * 2 * r->delay_ms * r->queue_percent / 100;
    s->queue_bytes = UT_MAX2(s->queue_bytes, QUEUE_LEAST);
    s->bytes = r->bytes;
    s->ops = r->special == SIM_RIVAL ? OPS_SHARED : OPS;
    s->warm = 1;
    s->loss_ppm = r->loss_ppm;
    s->jitter_ppm = r->jitter_ppm;
    s->jitter_us = r->jitter_ms * 1000;
    s->gap_us = r->gap_ms ? r->gap_ms * 1000 : s->gap_us;
    s->apart_us = r->special == SIM_APART ? 200000 : 0;
    s->slow_part = r->special == SIM_SLOW ? 4 : 1;
    s->deadline_us = 600000000;
    sim_row_shared(ret);
    set_limits(r, ret);
}

uint32_t sim_rows_far(bool quick, sim_row ret[SIM_ROWS_MAX])
{
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof wan_rows / sizeof *wan_rows; i++)
        if (!quick || wan_rows[i].quick)
            make_row(&wan_rows[i], &ret[n++]);
    return n;
}
