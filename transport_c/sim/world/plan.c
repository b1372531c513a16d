/* SPDX-License-Identifier: Apache-2.0
 *
 * From a seed to a world. Each seed turns on its own subset of the fault menu, with its own strengths: a world where
 * everything goes wrong at once hides more bugs than it finds, because nothing gets far enough to meet the second one.
 *
 * When you add a fault here, also give it a counter in SIM_COVER (sim.h), count it where it strikes, and see that
 * tests/sim asserts it. Distance is drawn afterwards, for worlds of any kind (far.c).
 */
#include "sim/world/plan_later.h"

#include "core/wire/packets.h"

#define MBIT UINT64_C(125000) /* bytes per second */

/* What the seed has turned on. */
enum {
    LOSS,
    BURST,
    REORDER,
    DUPLICATE,
    CORRUPT,
    RESIZE,
    INJECT,
    PARTITION,
    PAUSE,
    SLOW_WAKE,
    TRAINER_DEATH,
    DAEMON_DEATH,
    SMALL_QUEUES,
    SMALL_RECEIVE,
    MENU
};

static void draw_clocks(sim_plan *p, sim_rng *rng)
{
    /* A little before: 2^32 microseconds, 2^32 milliseconds, 2^63 nanoseconds; and a machine that has just booted. */
    static const ut_ns special[] = {UINT64_C(4294967296) * 1000, UINT64_C(4294967296) * 1000000, UINT64_C(1) << 63,
                                    UINT64_C(1) << 32};
    bool wraps = sim_chance(rng, 250000);
    for (uint32_t h = 0; h < p->hosts; h++) {
        p->clock[h] = sim_octaves(rng, UT_MS, UINT64_C(1) << 50);
        if (wraps && sim_chance(rng, 700000))
            p->clock[h] = special[sim_below(rng, 4)] - sim_octaves(rng, UT_MS, 500 * UT_MS);
        if (sim_chance(rng, 30000))
            p->clock[h] = sim_below(rng, 2);
    }
}

static void draw_links(sim_plan *p, sim_rng *rng, const bool *on)
{
    static const uint64_t rates[] = {100 * MBIT, 1000 * MBIT, 1000 * MBIT, 10000 * MBIT};
    p->rate_up = rates[sim_below(rng, 4)];
    p->rate_down = sim_chance(rng, 800000) ? p->rate_up : rates[sim_below(rng, 4)];
    p->delay_min = sim_octaves(rng, 2 * UT_US, 500 * UT_US);
    p->delay_max = p->delay_min + (sim_chance(rng, 300000) ? sim_octaves(rng, UT_US, 10 * UT_MS) : 0);
    p->queue_up = p->faultless ? 64 << 20 : sim_octaves(rng, 256 << 10, 4 << 20);
    p->queue_down = sim_octaves(rng, 1 << 20, 8 << 20);
    if (on[SMALL_QUEUES])
        p->queue_down = sim_octaves(rng, 8 << 10, 256 << 10) + 2 * p->packet_bytes;
    p->backpressure = sim_chance(rng, 700000);
    p->mark_above = sim_chance(rng, 300000) ? sim_octaves(rng, 4 << 10, 128 << 10) : UINT64_MAX;
    if (on[LOSS])
        p->loss = (uint32_t)sim_octaves(rng, 50, 300000);
    if (on[BURST]) {
        p->burst_enter = (uint32_t)sim_octaves(rng, 100, 20000);
        p->burst_leave = (uint32_t)sim_octaves(rng, 20000, 500000);
        p->burst_loss = (uint32_t)sim_between(rng, 300000, 1000000);
    }
    if (on[REORDER]) {
        p->reorder = (uint32_t)sim_octaves(rng, 1000, 500000);
        p->reorder_by = sim_octaves(rng, 10 * UT_US, 4 * UT_MS);
    }
    if (on[DUPLICATE])
        p->duplicate = (uint32_t)sim_octaves(rng, 1000, 500000);
    if (on[CORRUPT])
        p->corrupt = (uint32_t)sim_octaves(rng, 500, 50000);
    if (on[RESIZE])
        p->resize = (uint32_t)sim_octaves(rng, 500, 20000);
    if (on[INJECT]) {
        p->inject_every = sim_octaves(rng, 20 * UT_US, 2 * UT_MS);
        static const uint32_t kinds[] = {SIM_replay, SIM_misdeliver, SIM_garbage, SIM_forged, SIM_empty};
        for (unsigned i = 0; i < 5; i++)
            if (sim_chance(rng, 500000))
                p->inject |= UINT64_C(1) << kinds[i];
        p->inject |= UINT64_C(1) << (p->evil ? SIM_evil : kinds[sim_below(rng, 5)]);
    }
}

static void draw_hosts(sim_plan *p, sim_rng *rng, const bool *on)
{
    p->packet_bytes = 1472;
    if (sim_chance(rng, 250000))
        p->packet_bytes = ut_wire_packet(8 * (uint32_t)sim_octaves(rng, 8, 180), 0);
    else if (sim_chance(rng, 60000))
        p->packet_bytes = 8968;
    p->segments_max = 1 + (uint32_t)sim_below(rng, 44);
    p->segments_max = UT_MIN2(p->segments_max, UT_BURST_BYTES / p->packet_bytes);
    p->receive_buffer = (uint32_t)sim_octaves(rng, 256 << 10, 8 << 20);
    p->receive_real = p->faultless ? 64 << 20 : p->receive_buffer;
    if (on[SMALL_RECEIVE]) {
        p->receive_buffer = (uint32_t)sim_octaves(rng, 128 << 10, 512 << 10);
        p->receive_real = sim_octaves(rng, 4 << 10, 64 << 10) + 2 * p->packet_bytes; /* something must fit */
    }
    p->wake_max = sim_chance(rng, 500000) ? sim_octaves(rng, UT_US, 60 * UT_US) : 0;
    if (on[SLOW_WAKE])
        p->wake_max = sim_octaves(rng, 100 * UT_US, 10 * UT_MS);
    p->packet_cost = sim_chance(rng, 500000) ? sim_octaves(rng, 50, 3 * UT_US) : 0;
    p->batch_max = sim_chance(rng, 700000) ? 1 + (uint32_t)sim_below(rng, 44) : 1;
    p->receive_budget = sim_chance(rng, 300000) ? 1 + (uint32_t)sim_below(rng, 8) : 1000000;
}

/* Wire time of an op without any trouble, headers and the way there and back included. */
static ut_ns wire_time(const sim_plan *p, const sim_job_plan *j, uint64_t bytes)
{
    uint64_t rate = UT_MIN2(p->rate_up, p->rate_down);
    uint32_t hosts = j->hosts;
    if (sim_algorithm(j) == UT_PS)
        bytes *= hosts; /* all of it passes the server's link */
    uint64_t payload = ut_wire_payload(p->packet_bytes, 0);
    uint64_t packets = bytes / payload + 2 * hosts;
    uint64_t wire = 2 * (bytes + packets * 74);
    return wire * 1000 / (rate / 1000000) + 8 * (p->delay_max + p->wake_max) + packets * 2 * p->packet_cost +
           50 * UT_US;
}

static uint64_t draw_count(sim_rng *rng, uint32_t hosts, size_t element, uint32_t packet_bytes)
{
    uint64_t most = packet_bytes < 300 ? 16 << 10 : packet_bytes < 1000 ? 64 << 10 : 160 << 10;
    uint64_t pick = sim_below(rng, 100);
    most = hosts > SIM_MANY ? UT_MIN2(most, UINT64_C(32) << 10) : most; /* each packet costs as much as in few hosts */
    if (pick < 4)
        return 0;
    if (pick < 8)
        return 1;
    if (pick < 14)
        return sim_below(rng, hosts);
    if (pick < 40)
        return 1 + sim_below(rng, 300);
    if (pick < 98)
        return sim_octaves(rng, 64, most) / element + sim_below(rng, 3);
    return (packet_bytes >= 1000 && hosts <= SIM_MANY ? 1 << 20 : most) / element - sim_below(rng, 70);
}

static void draw_op(const sim_plan *p, const sim_job_plan *j, uint32_t ranks, sim_op *op, unsigned hurry, bool calm,
                    bool unbounded, sim_rng *rng)
{
    uint64_t pick = sim_below(rng, 100);
    op->mode = pick < 50 ? UT_BOUNDED : pick < 75 && !calm ? UT_BEST_EFFORT : UT_RELIABLE;
    for (;;) { /* what needs several elements to tell of few ranks is drawn later: draw_widely */
        uint32_t dtypes = op->mode == UT_BEST_EFFORT ? UT_BFLOAT16 : UT_INT64;
        op->dtype = (uint8_t)(1 + sim_below(rng, dtypes));
        op->redop = (uint8_t)(1 + sim_below(rng, op->mode == UT_RELIABLE ? UT_REDOPS_END - 1 : 2));
        if (ranks > SIM_MANY || sim_code_tells_alone(op->dtype, op->redop, ranks))
            break;
        if (ranks > 10) {
            op->dtype = dtypes == UT_BFLOAT16 || sim_chance(rng, 500000) ? UT_FLOAT64 : UT_INT64;
            op->redop = UT_SUM;
            break;
        }
    }
    size_t element = ut_dtype_bytes(op->dtype);
    op->count = draw_count(rng, j->hosts, element, p->packet_bytes);
    op->nonfinite = op->dtype <= UT_BFLOAT16 && sim_chance(rng, 80000);
    op->odd_rank = UINT32_MAX;
    ut_ns wire = wire_time(p, j, op->count * element) + j->skew;
    op->deadline = 20 * wire + sim_between(rng, 500, 3000) * UT_MS;
    if (hurry && op->mode != UT_RELIABLE && sim_chance(rng, 700000))
        op->deadline = hurry == 1 ? wire * sim_between(rng, 2, 8) : wire * sim_between(rng, 2, 20) / 10;
    if (op->mode == UT_RELIABLE) {
        op->deadline = 20 * wire + sim_between(rng, 2, 10) * UT_SECOND;
    }
    if (unbounded && !calm && sim_chance(rng, op->mode == UT_BEST_EFFORT ? 600000 : 300000))
        op->deadline = UT_NEVER;
}

/* A time that is measured, named by hand, or off. */
static uint64_t draw_time(sim_rng *rng, ut_ns least, ut_ns most)
{
    uint64_t pick = sim_below(rng, 100);
    return pick < 50 ? 0 : pick < 90 ? sim_octaves(rng, least, most) : UT_NEVER;
}

static void draw_options(sim_job_plan *j, sim_rng *rng)
{
    j->options.incast = (uint8_t)sim_below(rng, UT_MIN2(j->hosts, 16u));
    j->options.early_percent = (uint8_t)(sim_chance(rng, 500000) ? 0 : sim_below(rng, 101));
    j->options.t_b_ns = draw_time(rng, 500 * UT_US, 500 * UT_MS);
    j->options.t_c_ns = draw_time(rng, 100 * UT_US, 100 * UT_MS);
}

static void draw_job(sim_plan *p, uint32_t index, bool unbounded, bool wraps, sim_rng *rng)
{
    sim_job_plan *j = &p->job[index];
    uint32_t order[SIM_HOSTS] = {0};
    for (uint32_t i = 0; i < p->hosts; i++) {
        uint32_t at = (uint32_t)sim_below(rng, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    j->hosts = index == 0 ? p->hosts : 1 + (uint32_t)sim_below(rng, p->hosts);
    uint32_t local_max = sim_chance(rng, 250000) ? SIM_LOCAL : 1, ranks = 0;
    for (uint32_t i = 0; i < j->hosts; i++) {
        uint32_t room = (p->hosts > SIM_MANY ? SIM_RANKS : SIM_MANY) - ranks - (j->hosts - 1 - i);
        j->host[i] = (uint8_t)order[i];
        uint32_t local = 1 + (uint32_t)sim_below(rng, local_max);
        j->local[i] = (uint8_t)UT_MIN2(local, room);
        ranks += j->local[i];
    }
    j->ops = 3 + (uint32_t)sim_below(rng, 10);
    if (ranks > 8)
        j->ops = UT_MIN2(j->ops, ranks > SIM_MANY ? 3u : 5u);
    bool steady = ranks <= 8 && sim_chance(rng, 120000);
    if (steady)
        j->ops = 22 + (uint32_t)sim_below(rng, 11); /* of one kind, long enough to be measured */
    j->ahead = 1 + (uint32_t)sim_below(rng, SIM_AHEAD);
    draw_options(j, rng);
    if (p->faultless) { /* no stage may end early here, though there is reason to try from the first op on */
        j->options.t_b_ns = 500 * UT_MS;
        j->options.t_c_ns = sim_octaves(rng, 100 * UT_US, 20 * UT_MS);
    }
    j->rate = sim_chance(rng, 300000) ? p->rate_up * sim_between(rng, 50, 100) / 100 : 0;
    j->base = sim_chance(rng, 300000) ? sim_below(rng, 1000000) : 0;
    if (wraps)
        j->base = (sim_chance(rng, 500000) ? UINT64_C(1) << 16 : UINT64_C(1) << 32) - 1 - sim_below(rng, 3);
    j->compute_min = sim_octaves(rng, UT_US, 2 * UT_MS);
    j->compute_max = j->compute_min + sim_octaves(rng, UT_US, 2 * UT_MS);
    if (sim_chance(rng, 250000)) /* one straggler now and then */
        j->skew = sim_octaves(rng, 100 * UT_US, 100 * UT_MS);
    unsigned hurry = p->faultless ? 0 : (unsigned)sim_below(rng, 3);
    uint32_t all = j->ops + SIM_CALM_OPS;
    for (uint32_t k = 0; k < all; k++) {
        sim_op *op = &j->op[k];
        draw_op(p, j, ranks, op, k < j->ops ? hurry : 0, k >= j->ops, unbounded, rng);
        if (steady && k > 0 && k < j->ops)
            *op = j->op[0];
        if (k < j->ops && !p->faultless && sim_chance(rng, 15000))
            op->deadline = sim_below(rng, 2) * UT_US; /* over before it began */
        if (k >= j->ops)
            op->deadline = p->evil ? 300 * UT_MS : 60 * UT_SECOND; /* of lies nobody need recover */
        j->bucket_max = UT_MAX2(j->bucket_max, op->count * ut_dtype_bytes(op->dtype));
    }
    j->bucket_max = UT_MAX2(j->bucket_max, 64); /* room for the op that one rank calls otherwise */
}

/* One rank calls one op differently. */
static void draw_desync(sim_job_plan *j, sim_rng *rng)
{
    uint32_t ranks = 0;
    for (uint32_t i = 0; i < j->hosts; i++)
        ranks += j->local[i];
    sim_op *op = &j->op[sim_below(rng, j->ops)];
    if (ranks < 2 || op->deadline < UT_MS)
        return;
    op->odd_rank = (uint32_t)sim_below(rng, ranks);
    op->odd_field = (uint8_t)sim_between(rng, UT_FIELD_DTYPE, UT_FIELD_MODE);
    if (op->odd_field == UT_FIELD_MODE && op->redop > UT_AVG)
        op->odd_field = UT_FIELD_COUNT; /* MIN, MAX and PROD are refused in the other modes */
    if (op->deadline == UT_NEVER)
        op->deadline = 5 * UT_SECOND;
}

/* A daemon may die only if each of its jobs keeps another host that never dies: somebody must remember where the job
 * stands. */
static bool may_die(const sim_plan *p, uint32_t host, uint64_t dying)
{
    for (uint32_t j = 0; j < p->jobs; j++) {
        bool member = false, witness = false;
        for (uint32_t i = 0; i < p->job[j].hosts; i++) {
            if (p->job[j].host[i] == host)
                member = true;
            else if (!(dying >> p->job[j].host[i] & 1))
                witness = true;
        }
        if (member && !witness)
            return false;
    }
    return true;
}

static void draw_items(sim_plan *p, sim_rng *rng, const bool *on)
{
    ut_ns span = 0;
    for (uint32_t j = 0; j < p->jobs; j++) {
        ut_ns length = 2 * UT_MS;
        for (uint32_t k = 0; k < p->job[j].ops; k++) {
            const sim_op *op = &p->job[j].op[k];
            length += wire_time(p, &p->job[j], op->count * ut_dtype_bytes(op->dtype)) + p->job[j].compute_max;
        }
        span = UT_MAX2(span, length);
    }
    uint64_t dying = 0;
    for (unsigned kind = SIM_PAUSE; kind <= SIM_DAEMON_DEATH; kind++) {
        static const unsigned menu[] = {0, PAUSE, PARTITION, TRAINER_DEATH, DAEMON_DEATH};
        if (!on[menu[kind]])
            continue;
        uint32_t times = 1 + (uint32_t)sim_below(rng, kind == SIM_PAUSE ? 8 : 3);
        for (uint32_t t = 0; t < times && p->items < SIM_ITEMS; t++) {
            sim_item item = {
                .kind = kind, .at = sim_below(rng, span), .lasts = sim_octaves(rng, 100 * UT_US, 400 * UT_MS)};
            item.host = (uint32_t)sim_below(rng, p->hosts);
            item.hosts = sim_draw_set(rng, p->hosts);
            item.one_way = sim_chance(rng, 500000);
            item.job = (uint32_t)sim_below(rng, p->jobs);
            item.told = sim_chance(rng, 700000);
            item.told_after = sim_octaves(rng, 50 * UT_US, 20 * UT_MS);
            if (kind == SIM_TRAINER_DEATH) {
                const sim_job_plan *j = &p->job[item.job];
                uint32_t ranks = 0;
                for (uint32_t i = 0; i < j->hosts; i++)
                    ranks += j->local[i];
                item.rank = (uint32_t)sim_below(rng, ranks);
            }
            if (kind == SIM_DAEMON_DEATH) {
                if (!may_die(p, item.host, dying | sim_bit(item.host)))
                    continue;
                dying |= sim_bit(item.host);
                item.lasts += item.told_after + 2 * UT_MS;
            }
            if (kind >= SIM_TRAINER_DEATH && sim_chance(rng, 250000))
                item.lasts = UT_NEVER;
            item.for_good = kind == SIM_DAEMON_DEATH && item.lasts == UT_NEVER && sim_chance(rng, 600000);
            item.told = item.told || item.for_good;
            p->item[p->items++] = item;
        }
    }
}

void sim_plan_draw(sim_plan *p, uint64_t seed, uint32_t hosts)
{
    memset(p, 0, sizeof *p);
    sim_rng rng = sim_rng_for(seed, 1);
    bool on[MENU];
    uint32_t often = (uint32_t)sim_between(&rng, 50000, 450000);
    for (unsigned i = 0; i < MENU; i++)
        on[i] = sim_chance(&rng, often);
    p->faultless = sim_chance(&rng, 100000);
    if (p->faultless)
        memset(on, 0, sizeof on);
    p->evil = !p->faultless && sim_chance(&rng, 60000);
    if (p->evil) {
        on[INJECT] = true;
        on[TRAINER_DEATH] = on[DAEMON_DEATH] = false; /* nobody would know where the job stands */
    }
    uint32_t size = (uint32_t)sim_below(&rng, 100);
    p->hosts = size < 2    ? 1
               : size < 95 ? 2 + (uint32_t)sim_below(&rng, 7)
               : size < 98 ? 9 + (uint32_t)sim_below(&rng, 8)
               : size < 99 ? 17 + (uint32_t)sim_below(&rng, 16)
                           : 33 + (uint32_t)sim_below(&rng, SIM_HOSTS - 32);
    p->hosts = hosts ? hosts : p->hosts;
    draw_clocks(p, &rng);
    draw_hosts(p, &rng, on);
    draw_links(p, &rng, on);
    p->jobs = sim_chance(&rng, 750000) ? 1 : 2 + (uint32_t)sim_below(&rng, 2);
    sim_rng rng_algorithm = sim_rng_for(seed, 5);
    for (uint32_t j = 0; j < p->jobs; j++)
        p->job[j].options.algorithm =
            (uint8_t)(sim_chance(&rng_algorithm, 400000) ? UT_TAR : UT_RING + sim_below(&rng_algorithm, 3));
    bool wraps = sim_chance(&rng, 200000);
    bool unbounded = !on[TRAINER_DEATH] && !on[DAEMON_DEATH] && !p->evil;
    for (uint32_t j = 0; j < p->jobs; j++)
        draw_job(p, j, unbounded, wraps, &rng);
    sim_plan_draw_hadamard(p, seed);
    if (!p->faultless && sim_chance(&rng, 80000))
        draw_desync(&p->job[sim_below(&rng, p->jobs)], &rng);
    if (!p->faultless && sim_chance(&rng, 60000))
        p->bad_submission = 100000;
    draw_items(p, &rng, on);
    sim_plan_draw_later(p, seed, &rng);
}

/* A world for measuring: four hosts on 1 Gbit/s links with ordinary queues, one 25 MB bucket, twice. */
void sim_plan_perf(sim_plan *p, uint32_t loss_ppm)
{
    memset(p, 0, sizeof *p);
    p->study = true;
    p->hosts = 4;
    p->jobs = 1;
    for (uint32_t h = 0; h < p->hosts; h++)
        p->clock[h] = (h + 1) * UT_SECOND;
    p->rate_up = p->rate_down = 1000 * MBIT;
    p->queue_up = 512 << 10;
    p->queue_down = 1 << 20;
    p->delay_min = p->delay_max = 25 * UT_US;
    p->mark_above = UINT64_MAX;
    p->backpressure = true;
    p->loss = loss_ppm;
    p->packet_bytes = 1472;
    p->segments_max = 44;
    p->receive_buffer = 8 << 20;
    p->receive_real = p->receive_buffer;
    p->wake_max = 20 * UT_US;
    p->packet_cost = 300;
    p->batch_max = 44;
    p->receive_budget = 1000000;
    sim_job_plan *j = &p->job[0];
    j->hosts = p->hosts;
    for (uint32_t i = 0; i < j->hosts; i++) {
        j->host[i] = (uint8_t)i;
        j->local[i] = 1;
    }
    j->ops = 3;
    j->ahead = 1;
    j->compute_min = j->compute_max = UT_MS;
    for (uint32_t k = 0; k < j->ops + SIM_CALM_OPS; k++) {
        bool big = k < j->ops;
        j->op[k] = (sim_op){.count = big ? 6553600 : 1000,
                            .dtype = UT_FLOAT32,
                            .redop = UT_SUM,
                            .mode = UT_BOUNDED,
                            .deadline = 60 * UT_SECOND,
                            .odd_rank = UINT32_MAX};
    }
    j->bucket_max = 6553600 * 4;
}
