/* SPDX-License-Identifier: Apache-2.0
 *
 * Fingerprints of contributions to coded jobs, by group and step (coded.h). Where an element has no room for the digits
 * of all groups, the elements take turns, each for some of them. All values are exact in the dtype, and so are their
 * sums; an estimate is a sum that the core multiplied once and rounded once, and so is its like here.
 */
#include "ext/coded/code.h"
#include "sim/coded/coded.h"

enum { BITS_OF_DIGIT = 2, UNITS = 13 };

typedef struct form {
    uint64_t seed; /* of the step */
    uint32_t groups, per, turns;
    uint8_t dtype;
    size_t element;
} form;

static form form_of(const sim_world *w, uint32_t job, uint64_t step)
{
    const sim_job_plan *j = &w->plan.job[job];
    uint32_t groups = sim_coded_groups(j), most = j->part.dtype == UT_FLOAT32 ? 10 : 20;
    form f = {.seed = sim_mix(w->seed ^ sim_mix(step << 8 | job)),
              .groups = groups,
              .turns = (groups + most - 1) / most,
              .dtype = j->part.dtype,
              .element = ut_dtype_bytes(j->part.dtype)};
    f.per = (groups + f.turns - 1) / f.turns;
    return f;
}

static uint64_t unit_of(const form *f, uint64_t element)
{
    return 1 + sim_mix(f->seed ^ element * 0x9e3779b97f4a7c15u) % UNITS;
}

static void put_real(const form *f, double value, void *out)
{
    float single = (float)value;
    memcpy(out, f->dtype == UT_FLOAT32 ? (void *)&single : (void *)&value, f->element);
}

/* ---- linear codes, and trees ---- */

static double number_of(const form *f, uint64_t element, uint64_t part)
{
    return (double)(1 + sim_mix(f->seed ^ element * 0x9e3779b97f4a7c15u ^ (part + 1) << 48) % UNITS);
}

typedef struct place {
    const form *form;
    uint64_t element;
} place;

static double number_at(const void *context, uint64_t part)
{
    const place *at = context;
    return number_of(at->form, at->element, sim_mix(part));
}

static void fill_by_value(const sim_job_plan *j, const form *f, uint32_t host, void *out)
{
    double code[SIM_HOSTS * SIM_HOSTS];
    sim_coded_encoding(j, code);
    for (uint64_t i = 0; i < j->part.count; i++) {
        double value = 0;
        place at = {f, i};
        for (uint32_t part = 0; part < j->hosts && !j->options.children; part++)
            value += code[host * j->hosts + part] * number_of(f, i, part);
        if (j->options.children)
            value = sim_coded_tree_gives(j, code, host, number_at, &at);
        put_real(f, value, (uint8_t *)out + i * f->element);
    }
}

/* What the rounding of each contribution can grow to, and what the coefficients leave. */
static bool read_by_value(const sim_job_plan *j, const form *f, uint64_t from, uint64_t to, const uint8_t *values,
                          sim_wrong *wrong)
{
    for (uint64_t i = from; i < to; i++) {
        double sum = 0, is = sim_code_real(f->dtype, values + i * f->element);
        place at = {f, i};
        for (uint32_t part = 0; part < j->hosts && !j->options.children; part++)
            sum += number_of(f, i, part);
        if (j->options.children)
            sum = sim_coded_tree_sum(j, number_at, &at);
        double most = sum * (f->dtype == UT_FLOAT32 ? UT_CODE_AMPLIFICATION_MAX * 0x1p-23 : 1e-8);
        *wrong = (sim_wrong){i, "is not the sum over all parts of the data"};
        if (!(is > sum - most && is < sum + most))
            return false;
    }
    return true;
}

/* ---- groups ---- */

void sim_coded_fill(const sim_world *w, uint32_t job, uint32_t host, uint64_t step, void *out)
{
    const sim_job_plan *j = &w->plan.job[job];
    form f = form_of(w, job, step);
    uint32_t group = sim_coded_group(j, host);
    if (sim_coded_by_value(j)) {
        fill_by_value(j, &f, host, out);
        return;
    }
    for (uint64_t i = 0; i < j->part.count; i++) {
        bool in = group / f.per == i % f.turns;
        int64_t value = in ? (int64_t)(unit_of(&f, i) << BITS_OF_DIGIT * (group % f.per)) : 0;
        sim_code_put(f.dtype, value, 1, (uint8_t *)out + i * f.element);
    }
}

/* |sum| as an op returns it if |present| of all groups are in it. */
static void put(const form *f, double sum, uint32_t present, void *out)
{
    put_real(f, present < f->groups ? sum * ((double)f->groups / (double)present) : sum, out);
}

/* Reads one element of a result with |present| groups. */
static bool read_one(const form *f, uint64_t i, uint32_t present, const void *value, uint64_t *ret, const char **why)
{
    double unit = (double)unit_of(f, i), x = sim_code_real(f->dtype, value) / unit;
    double sum = x * (double)present / (double)f->groups;
    uint8_t again[8];
    *why = "is no multiple of the step's number: of another step, or of none";
    if (!(sum > -0.5 && sum < 9e15))
        return false;
    uint64_t digits = (uint64_t)(sum + 0.5);
    put(f, (double)digits * unit, present, again);
    if (memcmp(again, value, f->element) != 0)
        return false;
    for (uint32_t k = 0; k < f->per; k++, digits >>= BITS_OF_DIGIT) {
        uint32_t digit = digits & 3, group = (uint32_t)(i % f->turns) * f->per + k;
        if (digit > 1 || (digit && group >= f->groups)) {
            *why = digit > 1 ? "has a group in it more than once" : "has a group in it that there is not";
            return false;
        }
        *ret |= (uint64_t)digit << group;
    }
    *why = "has more in it than all groups";
    return digits == 0;
}

/* Whether all elements agree that |present| groups, and which, are in the slot. */
static bool read_slot(const form *f, uint64_t from, uint64_t to, uint32_t present, const uint8_t *values, sim_held *ret,
                      sim_wrong *wrong)
{
    uint64_t seen = 0;
    *ret = (sim_held){0, 0};
    for (uint64_t i = from; i < to; i++) {
        uint64_t in = 0, members = sim_first(f->per) << (i % f->turns) * f->per & sim_first(f->groups);
        *wrong = (sim_wrong){i, NULL};
        if (!read_one(f, i, present, values + i * f->element, &in, &wrong->reason))
            return false;
        wrong->reason = "has other groups in it than its neighbours";
        if ((seen & members) && (ret->ranks & members) != in)
            return false;
        seen |= members;
        ret->ranks |= in;
    }
    ret->unsure = sim_first(f->groups) & ~seen;
    wrong->reason = "has fewer groups in it than it was multiplied for";
    return sim_ones(ret->ranks) <= present && sim_ones(ret->ranks | ret->unsure) >= present;
}

bool sim_coded_read(const sim_world *w, uint32_t job, uint64_t step, uint64_t from, uint64_t to, const void *values,
                    uint64_t may, uint64_t *ret_counts, sim_wrong *wrong)
{
    form f = form_of(w, job, step);
    sim_wrong first = {0};
    *ret_counts = 0;
    if (sim_coded_by_value(&w->plan.job[job])) {
        *ret_counts = UINT64_C(1) << (f.groups - 1);
        return read_by_value(&w->plan.job[job], &f, from, to, values, wrong);
    }
    for (uint32_t present = f.groups; present > 0; present--) {
        sim_held held;
        bool good = read_slot(&f, from, to, present, values, &held, wrong);
        if (good && (held.ranks & ~may)) {
            *wrong = (sim_wrong){from, "holds groups that did not give"};
            good = false;
        }
        first = present == f.groups ? *wrong : first;
        *ret_counts |= (uint64_t)good << (present - 1);
        if (good && !held.unsure)
            return true;
    }
    *wrong = first;
    return *ret_counts || sim_all_bytes((const uint8_t *)values + from * f.element, (to - from) * f.element, 0);
}
