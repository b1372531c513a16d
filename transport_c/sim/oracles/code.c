/* SPDX-License-Identifier: Apache-2.0
 *
 * Fingerprint payloads. Rank r contributes unit * 4^r to each element of a sum, where the unit is a signed prime that
 * depends on job, op and element. A sum then reads like a base-4 number whose digits say how often each rank is in it:
 * digit 2 is a double fold, a remainder against the unit is data of another op or another place. An average is the same
 * sum over the number of ranks in it; it is read by looking for the set that gives exactly its bits.
 *
 * All values are exact in the dtype, so the order of folding cannot matter; that bounds the ranks of a job per dtype.
 * MIN, MAX and PROD take values from which the exact result is computed again.
 */
#include "sim/sim.h"

#include <stdlib.h>

static const uint16_t prime[] = {5,   7,   11,  13,  17,  19,  23,  29,  31,  37,  41,  43,  47,  53,  59,  61,
                                 67,  71,  73,  79,  83,  89,  97,  101, 103, 107, 109, 113, 127, 131, 137, 139,
                                 149, 151, 157, 163, 167, 173, 179, 181, 191, 193, 197, 199, 211, 223, 227, 229};
enum {
    PRIMES = sizeof prime / sizeof prime[0],
    MARKS = 1 + 2 * PRIMES, /* an element's mark: 0 where it is Inf for all, else its unit: which prime, which sign */
    BLOCK = 1024,           /* elements that are spelled out to be compared */
};

/* Bits of an integer that the dtype holds exactly. */
static unsigned exact_bits(unsigned dtype)
{
    switch (dtype) {
    case UT_FLOAT32:
        return 24;
    case UT_FLOAT64:
        return 53;
    case UT_FLOAT16:
        return 11;
    case UT_BFLOAT16:
        return 8;
    case UT_INT32:
        return 31;
    default:
        return 63;
    }
}

/* 64 values are summed, by every rank. */
static unsigned code_bits(const sim_code *code)
{
    return exact_bits(code->dtype) - (code->narrow ? 6 : 0);
}

/* Averages need the room that keeps two sets from rounding to the same quotient; sim_selftest proves these. */
uint32_t sim_code_ranks_max(unsigned dtype, unsigned redop)
{
    bool avg = redop == UT_AVG;
    switch (dtype) {
    case UT_FLOAT32:
        return avg ? 7 : 10;
    case UT_FLOAT64:
        return avg ? 10 : SIM_RANKS_DRAWN;
    case UT_FLOAT16:
        return 4;
    case UT_BFLOAT16:
        return avg ? 2 : 3;
    case UT_INT32:
        return avg ? 9 : 12;
    default:
        return avg ? 10 : SIM_RANKS_DRAWN;
    }
}

static uint64_t element_bits(const sim_code *code, uint64_t element)
{
    return sim_mix(code->seed ^ sim_mix(code->op_seq ^ (uint64_t)code->job << 56) ^ element * 0x9e3779b97f4a7c15u);
}

/* The primes that may be units: [first, last). */
static void bounds(const sim_code *code, uint32_t *ret_first, uint32_t *ret_last)
{
    uint64_t sum_max = 0;
    for (uint32_t r = 0; r < code->ranks; r++)
        sum_max = sum_max << 2 | 1;
    uint64_t limit = (UINT64_C(1) << code_bits(code)) / (sum_max ? sum_max : 1);
    uint64_t least = 0;
    if (code->redop == UT_AVG && (code->dtype == UT_INT32 || code->dtype == UT_INT64))
        least = (uint64_t)code->ranks * code->ranks;
    uint32_t first = 0, last = PRIMES;
    while (first + 1 < PRIMES && prime[first] <= least)
        first++;
    while (last > first + 1 && prime[last - 1] >= limit)
        last--;
    *ret_first = first;
    *ret_last = last;
}

static void reckon_marks(const sim_code *code, uint64_t from, uint64_t to, uint8_t *ret)
{
    uint32_t first, last;
    bounds(code, &first, &last);
    for (uint64_t i = from; i < to; i++) {
        uint64_t bits = element_bits(code, i);
        uint32_t at = first + (uint32_t)(bits % (last - first));
        bool infinite = code->nonfinite && code->dtype <= UT_BFLOAT16 && (bits >> 20) % 13 == 0;
        *ret++ = infinite ? 0 : (uint8_t)(1 + 2 * at + (bits >> 63));
    }
}

static uint8_t mark_of(const sim_code *code, uint64_t element)
{
    uint8_t mark;
    if (code->mark)
        return code->mark[element];
    reckon_marks(code, element, element + 1, &mark);
    return mark;
}

static int64_t unit_of_mark(uint8_t mark)
{
    int64_t unit = prime[(mark - 1) / 2];
    return (mark - 1) % 2 ? -unit : unit;
}

bool sim_code_nonfinite(const sim_code *code, uint64_t element)
{
    return code->nonfinite && mark_of(code, element) == 0;
}

/* All hosts and ranks ask for the same elements, so an op's marks are reckoned once. */
sim_code sim_code_of(sim_world *w, uint32_t job, uint64_t op_seq, const sim_op *op)
{
    sim_code code = {.seed = w->seed,
                     .job = job,
                     .ranks = w->job[job].ranks,
                     .op_seq = op_seq,
                     .dtype = op->dtype,
                     .redop = op->redop,
                     .nonfinite = op->nonfinite,
                     .narrow = w->plan.job[job].options.hadamard && op->dtype == UT_FLOAT32 && op->redop <= UT_AVG};
    sim_marks *m = &w->marks[job][op_seq % SIM_MARKS];
    const sim_code *had = &m->code;
    bool same = had->op_seq == op_seq && had->dtype == code.dtype && had->redop == code.redop &&
                had->nonfinite == code.nonfinite && had->narrow == code.narrow;
    if (!m->mark || !same || m->count < op->count) {
        free(m->mark);
        m->code = code;
        m->count = op->count;
        m->mark = sim_alloc(op->count);
        reckon_marks(&code, 0, op->count, m->mark);
    }
    code.mark = m->mark;
    return code;
}

/* What rank r brings. */
static int64_t value_of(const sim_code *code, uint64_t element, uint32_t rank)
{
    switch (code->redop) {
    case UT_MIN:
    case UT_MAX:
        return (int64_t)(sim_mix(element_bits(code, element) + rank) % 255) - 127;
    case UT_PROD: {
        static const int64_t factor[4] = {1, -1, 2, -2};
        return factor[sim_mix(element_bits(code, element) + rank) % 4];
    }
    default:
        return unit_of_mark(mark_of(code, element)) * (int64_t)(UINT64_C(1) << 2 * rank);
    }
}

static uint64_t spread(uint32_t ranks)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < SIM_RANKS; r++)
        if (ranks >> r & 1)
            sum |= UINT64_C(1) << 2 * r;
    return sum;
}

void sim_code_expect(const sim_code *code, uint64_t element, uint32_t ranks, void *out)
{
    if (sim_code_nonfinite(code, element)) {
        sim_code_put_infinite(code->dtype, out);
        return;
    }
    if (code->redop == UT_SUM || code->redop == UT_AVG) {
        int64_t sum = unit_of_mark(mark_of(code, element)) * (int64_t)spread(ranks);
        sim_code_put(code->dtype, sum, code->redop == UT_AVG ? __builtin_popcount(ranks) : 1, out);
        return;
    }
    int64_t total = 0;
    bool first = true;
    for (uint32_t r = 0; r < SIM_RANKS; r++) {
        if (!(ranks >> r & 1))
            continue;
        int64_t x = value_of(code, element, r);
        if (first)
            total = x;
        else if (code->redop == UT_PROD)
            total *= x;
        else if (code->redop == UT_MIN ? x < total : x > total)
            total = x;
        first = false;
    }
    sim_code_put(code->dtype, total, 1, out);
}

/* What |ranks| make of an element of each mark. */
typedef struct glossary {
    uint8_t value[MARKS][8];
} glossary;

static void write_glossary(const sim_code *code, uint32_t ranks, glossary *g)
{
    int64_t digits = (int64_t)spread(ranks), by = code->redop == UT_AVG ? __builtin_popcount(ranks) : 1;
    uint32_t first, last;
    bounds(code, &first, &last);
    if (code->nonfinite && code->dtype <= UT_BFLOAT16)
        sim_code_put_infinite(code->dtype, g->value[0]);
    for (uint32_t mark = 1 + 2 * first; mark < 1 + 2 * last; mark++)
        sim_code_put(code->dtype, unit_of_mark((uint8_t)mark) * digits, by, g->value[mark]);
}

/* Writes elements [from, to) as |ranks| make them; |g| if they are sums or averages. */
static void spell(const sim_code *code, const glossary *g, uint32_t ranks, uint64_t from, uint64_t to, uint8_t *out)
{
    size_t bytes = ut_dtype_bytes(code->dtype);
    if (!code->mark || code->redop > UT_AVG) {
        for (uint64_t i = from; i < to; i++, out += bytes)
            sim_code_expect(code, i, ranks, out);
        return;
    }
    const uint8_t *mark = code->mark + from;
    for (uint64_t i = 0; i < to - from; i++) /* the sizes one by one: each copy is one instruction */
        if (bytes == 4)
            memcpy(out + 4 * i, g->value[mark[i]], 4);
        else if (bytes == 8)
            memcpy(out + 8 * i, g->value[mark[i]], 8);
        else
            memcpy(out + 2 * i, g->value[mark[i]], 2);
}

void sim_code_fill(const sim_code *code, uint32_t rank, void *out, uint64_t count)
{
    glossary g;
    write_glossary(code, 1u << rank, &g);
    spell(code, &g, 1u << rank, 0, count, out);
}

uint64_t sim_code_agree(const sim_code *code, uint64_t from, uint64_t to, uint32_t ranks, const void *values)
{
    const uint8_t *at = values;
    size_t bytes = ut_dtype_bytes(code->dtype);
    uint8_t block[8 * BLOCK];
    glossary g;
    write_glossary(code, ranks, &g);
    for (uint64_t next; from < to; from = next) {
        next = UT_MIN2(from + BLOCK, to);
        spell(code, &g, ranks, from, next, block);
        if (memcmp(block, at + from * bytes, (next - from) * bytes) == 0)
            continue;
        uint64_t i = 0;
        while (memcmp(block + i * bytes, at + (from + i) * bytes, bytes) == 0)
            i++;
        return from + i;
    }
    return to;
}

uint64_t sim_code_infinite(const sim_code *code, uint64_t from, uint64_t to)
{
    uint64_t n = 0;
    for (uint64_t i = from; code->nonfinite && i < to; i++)
        n += sim_code_nonfinite(code, i);
    return n;
}

static uint32_t read_sum(const sim_code *code, uint64_t element, const void *value, const char **reason)
{
    int64_t x, unit = unit_of_mark(mark_of(code, element));
    if (!sim_code_whole(code->dtype, value, &x) || x % unit != 0) {
        *reason = "is no multiple of this element's unit: data of another op, another place, or none";
        return 0;
    }
    int64_t digits = x / unit;
    if (digits < 0 || digits >> 2 * code->ranks != 0) {
        *reason = "holds what no rank of the job contributed";
        return 0;
    }
    uint32_t ranks = 0;
    for (uint32_t r = 0; r < code->ranks; r++) {
        unsigned digit = digits >> 2 * r & 3;
        if (digit > 1) {
            *reason = "holds a rank more than once";
            return 0;
        }
        ranks |= digit << r;
    }
    if (ranks == 0)
        *reason = "holds nobody's contribution";
    return ranks;
}

static bool matches(const sim_code *code, uint64_t element, const void *value, uint32_t ranks)
{
    uint8_t expected[8];
    sim_code_expect(code, element, ranks, expected);
    return memcmp(expected, value, ut_dtype_bytes(code->dtype)) == 0;
}

bool sim_code_near(const sim_code *code, uint64_t element, const void *value, uint32_t ranks)
{
    float expected, x;
    sim_code_expect(code, element, ranks, &expected);
    memcpy(&x, value, sizeof x);
    return x > expected - 0.5f && x < expected + 0.5f;
}

uint32_t sim_code_read(const sim_code *code, uint64_t element, const void *value, uint32_t hint, const char **reason)
{
    if (hint && matches(code, element, value, hint))
        return hint;
    if (code->redop == UT_SUM && !sim_code_nonfinite(code, element))
        return read_sum(code, element, value, reason);
    for (uint32_t ranks = (1u << code->ranks) - 1; ranks; ranks--)
        if (matches(code, element, value, ranks))
            return ranks;
    *reason = code->redop == UT_AVG ? "is the average of no set of ranks" : "is the result of no set of ranks";
    return 0;
}
