/* SPDX-License-Identifier: Apache-2.0
 *
 * Fingerprints of sparse entries. A unit (what an index names) belongs to a group of ranks, some of which have an entry
 * for it: who does is drawn by unit and rank. Rank r of the group gives prime * 4^r, so the sum reads like the sums of
 * code.c. A zero says that none of those is in it that gave something; of the others it tells nothing.
 *
 * All values and sums are exact in the form in which they travel, and averages are rounded as it rounds. Answers in
 * int8 are rounded at random, by less than a step of their block: values are then so few that the nearest sum is the
 * right one. Averages may have another divisor than their neighbours, and the step may be larger than they are: an
 * element then holds one rank at most, and tells of its divisor as much as the step allows. What tells to the bit are
 * tests/c/kernels/test_block_int8.c and tests/c/op/test_sparse_down.c.
 */
#include "sim/sparse/sparse.h"

#include "kernels/block.h"

static const uint8_t prime[] = {5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61};

/* Ranks of a group, and the largest prime, so that sums are exact: float8 has four bits for each contribution, and its
 * sums travel as float16. */
static void draw_room(const sim_job_plan *j, sim_entries *e)
{
    static const uint8_t most[] = {
        [UT_VALUE_FLOAT32] = 7, [UT_VALUE_FLOAT16] = 3, [UT_VALUE_BFLOAT16] = 2, [UT_VALUE_FLOAT8] = 3};
    static const uint8_t prime_most[] = {
        [UT_VALUE_FLOAT32] = 61, [UT_VALUE_FLOAT16] = 61, [UT_VALUE_BFLOAT16] = 11, [UT_VALUE_FLOAT8] = 13};
    bool alone = true; /* the sum of ranks of one host is rounded, too */
    for (uint32_t h = 0; h < j->hosts; h++)
        alone = alone && j->local[h] == 1;
    uint32_t per = e->form == UT_VALUE_FLOAT8 && !alone ? 1 : most[e->form], largest = prime_most[e->form];
    if (e->rounded) {
        per = e->redop == UT_AVG ? 1 : UT_MIN2(per, 3u);
        largest = e->redop == UT_AVG ? prime[0] : prime[1];
    }
    e->groups = (e->ranks + per - 1) / per;
    e->per = (e->ranks + e->groups - 1) / e->groups;
    while (e->primes < sizeof prime && prime[e->primes] <= largest)
        e->primes++;
    /* A scale is the largest magnitude by 127, rounded up by a sixteenth at most. */
    const double sum = largest * (double)(((UINT64_C(1) << 2 * e->per) - 1) / 3);
    e->near = e->rounded ? sum / 127 * 17 / 16 * 1.001 : 0;
}

sim_entries sim_entries_of(const sim_world *w, uint32_t job, uint64_t op_seq, const sim_op *op)
{
    const sim_job_plan *j = &w->plan.job[job];
    sim_entries e = {.bits = sim_mix(w->seed ^ sim_mix(op_seq ^ (uint64_t)job << 56)),
                     .units = op->count / op->group,
                     .ranks = sim_ranks_of(j),
                     .hosts = j->hosts,
                     .ppm = op->sparse_ppm,
                     .group = op->group,
                     .form = op->form,
                     .rounded = op->down && j->hosts > 1,
                     .redop = op->redop,
                     .spread = op->spread,
                     .nonfinite = op->nonfinite};
    draw_room(j, &e);
    return e;
}

static uint64_t draw(const sim_entries *e, uint64_t at, uint64_t purpose)
{
    return sim_mix(e->bits ^ sim_mix(purpose) ^ at * 0x9e3779b97f4a7c15u);
}

enum { OF_RANK = 1, OF_PART, OF_UNIT, OF_ELEMENT, OF_ENTRY /* + the rank */ };

/* Parts per million of the entries that could be there. */
static uint64_t density(const sim_entries *e, uint64_t unit, uint32_t rank)
{
    switch (e->spread) {
    case SIM_HEAD:
        return unit * 8 < e->units ? 8 * (uint64_t)e->ppm : 0;
    case SIM_PATCHES:
        return draw(e, unit * 16 / e->units, OF_PART) & 1 ? 2 * (uint64_t)e->ppm : 0;
    case SIM_FEW_RANKS:
        return draw(e, rank, OF_RANK) % 3 ? e->ppm : 0;
    default:
        return e->ppm;
    }
}

static uint32_t first_rank(const sim_entries *e, uint64_t unit)
{
    return (uint32_t)(draw(e, unit, OF_UNIT) % e->groups) * e->per;
}

static bool holds(const sim_entries *e, uint64_t unit, uint32_t rank)
{
    return draw(e, unit, OF_ENTRY + rank) % 1000000 < density(e, unit, rank);
}

uint64_t sim_entries_holders(const sim_entries *e, uint64_t unit)
{
    uint64_t mask = 0;
    uint32_t first = first_rank(e, unit);
    for (uint32_t r = first; r < UT_MIN2(first + e->per, e->ranks); r++)
        mask |= holds(e, unit, r) ? sim_bit(r) : 0;
    return mask;
}

/* What a digit of |element| counts; 0 where it is Inf for all who have it. */
static int64_t unit_of(const sim_entries *e, uint64_t element)
{
    uint64_t bits = draw(e, element, OF_ELEMENT);
    int64_t x = prime[bits % e->primes];
    if (e->nonfinite && (bits >> 20) % 13 == 0)
        return 0;
    return bits >> 63 ? -x : x;
}

static const uint32_t infinity = 0x7f800000;

/* |digits| of the element's unit by |n|, as it comes. */
static void put(const sim_entries *e, int64_t unit, int64_t digits, uint32_t n, void *out)
{
    static const uint8_t dtype[] = {UT_FLOAT32, UT_FLOAT16, UT_BFLOAT16, UT_FLOAT16 /* sums of float8 */};
    unsigned as = e->hosts > 1 ? dtype[e->form] : UT_FLOAT32; /* of a host alone nothing travels */
    uint8_t there[8];
    sim_code_put(as, unit * digits, n ? n : 1, there);
    float x = (float)sim_code_real(as, there);
    memcpy(out, &x, sizeof x);
}

uint64_t sim_entries_fill(const sim_entries *e, uint32_t rank, uint8_t *out)
{
    uint32_t n = 0;
    uint64_t at = 0;
    for (uint32_t unit = 0; unit < e->units; unit++)
        if (first_rank(e, unit) / e->per == rank / e->per && holds(e, unit, rank))
            memcpy(out + 4 * (uint64_t)n++, &unit, 4);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t unit;
        memcpy(&unit, out + 4 * (uint64_t)i, 4);
        for (uint32_t k = 0; k < e->group; k++, at++) {
            int64_t x = unit_of(e, (uint64_t)unit * e->group + k);
            float value = (float)(x * (INT64_C(1) << 2 * (rank % e->per)));
            memcpy(out + 4 * (n + at), x ? (const void *)&value : &infinity, 4);
        }
    }
    return n;
}

/* ---- from values to ranks ---- */

/* What an element tells of its |holders| if it is a sum (n = 0) or an average of |n| ranks. */
static bool tell(const sim_entries *e, uint64_t element, uint64_t holders, const float *value, uint32_t n,
                 sim_told *ret)
{
    uint32_t first = first_rank(e, element / e->group);
    int64_t unit = unit_of(e, element);
    float again;
    *ret = (sim_told){.members = holders};
    if (*value == 0) {
        ret->reason = "is minus zero";
        return !__builtin_signbit(*value);
    }
    ret->reason = "is not zero, and nobody gave an entry";
    if (holders == 0)
        return false;
    if (unit == 0) {
        ret->reason = "is finite, and is not for anybody";
        ret->members = ret->ranks = sim_ones(holders) == 1 ? holders : 0;
        return memcmp(value, &infinity, 4) == 0 || (e->rounded && *value != *value);
    }
    double real = (double)*value * (n ? n : 1) / (double)unit;
    ret->reason = "is no sum of what ranks gave: data of another op, another place, or none";
    if (!(real > 0 && real < 9e15))
        return false;
    int64_t digits = (int64_t)(real + 0.5);
    if (e->rounded && n)
        digits = 1;
    put(e, unit, digits, n, &again);
    const double wrong = e->rounded ? (double)*value - (double)unit * (double)digits / (n ? n : 1) : 0;
    if ((!e->rounded && memcmp(&again, value, 4) != 0) || !(wrong <= e->near && -wrong <= e->near) ||
        digits >> 2 * e->per)
        return false;
    for (uint32_t r = 0; r < e->per; r++) {
        ret->ranks |= (uint64_t)(digits >> 2 * r & 3 ? 1 : 0) << (first + r);
        ret->reason = "holds a rank more than once";
        if ((digits >> 2 * r & 3) > 1)
            return false;
    }
    ret->reason = "holds a rank that gave no entry";
    return !(ret->ranks & ~holders);
}

/* The granule, if it holds the average of |n| ranks (0: a sum). */
static bool read_as(const sim_entries *e, uint64_t from, uint64_t to, const float *values, uint32_t n, sim_held *ret,
                    sim_wrong *wrong)
{
    uint64_t known = 0, holders = 0;
    *ret = (sim_held){0, 0};
    for (uint64_t i = from; i < to; i++) {
        sim_told told;
        if (i == from || i % e->group == 0)
            holders = sim_entries_holders(e, i / e->group);
        bool good = tell(e, i, holders, &values[i], n, &told);
        if (good && (told.ranks ^ ret->ranks) & told.members & known) {
            told.reason = "holds other ranks than the elements of its granule before it";
            good = false;
        }
        if (!good) {
            if (i >= wrong->element)
                *wrong = (sim_wrong){i, told.reason};
            return false;
        }
        known |= told.members;
        ret->ranks |= told.ranks;
    }
    ret->unsure = sim_first(e->ranks) & ~known;
    return true;
}

bool sim_entries_read(const sim_entries *e, uint64_t from, uint64_t to, const float *values, sim_held *ret,
                      sim_wrong *wrong)
{
    bool any = false, average = e->redop == UT_AVG;
    uint64_t always = UINT64_MAX, sometimes = 0;
    *wrong = (sim_wrong){from, "holds nobody's contribution"};
    for (uint32_t n = average; n <= (average ? e->ranks : 0); n++) {
        sim_held held;
        if (!read_as(e, from, to, values, n, &held, wrong))
            continue;
        uint32_t sure = sim_ones(held.ranks), most = sim_ones(held.ranks | held.unsure);
        if (average && (sure > n || most < n)) {
            *wrong = (sim_wrong){from, "is divided by another number than that of the ranks in it"};
            continue;
        }
        if (average && most == n)
            held.ranks |= held.unsure;
        any = any || held.ranks || held.unsure;
        always &= held.ranks;
        sometimes |= average && sure == n ? held.ranks : held.ranks | held.unsure;
    }
    *ret = (sim_held){always, sometimes & ~always};
    return any;
}
