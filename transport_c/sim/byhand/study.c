/* SPDX-License-Identifier: Apache-2.0
 *
 * Controlled worlds: one job, all said on the command line, one seed; what every op took and what it missed comes out
 * as JSON. For questions that the kernel cannot be asked here: delay, jitter and reordering, and the timeouts that
 * answer them. The oracles watch as always, so a study whose protocol is broken says so in "failure".
 * A world holds few ops: take more seeds for more of them.
 */
#include "sim/sim.h"

#include <stdlib.h>

#define MBIT UINT64_C(125000) /* bytes per second */

typedef struct study {
    uint64_t seed, hosts, bytes, ops, warm, rate_mbit, queue_bytes, delay_us, loss_ppm, jitter_ppm, jitter_us;
    uint64_t mode, algorithm, congestion, hadamard, incast, early_percent, t_b_us, t_c_us, deadline_us, gap_us,
        apart_us, mark, timer_start;
} study;

typedef struct knob {
    const char *name;
    size_t offset;
    uint64_t low, high;
    const char *what;
} knob;

#define KNOB(field, low, high, what) {#field, offsetof(study, field), low, high, what}
static const knob knobs[] = {
    KNOB(seed, 0, UINT64_MAX, "of the network"),
    KNOB(hosts, 2, SIM_HOSTS, "of the job, one rank each"),
    KNOB(bytes, 4, 64 << 20, "of a bucket of float32"),
    KNOB(ops, 1, SIM_OPS - SIM_CALM_OPS, "measured and warm-up together"),
    KNOB(warm, 0, SIM_OPS, "of them, first ones in reliable mode"),
    KNOB(rate_mbit, 1, 100000, "of every link"),
    KNOB(queue_bytes, 2000, 64 << 20, "of the switch towards one host"),
    KNOB(delay_us, 0, 1000000, "one way"),
    KNOB(loss_ppm, 0, 1000000, "of packets, each for itself"),
    KNOB(jitter_ppm, 0, 1000000, "of packets, held back"),
    KNOB(jitter_us, 0, 1000000, "at most, uniform; what is held back is overtaken"),
    KNOB(mode, UT_BOUNDED, UT_RELIABLE, "1 bounded, 2 best effort, 3 reliable"),
    KNOB(algorithm, 0, UT_ALGORITHMS_END - 1, "0 default, 1 TAR, 2 ring, 3 BCube, 4 parameter server"),
    KNOB(congestion, 0, UT_CC_END - 1, "0 default"),
    KNOB(hadamard, 0, UT_HADAMARD_END - 1, "0 default"),
    KNOB(incast, 0, 15, "senders at once, 0 default"),
    KNOB(early_percent, 0, 100, "x, 0 default"),
    KNOB(t_b_us, 0, UINT64_MAX, "bound of a stage; 0 measured, 2^64-1 off"),
    KNOB(t_c_us, 0, UINT64_MAX, "expected time of a stage; 0 measured, 2^64-1 off"),
    KNOB(timer_start, 0, UT_TIMER_END - 1, "1 when all have called, the default; 2 own call"),
    KNOB(deadline_us, 1, UINT64_MAX / 2000, "of an op"),
    KNOB(gap_us, 0, 1000000, "between two ops of a rank"),
    KNOB(apart_us, 0, 1000000, "more of that, at most: ranks call apart"),
    KNOB(mark, 0, 64 << 20, "bytes queued at the switch above which packets are marked; 0 never"),
};
enum { KNOBS = sizeof knobs / sizeof knobs[0] };

static int wrong_use(const char *argument)
{
    fprintf(stderr, "study: %s is not name=number with one of these names:\n", argument);
    for (unsigned i = 0; i < KNOBS; i++)
        fprintf(stderr, "  %-14s %" PRIu64 " to %" PRIu64 ": %s\n", knobs[i].name, knobs[i].low, knobs[i].high,
                knobs[i].what);
    return 2;
}

/* Reads "name=number" into |s|; false if it is not one. */
static bool take(study *s, const char *argument)
{
    const char *equals = strchr(argument, '=');
    for (unsigned i = 0; equals && i < KNOBS; i++) {
        size_t length = (size_t)(equals - argument);
        if (strlen(knobs[i].name) != length || strncmp(knobs[i].name, argument, length) != 0)
            continue;
        char *end;
        uint64_t value = strtoull(equals + 1, &end, 10);
        if (equals[1] < '0' || equals[1] > '9' || *end || value < knobs[i].low || value > knobs[i].high)
            return false;
        memcpy((char *)s + knobs[i].offset, &value, sizeof value);
        return true;
    }
    return false;
}

static uint64_t ns_of(uint64_t us)
{
    return us == UINT64_MAX ? UT_NEVER : us * UT_US;
}

static void plan_of(const study *s, sim_plan *p)
{
    sim_plan_perf(p, (uint32_t)s->loss_ppm);
    p->hosts = (uint32_t)s->hosts;
    for (uint32_t h = 0; h < p->hosts; h++)
        p->clock[h] = (h + 1) * UT_SECOND;
    p->rate_up = p->rate_down = s->rate_mbit * MBIT;
    p->queue_down = s->queue_bytes;
    p->delay_min = p->delay_max = s->delay_us * UT_US;
    p->reorder = (uint32_t)s->jitter_ppm;
    p->reorder_by = s->jitter_us * UT_US + 1;
    p->mark_above = s->mark ? s->mark : UINT64_MAX;
    sim_job_plan *j = &p->job[0];
    j->hosts = p->hosts;
    for (uint32_t i = 0; i < j->hosts; i++) {
        j->host[i] = (uint8_t)i;
        j->local[i] = 1;
    }
    j->ops = (uint32_t)s->ops;
    j->compute_min = UT_MAX2(s->gap_us, (uint64_t)1) * UT_US;
    j->compute_max = j->compute_min + s->apart_us * UT_US;
    j->options = (ut_job_options){.algorithm = (uint8_t)s->algorithm,
                                  .congestion = (uint8_t)s->congestion,
                                  .hadamard = (uint8_t)s->hadamard,
                                  .incast = (uint8_t)s->incast,
                                  .early_percent = (uint8_t)s->early_percent,
                                  .timer_start = (uint8_t)s->timer_start,
                                  .t_b_ns = ns_of(s->t_b_us),
                                  .t_c_ns = ns_of(s->t_c_us)};
    for (uint32_t k = 0; k < j->ops + SIM_CALM_OPS; k++)
        j->op[k] = (sim_op){.count = k < j->ops ? s->bytes / 4 : 1000,
                            .dtype = UT_FLOAT32,
                            .redop = UT_SUM,
                            .mode = k < s->warm  ? UT_RELIABLE
                                    : k < j->ops ? (uint8_t)s->mode
                                                 : UT_RELIABLE,
                            .deadline = k < s->warm || k >= j->ops ? 600 * UT_SECOND : s->deadline_us * UT_US,
                            .odd_rank = UINT32_MAX};
    j->bucket_max = UT_MAX2(s->bytes, (uint64_t)4000);
}

static void print_op(const sim_world *w, uint32_t op)
{
    printf("{\"op\":%u,\"hosts\":[", op);
    for (uint32_t h = 0; h < w->plan.hosts; h++) {
        const sim_outcome *outcome = &w->job[0].outcome[op][h];
        const ut_receipt *r = &outcome->receipt;
        printf("%s{\"status\":%u,\"elapsed_us\":%.3f,\"expected\":%" PRIu64 ",\"missing\":%" PRIu64
               ",\"end\":[%u,%u],\"stage_us\":[%.3f,%.3f],\"t_b_us\":%u,\"t_c_us\":[%u,%u],\"incast\":%u}",
               h ? "," : "", outcome->known ? r->status : 0, (double)r->elapsed_ns / 1e3, r->bytes_expected,
               r->bytes_missing, r->stage_end[0], r->stage_end[1], (double)r->stage_ns[0] / 1e3,
               (double)r->stage_ns[1] / 1e3, r->t_b_us, r->t_c_us[0], r->t_c_us[1], r->incast);
    }
    printf("]}%s\n", op + 1 < w->plan.job[0].ops ? "," : "");
}

int sim_study(int argc, char **argv)
{
    study s = {.hosts = 4,
               .bytes = 262144,
               .ops = SIM_OPS - SIM_CALM_OPS,
               .rate_mbit = 1000,
               .queue_bytes = 1 << 20,
               .delay_us = 25,
               .mode = UT_BOUNDED,
               .deadline_us = 60000000,
               .gap_us = 1000};
    for (int i = 0; i < argc; i++)
        if (!take(&s, argv[i]))
            return wrong_use(argv[i]);
    sim_world *w = sim_alloc(sizeof *w);
    sim_plan *plan = sim_alloc(sizeof *plan);
    plan_of(&s, plan);
    sim_world_init(w, s.seed, plan, false);
    bool good = sim_world_run(w);
    printf("{\"failure\":\"");
    for (const char *c = w->failure; *c; c++)
        putchar(*c == '"' || *c == '\\' || *c < ' ' ? ' ' : *c);
    printf("\",\"sent\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"ops\":[\n", w->books.sent.packets, w->books.lost.packets);
    for (uint32_t op = 0; op < plan->job[0].ops; op++)
        print_op(w, op);
    printf("]}\n");
    sim_world_free(w);
    free(plan);
    free(w);
    return !good;
}
