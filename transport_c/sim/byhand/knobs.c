/* SPDX-License-Identifier: Apache-2.0
 *
 * The knobs of a world by hand, and the plan that they make.
 */
#include "sim/byhand/study.h"

#include "kernels/block.h"

#include <stdlib.h>

#define MBIT UINT64_C(125000) /* bytes per second */

typedef struct knob {
    const char *name;
    size_t offset;
    uint64_t low, high;
    const char *what;
} knob;

#define KNOB(field, low, high, what) {#field, offsetof(sim_study, field), low, high, what}
static const knob knobs[] = {
    KNOB(seed, 0, UINT64_MAX, "of the network"),
    KNOB(hosts, 2, SIM_HOSTS, "of the job, one rank each"),
    KNOB(bytes, 4, 64 << 20, "of a bucket of float32"),
    KNOB(ops, 1, SIM_OPS_FAULTS, "measured and warm-up together"),
    KNOB(warm, 0, SIM_OPS_FAULTS, "of them, first ones in reliable mode"),
    KNOB(rate_mbit, 1, 100000, "of every link"),
    KNOB(cap_mbit, 0, 100000, "that each job may send from a host (rate_bytes_per_s); 0 any"),
    KNOB(host_cap_mbit, 0, 100000, "that each host may send in all, with headers of IP and UDP; 0 any"),
    KNOB(queue_bytes, 2000, 64 << 20, "of the switch towards one host"),
    KNOB(delay_us, 0, 1000000, "one way"),
    KNOB(loss_ppm, 0, 1000000, "of packets, each for itself"),
    KNOB(jitter_ppm, 0, 1000000, "of packets, held back"),
    KNOB(jitter_us, 0, 1000000, "at most, uniform; what is held back is overtaken"),
    KNOB(slow_part, 1, 1000, "host 0's link has the rate divided by this"),
    KNOB(slower, 1, 1000, "all links have the rate divided by this ..."),
    KNOB(slower_us, 0, 1000000000, "... from then on"),
    KNOB(groups, 1, SIM_HOSTS, "of hosts behind links to a core; 1 switch for all"),
    KNOB(core_part, 1, 1000, "such a link has the rate of the hosts behind it together, divided by this"),
    KNOB(rival, 0, 1, "1: a TCP cubic flow of somebody else's shares the link to host 0"),
    KNOB(jobs, 1, SIM_JOBS, "alike and at the same time, on the same hosts"),
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
    KNOB(gap_us, 0, 600000000, "between two ops of a rank"),
    KNOB(apart_us, 0, 1000000, "more of that, at most: ranks call apart"),
    KNOB(mark, 0, 64 << 20, "bytes queued at the switch above which packets are marked; 0 never"),
    KNOB(packet_ns, 0, 1000000, "CPU for a packet that is received"),
    KNOB(sent_ns, 0, 1000000, "CPU for a packet that is sent"),
    KNOB(batch_ns, 0, 1000000, "CPU for a receive call, or a burst sent, besides that of its packets"),
    KNOB(turn_ns, 0, 1000000, "CPU for a turn of the host's thread"),
    KNOB(wake_us, 0, 1000000, "that a sleeping host wakes late, at most, uniform"),
    KNOB(firm, 0, 1, "1: it sleeps only when it has nothing to read, and what comes then does not hasten it"),
    KNOB(send_bytes, 2000, 64 << 20, "in the up-link at which a send blocks"),
    KNOB(send_us, 0, 1000000, "not 0: no more of them than the link takes in this time, but 32 KiB"),
    KNOB(light, 0, 1, "1, or --light: only times count; values are 0, no bytes are checked, nothing is traced"),
    KNOB(sparse_ppm, 0, 400000,
         "of its elements a rank gives, each for itself, to sparse allreduces; by --light alone"),
    KNOB(form, 0, UT_VALUE_FORMS_END - 1, "of their values: 0 float32, 1 float16, 2 bfloat16, 3 float8"),
    KNOB(rows, 0, 1, "the receipts of all ops are printed; not by --light"),
};
enum { KNOBS = sizeof knobs / sizeof knobs[0] };

void sim_study_knobs(FILE *out)
{
    for (unsigned i = 0; i < KNOBS; i++)
        fprintf(out, "  %-14s %" PRIu64 " to %" PRIu64 ": %s\n", knobs[i].name, knobs[i].low, knobs[i].high,
                knobs[i].what);
}

sim_study sim_study_default(void)
{
    return (sim_study){.hosts = 4,
                       .bytes = 262144,
                       .ops = SIM_OPS_FAULTS,
                       .rate_mbit = 1000,
                       .queue_bytes = 1 << 20,
                       .delay_us = 25,
                       .slow_part = 1,
                       .slower = 1,
                       .groups = 1,
                       .core_part = 1,
                       .jobs = 1,
                       .mode = UT_BOUNDED,
                       .deadline_us = 60000000,
                       .gap_us = 1000,
                       .packet_ns = 300,
                       .wake_us = 20,
                       .send_bytes = SIM_SEND_BUFFER,
                       .rows = 1};
}

static uint64_t value_of(const sim_study *s, const knob *k)
{
    uint64_t value;
    memcpy(&value, (const char *)s + k->offset, sizeof value);
    return value;
}

void sim_study_command(const sim_study *s, char *ret, size_t room)
{
    sim_study usual = sim_study_default();
    size_t at = 0;
    ret[0] = 0;
    for (unsigned i = 0; i < KNOBS && at < room; i++)
        if (value_of(s, &knobs[i]) != value_of(&usual, &knobs[i]))
            at += (size_t)snprintf(ret + at, room - at, "%s%s=%" PRIu64, at ? " " : "", knobs[i].name,
                                   value_of(s, &knobs[i]));
}

bool sim_study_take(sim_study *s, const char *argument)
{
    const char *equals = strchr(argument, '=');
    if (strcmp(argument, "--light") == 0) {
        s->light = 1;
        s->rows = 0;
        return true;
    }
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

static void plan_job(const sim_study *s, sim_job_plan *j)
{
    j->hosts = (uint32_t)s->hosts;
    for (uint32_t i = 0; i < j->hosts; i++) {
        j->host[i] = (uint8_t)i;
        j->local[i] = 1;
    }
    j->ops = (uint32_t)s->ops;
    j->rate = s->cap_mbit * MBIT;
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
                            .form = (uint8_t)s->form,
                            .group = s->light && s->sparse_ppm ? 1 : 0,
                            .sparse_ppm = (uint32_t)s->sparse_ppm,
                            .odd_rank = UINT32_MAX};
    j->bucket_max = UT_MAX2(s->bytes, (uint64_t)4000);
}

void sim_study_plan(const sim_study *s, sim_plan *p)
{
    sim_plan_perf(p, (uint32_t)s->loss_ppm);
    p->hosts = (uint32_t)s->hosts;
    for (uint32_t h = 0; h < p->hosts; h++)
        p->clock[h] = (h + 1) * UT_SECOND;
    p->rate_up = p->rate_down = s->rate_mbit * MBIT;
    p->host_rate = s->host_cap_mbit * MBIT;
    p->queue_down = s->queue_bytes;
    p->delay_min = p->delay_max = s->delay_us * UT_US;
    p->reorder = (uint32_t)s->jitter_ppm;
    p->reorder_by = s->jitter_us * UT_US + 1;
    p->mark_above = s->mark ? s->mark : UINT64_MAX;
    if (s->slow_part > 1)
        p->odd = (sim_odd){.host = 0, .rate_part = (uint32_t)s->slow_part};
    if (s->slower > 1) {
        p->slow_hosts = UINT64_MAX;
        p->slow_by = (uint32_t)s->slower;
        p->slow_from = s->slower_us * UT_US;
        p->slow_until = UT_NEVER;
    }
    p->packet_cost = s->packet_ns;
    p->sent_cost = s->sent_ns;
    p->batch_cost = s->batch_ns;
    p->wake_cost = s->turn_ns;
    p->wake_max = s->wake_us * UT_US;
    p->wake_firm = s->firm;
    p->send_buffer = s->send_bytes;
    p->send_time = s->send_us * UT_US;
    p->study = true;
    p->light = s->light;
    p->groups = (uint32_t)s->groups;
    p->rate_core = p->rate_up * UT_MAX2(s->hosts / s->groups, (uint64_t)1) / s->core_part;
    p->rival = s->rival;
    p->rival_after = (uint32_t)s->warm;
    p->jobs = (uint32_t)s->jobs;
    for (uint32_t j = 0; j < p->jobs; j++) {
        p->job[j].ahead = p->job[0].ahead;
        plan_job(s, &p->job[j]);
    }
}
