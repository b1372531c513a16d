/* SPDX-License-Identifier: Apache-2.0 */
#include "core/op/timing.h"

uint32_t ut_size_class(uint64_t bytes)
{
    uint32_t class = 0, first = bytes & UT_TIMED_APART ? UT_CLASSES : 0;
    bytes &= ~UT_TIMED_APART;
    while (class + 1 < UT_CLASSES && bytes > UINT64_C(1) << (UT_CLASS_FIRST + class))
        class++;
    assert(first + class < 2 * UT_CLASSES);
    return first + class;
}

void ut_timing_init(ut_timing *t, uint32_t hosts, uint32_t self)
{
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    t->hosts = hosts;
    t->self = self;
}

void ut_timing_reset(ut_timing *t)
{
    for (uint32_t i = 0; i < 2 * UT_CLASSES; i++) {
        ut_class_times *c = &t->of[i];
        c->ops = c->samples[0] = c->samples[1] = 0;
        c->t_b = c->slower = 0;
        for (uint32_t h = 0; h < t->hosts; h++)
            c->t_c[0][h] = c->t_c[1][h] = 0;
    }
}

static uint32_t window_of(const ut_timing *t)
{
    return UT_WARM_UP_OPS * t->hosts;
}

static void add_sample(const ut_timing *t, ut_class_times *c, unsigned stage, ut_ns time)
{
    assert(stage < 2 && window_of(t) <= UT_STAGE_SAMPLES_MAX);
    c->sample_us[stage][c->samples[stage]++ % window_of(t)] = (uint32_t)UT_MIN2(UT_MAX2(time / UT_US, 1), UINT32_MAX);
}

static ut_ns agreed(const ut_timing *t, const ut_class_times *c, unsigned stage)
{
    ut_ns known[UT_HOSTS_MAX];
    uint32_t n = 0;
    for (uint32_t h = 0; h < t->hosts; h++)
        if (c->t_c[stage][h])
            known[n++] = c->t_c[stage][h];
    return ut_median(known, n);
}

void ut_timing_in_force(const ut_timing *t, const ut_job_options *options, uint64_t bytes, ut_times *ret)
{
    const ut_class_times *own = &t->of[ut_size_class(bytes)], *c = own;
    const ut_class_times *end = t->of + (bytes & UT_TIMED_APART ? 2 : 1) * UT_CLASSES;
    while (c->t_b == 0 && c + 1 < end)
        c++;
    ret->t_b = options->t_b_ns ? options->t_b_ns : c->t_b;
    ret->own = options->t_b_ns || c == own;
    for (unsigned stage = 0; stage < 2; stage++) {
        ret->field[stage] = ut_timeout_field(own->t_c[stage][t->self]);
        ret->t_c[stage] = options->t_c_ns ? options->t_c_ns : c->t_b ? agreed(t, own, stage) : 0;
    }
}

void ut_timing_heard(ut_timing *t, uint64_t bytes, unsigned stage, uint32_t host, uint16_t field)
{
    assert(stage < 2 && host < t->hosts);
    if (field == 0)
        return;
    ut_class_times *c = &t->of[ut_size_class(bytes)];
    ut_ns time = ut_timeout_time(field);
    c->t_c[stage][host] = time;
    add_sample(t, c, stage, time);
}

/* Over both stages and all hosts. */
static void find_t_b(const ut_timing *t, ut_class_times *c, bool warming_up)
{
    uint32_t all[2 * UT_STAGE_SAMPLES_MAX], n = 0;
    for (unsigned stage = 0; stage < 2; stage++) {
        uint32_t kept = UT_MIN2(c->samples[stage], window_of(t));
        memcpy(all + n, c->sample_us[stage], kept * sizeof *all);
        n += kept;
    }
    if (n == 0)
        return;
    c->t_b = (warming_up ? ut_percentile(all, n, UT_T_B_PERCENT) : ut_t_b_unrepaired(all, n)) * UT_US;
}

/* t_C begins at the median of the warm-up. */
static void begin_t_c(const ut_timing *t, ut_class_times *c, unsigned stage)
{
    uint32_t times[UT_STAGE_SAMPLES_MAX], n = UT_MIN2(c->samples[stage], window_of(t));
    memcpy(times, c->sample_us[stage], n * sizeof *times);
    c->t_c[stage][t->self] = ut_percentile(times, n, 50) * UT_US;
}

/* What a stage that ran into its bound says of t_B; 0 for nothing. It is not known how long it would have taken; but
 * when most senders did not come through, the network has become slower for good, or for now, and with samples that t_B
 * itself bounds it could never follow. A few slow hosts move nothing: they are what t_B is there to cut off. */
static ut_ns grown(const ut_times *in_force, const ut_stage_time *how)
{
    if (!how->most_slow || in_force->t_b == 0 || how->elapsed < in_force->t_b)
        return 0; /* the last: it was the deadline that ended it, or t_B is off */
    return ut_t_c_sample(UT_CAME_EARLY, how->elapsed, 2 * in_force->t_b, how->received, how->total);
}

/* At once, and not as one sample of many: the more hosts there are, the less a host's own would weigh. Times from
 * before tell nothing of the network as it is now. */
static void follow_slower(ut_class_times *c)
{
    if (c->t_b == 0 || c->slower <= c->t_b)
        return;
    c->t_b = c->slower;
    c->samples[0] = c->samples[1] = 0;
}

void ut_timing_measured(ut_timing *t, uint64_t bytes, unsigned stage, const ut_times *in_force,
                        const ut_stage_time *how)
{
    assert(stage < 2);
    ut_class_times *c = &t->of[ut_size_class(bytes)];
    bool bounded = in_force->t_b != 0 && in_force->t_b != UT_NEVER;
    if (how->came == UT_CAME_EXPIRED && !bounded)
        return; /* it took longer than this, and there is nothing to say how much */
    ut_ns sample = ut_t_c_sample(how->came, how->elapsed, in_force->t_b, how->received, how->total);
    sample = UT_MAX2(sample, 1); /* 0 means that it is not known */
    if (how->came != UT_CAME_EXPIRED)
        add_sample(t, c, stage, sample);
    else
        c->slower = UT_MAX2(c->slower, grown(in_force, how));
    c->t_c[stage][t->self] = c->t_b == 0 ? sample : ut_t_c_next(sample, agreed(t, c, stage));
    c->ops += stage == 1;
    if (c->t_b == 0 && c->ops >= UT_WARM_UP_OPS && c->samples[0] && c->samples[1]) {
        find_t_b(t, c, true);
        begin_t_c(t, c, 0);
        begin_t_c(t, c, 1);
    } else if (c->t_b && stage == 1 && c->ops % UT_REFRESH_OPS == 0) {
        find_t_b(t, c, false);
    }
    if (stage == 1) {
        follow_slower(c);
        c->slower = 0;
    }
}
