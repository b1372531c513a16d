/* SPDX-License-Identifier: Apache-2.0
 *
 * Trees of coded jobs: who has which data, and from whom its sum can be had. Found again without the core's schedule.
 *
 * A part of the data is named by the way to it: that of the part that it is a part of, and its place there.
 */
#include "ext/coded/code.h"
#include "sim/coded/coded.h"

static uint64_t part_of(uint64_t whole, uint32_t place)
{
    return whole * 64 + place + 1;
}

static uint32_t parts(const sim_job_plan *j)
{
    return sim_coded_linear(j) ? sim_coded_fan_out(j) : sim_coded_groups(j);
}

void sim_coded_encoding(const sim_job_plan *j, double *ret)
{
    uint32_t hosts = sim_coded_fan_out(j), n = parts(j);
    if (sim_coded_linear(j)) {
        ut_code_encoding(hosts, j->options.stragglers, ret);
        return;
    }
    for (uint32_t i = 0; i < hosts * n; i++)
        ret[i] = i % n == i / n / sim_coded_replicas(j);
}

/* Enough came from below |host|. */
static bool is_whole(const sim_job_plan *j, uint32_t host, uint64_t gave)
{
    uint32_t first = host * j->options.children + 1;
    uint64_t groups = 0;
    for (uint32_t k = 0; k < j->options.children && sim_coded_has_below(j, host); k++)
        if ((gave >> (first + k) & 1) && is_whole(j, first + k, gave))
            groups |= sim_bit(k / sim_coded_replicas(j));
    return !sim_coded_has_below(j, host) || sim_ones(groups) >= sim_coded_need(j);
}

bool sim_coded_decodable(const sim_job_plan *j, uint64_t hosts)
{
    uint32_t groups = 0, replicas = sim_coded_replicas(j);
    if (j->options.children)
        return is_whole(j, 0, hosts);
    for (uint32_t g = 0; g < sim_coded_groups(j); g++)
        groups += (hosts >> g * replicas & sim_first(replicas)) != 0;
    return groups >= sim_coded_need(j);
}

bool sim_coded_can(const sim_job_plan *j, uint64_t hosts)
{
    return sim_coded_decodable(j, hosts) && (!j->options.children || (hosts & 1));
}

typedef struct asked {
    const sim_job_plan *plan;
    const double *encoding;
    sim_coded_number *number;
    const void *context;
} asked;

/* Of what |whole| names, what the host to which |way| leads down from its owner computes. */
static double gives(const asked *a, const uint32_t *way, uint32_t left, uint64_t whole)
{
    double sum = 0;
    uint32_t n = parts(a->plan);
    for (uint32_t k = 0; k < n; k++) {
        double c = a->encoding[way[0] * n + k];
        uint64_t part = part_of(whole, k);
        if (c != 0)
            sum += c * (left == 1 ? a->number(a->context, part) : gives(a, way + 1, left - 1, part));
    }
    return sum;
}

double sim_coded_tree_gives(const sim_job_plan *j, const double *encoding, uint32_t host, sim_coded_number *number,
                            const void *context)
{
    uint32_t way[SIM_HOSTS], children = j->options.children, depth = 0;
    for (uint32_t h = host; h; h = (h - 1) / children)
        depth++;
    for (uint32_t h = host, at = depth; h; h = (h - 1) / children)
        way[--at] = (h - 1) % children;
    asked a = {j, encoding, number, context};
    return depth ? gives(&a, way, depth, 0) : number(context, 0); /* of the root nobody wants anything */
}

static double sum_of(const asked *a, uint32_t host, uint64_t whole)
{
    double sum = 0;
    for (uint32_t k = 0; k < parts(a->plan) && sim_coded_has_below(a->plan, host); k++)
        sum += a->number(a->context, part_of(whole, k)) +
               sum_of(a, host * a->plan->options.children + 1, part_of(whole, k));
    return sum;
}

double sim_coded_tree_sum(const sim_job_plan *j, sim_coded_number *number, const void *context)
{
    asked a = {j, NULL, number, context};
    return sum_of(&a, 0, 0);
}
