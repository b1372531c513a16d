/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds with sparse allreduces: a drawn world (plan.c), many of whose allreduces become sparse ones. Drawn apart, so
 * that the same seed without it is the same world as ever.
 */
#include "sim/sparse/sparse.h"
#include "sim/world/plan_later.h"

#include "cipher/keys.h"
#include "core/wire/packets.h"
#include "ext/sparse/sparse.h"

/* Sealed packets hold less; whether they are is told later. */
static bool has_room(const sim_plan *p, const sim_job_plan *j, const sim_op *op, uint64_t bucket)
{
    for (unsigned sealed = 0; sealed < 2; sealed++) {
        uint32_t overhead = sealed ? UT_TAG_BYTES : 0;
        if (sealed && !ut_wire_packet_valid(p->packet_bytes, overhead))
            continue;
        uint32_t payload = ut_wire_payload(p->packet_bytes, overhead);
        uint64_t room = ut_sparse_bound(bucket, payload, j->hosts);
        if (op->count && !ut_sparse_granules((uint32_t)(op->count / op->group), op->group, op->form, op->down, payload,
                                             j->hosts, room))
            return false;
    }
    return true;
}

static uint32_t draw_density(sim_rng *rng)
{
    uint64_t pick = sim_below(rng, 100);
    return pick < 6    ? 0
           : pick < 70 ? (uint32_t)sim_octaves(rng, 1000, 300000)
           : pick < 90 ? (uint32_t)sim_octaves(rng, 100000, 1000000)
                       : 1000000;
}

static uint16_t draw_group(sim_rng *rng)
{
    uint64_t pick = sim_below(rng, 100);
    return (uint16_t)(pick < 55 ? 1 : pick < 90 ? sim_octaves(rng, 2, 40) : sim_between(rng, 1, UT_BLOCK_GROUP_MAX));
}

/* A quarter of ops have answers in int8; drawn apart, so that the others stay as they were. */
static uint8_t draw_down(const sim_rng *rng)
{
    sim_rng apart = *rng;
    apart.state = sim_mix(apart.state ^ 0x646f776e);
    return sim_chance(&apart, 250000) ? UT_VALUE_INT8 : 0;
}

/* False if packets are too small for any block of it. */
static bool make_sparse(const sim_plan *p, sim_job_plan *j, sim_op *op, sim_rng *rng)
{
    sim_op as = *op;
    uint64_t most = UT_MAX2(op->count * ut_dtype_bytes(op->dtype) / 4, 1), bucket;
    if (most > 2048 && sim_chance(rng, 800000)) /* what is in them is looked at entry by entry */
        most /= 4;
    uint64_t spare = sim_chance(rng, 500000) ? 1 : 2;
    as.dtype = UT_FLOAT32;
    as.redop = sim_chance(rng, 500000) ? UT_SUM : UT_AVG;
    as.form = (uint8_t)sim_below(rng, UT_VALUE_FORMS_END);
    as.down = draw_down(rng);
    as.spread = (uint8_t)(sim_chance(rng, 500000) ? SIM_EVEN : sim_below(rng, SIM_SPREADS));
    as.sparse_ppm = draw_density(rng);
    as.group = draw_group(rng);
    as.nonfinite = as.nonfinite && as.form != UT_VALUE_FLOAT8; /* which has no infinity */
    as.agree = sim_chance(rng, 250000);
    for (;; as.group = as.group > 1 ? as.group / 4 + 1 - (as.group < 4) : 0) {
        if (as.group == 0)
            return false;
        as.count = op->count ? UT_MAX2(most / as.group, 1) * as.group : 0;
        bucket = UT_MAX2(as.count * 4 * spare, 64);
        if (has_room(p, j, &as, bucket))
            break;
    }
    j->bucket_max = UT_MAX2(j->bucket_max, UT_MAX2(bucket, as.group * UINT64_C(4)));
    *op = as;
    return true;
}

/* One rank calls it otherwise, which must not be refused before anybody hears of it. */
static void draw_desync(const sim_plan *p, const sim_job_plan *j, sim_op *op, sim_rng *rng)
{
    static const uint8_t fields[] = {UT_FIELD_REDOP, UT_FIELD_COUNT, UT_FIELD_MODE, UT_FIELD_AGREE,
                                     UT_FIELD_GROUP, UT_FIELD_FORM,  UT_FIELD_HINT};
    sim_op of_other_form = *op, of_other_answer = *op;
    of_other_form.form ^= 1;
    of_other_answer.down = op->down ? 0 : UT_VALUE_INT8;
    bool too_large = !has_room(p, j, &of_other_form, j->bucket_max);
    do
        op->odd_field = fields[sim_below(rng, sizeof fields)];
    while ((op->odd_field == UT_FIELD_GROUP && op->group == 1) || (op->odd_field == UT_FIELD_FORM && too_large));
    if (op->odd_field == UT_FIELD_HINT && draw_down(rng) && has_room(p, j, &of_other_answer, j->bucket_max))
        op->odd_field = UT_FIELD_DOWN;
}

static void make_job(sim_plan *p, sim_job_plan *j, sim_rng *rng)
{
    bool steady = j->ops > 20; /* of one kind, to be measured */
    j->options.algorithm = UT_TAR;
    j->bucket_max = 64;
    for (uint32_t k = 0; k < j->ops + sim_calm_ops(j); k++) {
        sim_op *op = &j->op[k];
        if (steady && k > 0 && k < j->ops) {
            ut_ns deadline = op->deadline;
            *op = j->op[0];
            op->deadline = deadline;
            continue;
        }
        if (op->collective != UT_ALLREDUCE || sim_chance(rng, 150000) || !make_sparse(p, j, op, rng))
            continue;
        if (op->odd_rank != UINT32_MAX)
            draw_desync(p, j, op, rng);
    }
    for (uint32_t k = 0; k < j->ops + sim_calm_ops(j); k++)
        j->bucket_max = UT_MAX2(j->bucket_max, j->op[k].count * ut_dtype_bytes(j->op[k].dtype));
    j->sparse_room = sim_sparse_room(j->bucket_max);
}

void sim_plan_draw_sparse(sim_plan *p, uint64_t seed, uint32_t hosts)
{
    sim_plan_draw(p, seed, hosts);
    sim_rng rng = sim_rng_for(seed, 21);
    p->quiet = false;
    p->sparse = true;
    p->bad_submission = 0;
    for (uint32_t n = 0; n < p->jobs; n++) {
        p->job[n].options.hadamard = p->job[n].hadamard_then = 0;
        if (n == 0 || sim_chance(&rng, 600000))
            make_job(p, &p->job[n], &rng);
    }
}
