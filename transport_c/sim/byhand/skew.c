/* SPDX-License-Identifier: Apache-2.0
 *
 * `sim --skew`: the skewed microbenchmark of eager-SGD (docs/papers.md, section 2.3; claim E1). P ranks, a host each,
 * call every iteration one after the other, a step apart; how long does a rank wait for its result, and how many have
 * arrived when the op begins, under each policy? Told as JSON, next to what follows from the step alone.
 */
#include "sim/byhand/byhand.h"
#include "sim/partial/partial.h"

#include <stdlib.h>

typedef struct skew {
    uint64_t ranks, step_us, ops, bytes, seed, quorum;
} skew;

typedef struct knob {
    const char *name;
    size_t offset;
    uint64_t low, high;
} knob;
#define KNOB(field, low, high) {#field, offsetof(skew, field), low, high}
static const knob knobs[] = {
    KNOB(ranks, 2, SIM_HOSTS), KNOB(step_us, 1, 1000000),     KNOB(ops, 1, 10000),
    KNOB(bytes, 8, 4 << 20),   KNOB(seed, 0, UINT64_MAX - 1), KNOB(quorum, 0, SIM_HOSTS),
};
enum { KNOBS = sizeof knobs / sizeof knobs[0] };

/* What came out under one policy. Times in ms, means over answers or over ops. */
typedef struct outcome {
    double latency, op, active;
    uint64_t answered, complete;
    char failure[512];
} outcome;

static bool take_knob(skew *s, const char *argument)
{
    for (unsigned i = 0; i < KNOBS; i++) {
        size_t length = strlen(knobs[i].name);
        if (strncmp(argument, knobs[i].name, length) != 0 || argument[length] != '=')
            continue;
        char *end;
        uint64_t value = strtoull(argument + length + 1, &end, 10);
        if (argument[length + 1] < '0' || argument[length + 1] > '9' || *end || value < knobs[i].low ||
            value > knobs[i].high)
            return false;
        memcpy((char *)s + knobs[i].offset, &value, sizeof value);
        return true;
    }
    return false;
}

static void plan_of(const skew *s, unsigned policy, sim_plan *p)
{
    sim_plan_perf(p, 0);
    p->partial = p->faultless = true;
    p->hosts = (uint32_t)s->ranks;
    p->wake_max = 0;
    sim_job_plan *j = &p->job[0];
    j->hosts = p->hosts;
    for (uint32_t i = 0; i < j->hosts; i++) {
        p->clock[i] = (i + 1) * UT_SECOND;
        j->host[i] = (uint8_t)i;
        j->local[i] = 1;
        j->part.late[i] = i * s->step_us * UT_US;
    }
    j->options =
        (ut_job_options){.policy = (uint8_t)policy, .tau = 255, .quorum = (uint32_t)s->quorum, .policy_seed = s->seed};
    j->part.period = s->ranks * s->step_us * UT_US + 20 * UT_MS;
    j->part.deadline = 2 * j->part.period + 10 * UT_SECOND;
    j->part.dtype = UT_FLOAT64;
    j->part.redop = UT_SUM;
    j->part.mode = UT_BOUNDED;
    j->part.count = s->bytes / 8;
    j->part.steps = (uint32_t)s->ops;
    j->bucket_max = s->bytes + 64;
}

/* FULL has no initiator: the op begins when the last has come. */
static ut_ns begin_of(const sim_part_op *op, uint64_t hosts, bool full)
{
    ut_ns last = op->first;
    for (uint32_t h = 0; full && h < hosts; h++)
        last = UT_MAX2(last, op->started[h]);
    return last;
}

static void measure(const skew *s, const sim_world *w, bool full, outcome *o)
{
    const sim_part *part = w->job[0].part;
    uint64_t waited = 0, running = 0, active = 0;
    for (uint32_t t = 0; t < s->ops && t < part->ops; t++) {
        const sim_part_op *op = &part->op[t];
        waited += op->waited_ns;
        o->answered += op->answers;
        o->complete += op->complete;
        ut_ns begin = begin_of(op, s->ranks, full);
        running += op->last > begin ? op->last - begin : 0;
        for (uint32_t k = 0; k < s->ranks; k++)
            active += op->called[k] <= begin;
    }
    o->latency = o->answered ? (double)waited / (double)o->answered / 1e6 : 0;
    o->op = (double)running / (double)s->ops / 1e6;
    o->active = (double)active / (double)s->ops;
}

static bool run(const skew *s, unsigned policy, outcome *o)
{
    sim_world *w = sim_alloc(sizeof *w);
    sim_plan *plan = sim_alloc(sizeof *plan);
    plan_of(s, policy, plan);
    sim_world_init(w, s->seed, plan, false);
    bool good = sim_world_run(w);
    for (unsigned i = 0; w->failure[i]; i++)
        o->failure[i] = w->failure[i] == '"' || w->failure[i] == '\\' || w->failure[i] < ' ' ? ' ' : w->failure[i];
    measure(s, w, policy == UT_POLICY_FULL, o);
    sim_world_free(w);
    free(plan);
    free(w);
    return good;
}

static double root(double x) /* the simulator goes without libm */
{
    double r = x > 1 ? x : 1;
    for (unsigned i = 0; i < 60; i++)
        r = (r + x / r) / 2;
    return r;
}

int sim_skew(int argc, char **argv)
{
    static const struct {
        unsigned policy;
        const char *name;
    } rows[] = {{UT_POLICY_FULL, "full"},
                {UT_POLICY_SOLO, "solo"},
                {UT_POLICY_MAJORITY, "majority"},
                {UT_POLICY_QUORUM, "quorum"}};
    enum { ROWS = sizeof rows / sizeof rows[0] };
    skew s = {.ranks = 32, .step_us = 1000, .ops = 64, .bytes = 4096, .seed = 42};
    outcome o[ROWS] = {0};
    const char *failure = "";
    for (int i = 0; i < argc; i++)
        if (!take_knob(&s, argv[i]) || s.quorum > s.ranks) {
            fprintf(stderr, "sim: --skew does not take %s; it takes", argv[i]);
            for (unsigned k = 0; k < KNOBS; k++)
                fprintf(stderr, " %s=%" PRIu64 "..%" PRIu64, knobs[k].name, knobs[k].low, knobs[k].high);
            fputc('\n', stderr);
            return 2;
        }
    for (unsigned i = 0; i < ROWS; i++)
        if (!run(&s, rows[i].policy, &o[i]))
            failure = o[i].failure;
    double p = (double)s.ranks, step = (double)s.step_us / 1e3;
    printf("{\"ranks\":%" PRIu64 ",\"step_us\":%" PRIu64 ",\"ops\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"seed\":%" PRIu64
           ",\n \"policies\":{",
           s.ranks, s.step_us, s.ops, s.bytes, s.seed);
    for (unsigned i = 0; i < ROWS; i++)
        printf("%s\n  \"%s\":{\"latency_ms\":%.4f,\"op_ms\":%.4f,\"active\":%.3f,\"answered\":%" PRIu64
               ",\"complete\":%" PRIu64 "}",
               i ? "," : "", rows[i].name, o[i].latency, o[i].op, o[i].active, o[i].answered, o[i].complete);
    printf("},\n \"ratio\":{");
    for (unsigned i = 1; i < ROWS; i++)
        printf("%s\"%s\":%.3f", i > 1 ? "," : "", rows[i].name, o[i].latency > 0 ? o[0].latency / o[i].latency : 0);
    printf("},\n \"expected\":{\"full_ms\":%.4f,\"majority_ms\":%.4f,\"ratio_majority\":%.3f,\"active_majority\":%.1f"
           ",\"active_tolerance\":%.3f},\n \"failure\":\"%s\"}\n",
           (p - 1) / 2 * step, (p * p - 1) / (6 * p) * step, 3 * p / (p + 1), (p + 1) / 2,
           3 * root((p * p - 1) / 12 / (double)s.ops), failure);
    return *failure != 0;
}
