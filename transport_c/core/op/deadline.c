/* SPDX-License-Identifier: Apache-2.0 */
#include "core/op/deadline.h"

uint16_t ut_timeout_field(ut_ns time)
{
    ut_ns unit = UT_TIMEOUT_UNIT_US * UT_US;
    if (time >= UINT16_MAX * unit)
        return UINT16_MAX;
    return (uint16_t)((time + unit - 1) / unit);
}

ut_ns ut_timeout_time(uint16_t field)
{
    return field * (UT_TIMEOUT_UNIT_US * UT_US);
}

/* Hoare's selection: afterwards v[k] is what it would be if v were sorted. */
static uint32_t select_rank(uint32_t *v, uint32_t n, uint32_t k)
{
    assert(k < n);
    uint32_t from = 0, to = n - 1;
    while (from < to) {
        uint32_t pivot = v[from + (to - from) / 2], a = from, b = to;
        for (;;) {
            while (v[a] < pivot)
                a++;
            while (v[b] > pivot)
                b--;
            if (a >= b)
                break;
            uint32_t swap = v[a];
            v[a++] = v[b];
            v[b--] = swap;
        }
        if (k <= b)
            to = b;
        else
            from = b + 1;
    }
    return v[k];
}

uint32_t ut_percentile(uint32_t *samples, uint32_t n, uint32_t percent)
{
    assert(n >= 1 && percent >= 1 && percent <= 100);
    uint64_t rank = ((uint64_t)n * percent + 99) / 100;
    return select_rank(samples, n, (uint32_t)rank - 1);
}

uint32_t ut_t_b_unrepaired(uint32_t *samples, uint32_t n)
{
    const uint64_t lower = ut_percentile(samples, n, 25), upper = ut_percentile(samples, n, 75);
    const uint64_t percentile = ut_percentile(samples, n, UT_T_B_PERCENT);
    const uint64_t fence = UT_MIN2(upper + UT_T_B_FENCE * (upper - lower), UT_T_B_SPREAD * percentile);
    return (uint32_t)UT_MIN2(UT_MAX2(percentile, fence), (uint64_t)UINT32_MAX);
}

ut_ns ut_median(ut_ns *values, uint32_t n)
{
    if (n == 0)
        return 0;
    for (uint32_t i = 1; i < n; i++) { /* one value per host: few, and often nearly equal */
        ut_ns v = values[i];
        uint32_t k = i;
        for (; k > 0 && values[k - 1] > v; k--)
            values[k] = values[k - 1];
        values[k] = v;
    }
    ut_ns low = values[(n - 1) / 2], high = values[n / 2];
    assert(low <= high);
    return low + (high - low) / 2;
}

ut_ns ut_t_c_sample(enum ut_stage_came came, ut_ns elapsed, ut_ns t_b, uint64_t received, uint64_t total)
{
    if (came == UT_CAME_COMPLETE)
        return elapsed;
    ut_ns bound = t_b ? t_b : UT_NEVER;
    if (came == UT_CAME_EXPIRED)
        return t_b ? t_b : elapsed;
    if (received == 0)
        return t_b ? t_b : elapsed;
    double sample = (double)elapsed * (double)total / (double)received;
    return sample >= (double)bound ? bound : (ut_ns)sample;
}

ut_ns ut_t_c_next(ut_ns sample, ut_ns before)
{
    if (before == 0)
        return sample;
    return sample / 100 * UT_T_C_ALPHA_PERCENT + before / 100 * (100 - UT_T_C_ALPHA_PERCENT);
}

ut_ns ut_early_wait(ut_ns t_c, uint32_t percent, ut_ns pause)
{
    return UT_MAX2(t_c / 100 * percent, (ut_ns)UT_TIMEOUT_UNIT_US * UT_US) + pause;
}

/* What each stage is expected to need at most; false where that is not known. Stages overlap, so that one alone may
 * seem to need less than it does. */
static bool needs(const ut_ns t_c[2], ut_ns ret[2])
{
    if (t_c[0] == 0 || t_c[1] == 0)
        return false;
    ut_ns half = t_c[0] / 2 + t_c[1] / 2;
    for (unsigned stage = 0; stage < 2; stage++)
        ret[stage] = UT_MAX2(t_c[stage], half) / 4 * 5;
    return true;
}

ut_ns ut_stage1_cut(ut_ns length, const ut_ns t_c[2])
{
    ut_ns need[2];
    if (!needs(t_c, need))
        return length / 2;
    if (length / 2 >= need[0] / 2 + need[1] / 2)
        return length - UT_MIN2(need[1], length);
    return (ut_ns)((double)length * (double)need[0] / (double)(need[0] + need[1]));
}

ut_ns ut_gather_cut(ut_ns length, const ut_ns t_c[2])
{
    ut_ns need[2], cut = ut_stage1_cut(length, t_c);
    return needs(t_c, need) && need[0] < cut / 2 ? cut - need[0] : cut / 2;
}

ut_ns ut_adaptive_deadline(ut_ns t_b)
{
    return 2 * 4 * UT_MIN2(t_b, UT_SECOND * 3600) + UT_SECOND;
}

bool ut_repair_in_time(ut_ns left, ut_ns srtt, ut_ns margin, uint64_t backlog_bytes, uint64_t bytes_per_s)
{
    double queue = bytes_per_s ? (double)backlog_bytes * 1e9 / (double)bytes_per_s : 0;
    return (double)left > (double)srtt + queue + (double)margin;
}
