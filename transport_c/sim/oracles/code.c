/* SPDX-License-Identifier: Apache-2.0
 *
 * Fingerprint payloads. An element of a sum tells of a group of ranks: rank r of the group contributes unit * 4^r,
 * where the unit is a signed prime that depends on job, op and element. The sum then reads like a base-4 number whose
 * digits say how often each rank of the group is in it: digit 2 is a double fold, a remainder against the unit is data
 * of another op or another place. An average is the same sum over the number of ranks in it.
 *
 * Where the dtype has room for all ranks there is one group. Else the elements take turns, each for the group after
 * that of the element before, and the other ranks contribute zero to it. All elements of a slot (what one packet
 * carries) hold the same ranks, so as many elements in a row as there are groups prove all ranks of their slot, and the
 * others must agree. A slot with fewer elements (the end of a shard) leaves the ranks of some groups unsure. Zero, and
 * not a constant that would be counted, because an average of constants says nothing of how many they were, and because
 * a count takes six bits, in float32 three ranks of each element.
 *
 * All values are exact in the dtype, so the order of folding cannot matter. MIN, MAX and PROD take values from which
 * the exact result of all ranks is computed again.
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

/* In a transform 64 values are summed, by every rank. */
static unsigned code_bits(const sim_code *code)
{
    return exact_bits(code->dtype) - (code->narrow ? 6 : 0);
}

/* Ranks of which one element can tell. Alone, without a look at its neighbours; averages need the room that keeps two
 * sets from rounding to the same quotient (sim_selftest proves these). */
static uint32_t ranks_alone(unsigned dtype, bool average)
{
    static const uint8_t most[][2] = {[UT_FLOAT32] = {10, 7}, [UT_FLOAT64] = {16, 10}, [UT_FLOAT16] = {4, 4},
                                      [UT_BFLOAT16] = {3, 2}, [UT_INT32] = {12, 9},    [UT_INT64] = {16, 10}};
    return dtype < UT_DTYPES_END && dtype != UT_BYTES ? most[dtype][average] : SIM_RANKS;
}

/* And together with its neighbours. */
static uint32_t ranks_in_turn(unsigned dtype, bool average)
{
    static const uint8_t most[][2] = {[UT_FLOAT32] = {8, 7},  [UT_FLOAT64] = {22, 20}, [UT_FLOAT16] = {4, 4},
                                      [UT_BFLOAT16] = {3, 3}, [UT_INT32] = {11, 10},   [UT_INT64] = {26, 20}};
    return most[dtype][average];
}

/* How an op's elements are made. */
typedef struct form {
    uint32_t groups, per; /* ranks of a group; the last may be smaller */
    uint32_t turn;        /* group of element 0 */
    uint32_t first, last; /* primes that may be units: [first, last) */
} form;

static uint64_t op_bits(const sim_code *code)
{
    return sim_mix(code->op_seq ^ (uint64_t)code->job << 56);
}

static form form_of(const sim_code *code)
{
    bool average = code->redop == UT_AVG, whole = code->dtype == UT_INT32 || code->dtype == UT_INT64;
    uint32_t alone = code->narrow ? 7 : ranks_alone(code->dtype, average), ranks = UT_MAX2(code->ranks, 1u);
    form f = {.groups = 1, .per = ranks};
    if (ranks > alone && code->redop <= UT_AVG) {
        uint32_t most = code->narrow ? 7 : ranks_in_turn(code->dtype, average);
        f.groups = (ranks + most - 1) / most;
        f.per = (ranks + f.groups - 1) / f.groups;
        f.turn = (uint32_t)(op_bits(code) % f.groups);
    }
    uint64_t sum_max = 0, least = 0;
    for (uint32_t r = 0; r < f.per && code->redop <= UT_AVG; r++)
        sum_max = sum_max << 2 | 1;
    uint64_t limit = (UINT64_C(1) << code_bits(code)) / (sum_max ? sum_max : 1);
    if (average && whole) /* quotients of different sums are different integers; in turn: for each number of ranks */
        least = f.groups == 1 ? (uint64_t)ranks * ranks : ranks;
    f.last = PRIMES;
    while (f.first + 1 < PRIMES && prime[f.first] <= least)
        f.first++;
    while (f.last > f.first + 1 && prime[f.last - 1] >= limit)
        f.last--;
    return f;
}

static uint32_t group_of(const form *f, uint64_t element)
{
    return (uint32_t)((element + f->turn) % f->groups);
}

/* Its ranks. */
static uint64_t members(const sim_code *code, const form *f, uint32_t group)
{
    return sim_first(f->per) << group * f->per & sim_first(code->ranks);
}

bool sim_code_tells_alone(unsigned dtype, unsigned redop, uint32_t ranks)
{
    return ranks <= ranks_alone(dtype, redop == UT_AVG);
}

uint32_t sim_code_groups(const sim_code *code)
{
    return form_of(code).groups;
}

static uint64_t element_bits(const sim_code *code, uint64_t op, uint64_t element)
{
    return sim_mix(code->seed ^ op ^ element * 0x9e3779b97f4a7c15u);
}

static void reckon_marks(const sim_code *code, uint64_t from, uint64_t to, uint8_t *ret)
{
    form f = form_of(code);
    uint64_t op = op_bits(code);
    uint32_t units = f.last - f.first;
    for (uint64_t i = from; i < to; i++) {
        uint64_t bits = element_bits(code, op, i);
        uint32_t at = f.first + (uint32_t)((bits & UINT32_MAX) * units >> 32);
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

static int64_t unit_of(uint8_t mark)
{
    int64_t unit = prime[(mark - 1) / 2];
    return (mark - 1) % 2 ? -unit : unit;
}

/* All hosts and ranks ask for the same elements, so an op's marks are reckoned once. */
sim_code sim_code_of(sim_world *w, uint32_t job, uint64_t op_seq, const sim_op *op)
{
    sim_code code = {.seed = w->seed,
                     .job = job,
                     .ranks = w->job[job].signs,
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

bool sim_code_nonfinite(const sim_code *code, uint64_t element)
{
    return code->nonfinite && mark_of(code, element) == 0;
}

uint64_t sim_code_infinite(const sim_code *code, uint64_t from, uint64_t to)
{
    uint64_t n = 0;
    for (uint64_t i = from; code->nonfinite && i < to; i++)
        n += sim_code_nonfinite(code, i);
    return n;
}

/* ---- from ranks to values ---- */

/* What rank r brings where nothing is summed. A product of all fits: few double it. */
static int64_t value_of(const sim_code *code, uint64_t op, uint64_t element, uint32_t rank)
{
    uint64_t bits = sim_mix(element_bits(code, op, element) + rank);
    static const int64_t factor[4] = {1, -1, 2, -2};
    if (code->redop != UT_PROD)
        return (int64_t)(bits % 255) - 127;
    return factor[bits % ((element + rank) % UT_MAX2(code->ranks / 4, 1u) ? 2 : 4)];
}

/* The digits of |ranks| of a group: 1 for each. */
static int64_t spread(uint64_t ranks)
{
    int64_t sum = 0;
    for (; ranks; ranks &= ranks - 1)
        sum |= INT64_C(1) << 2 * __builtin_ctzll(ranks);
    return sum;
}

static int64_t digits_of(const sim_code *code, const form *f, uint32_t group, uint64_t ranks)
{
    return spread((ranks & members(code, f, group)) >> group * f->per);
}

/* The result of all |ranks|, where it is no sum. */
static void put_other(const sim_code *code, uint64_t op, uint64_t element, uint64_t ranks, void *out)
{
    int64_t total = 0;
    for (uint64_t left = ranks; left; left &= left - 1) {
        int64_t x = value_of(code, op, element, (uint32_t)__builtin_ctzll(left));
        bool first = left == ranks;
        if (code->redop == UT_PROD)
            total = first ? x : total * x;
        else if (first || (code->redop == UT_MIN ? x < total : x > total))
            total = x;
    }
    sim_code_put(code->dtype, total, 1, out);
}

/* What |ranks| make of an element of each group and mark. */
typedef struct glossary {
    form form;
    uint8_t value[SIM_RANKS][MARKS][8];
} glossary;

static void write_glossary(const sim_code *code, uint64_t ranks, glossary *g)
{
    int64_t by = code->redop == UT_AVG ? sim_ones(ranks) : 1;
    g->form = form_of(code);
    for (uint32_t group = 0; group < g->form.groups && code->redop <= UT_AVG; group++) {
        int64_t digits = digits_of(code, &g->form, group, ranks);
        for (uint32_t mark = 1 + 2 * g->form.first; mark < 1 + 2 * g->form.last; mark++)
            sim_code_put(code->dtype, unit_of((uint8_t)mark) * digits, by, g->value[group][mark]);
        if (code->nonfinite && code->dtype <= UT_BFLOAT16)
            sim_code_put_infinite(code->dtype, g->value[group][0]);
    }
}

/* Sums or averages of elements whose marks are at |mark|. |bytes| is known to the compiler: each copy is one
 * instruction. */
static inline __attribute__((always_inline)) void spell_sums(const glossary *g, uint32_t group, const uint8_t *mark,
                                                             uint64_t count, size_t bytes, uint8_t *out)
{
    uint32_t groups = g->form.groups;
    if (groups == 1) {
        for (uint64_t i = 0; i < count; i++)
            memcpy(out + i * bytes, g->value[0][mark[i]], bytes);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        memcpy(out + i * bytes, g->value[group][mark[i]], bytes);
        group = group + 1 < groups ? group + 1 : 0;
    }
}

/* Writes elements [from, to) as the |ranks| of |g| make them. */
static void spell(const sim_code *code, const glossary *g, uint64_t ranks, uint64_t from, uint64_t to, uint8_t *out)
{
    size_t bytes = ut_dtype_bytes(code->dtype);
    uint64_t op = op_bits(code);
    if (code->redop <= UT_AVG && code->mark) {
        uint32_t group = group_of(&g->form, from);
        const uint8_t *mark = code->mark + from;
        if (bytes == 4)
            spell_sums(g, group, mark, to - from, 4, out);
        else if (bytes == 8)
            spell_sums(g, group, mark, to - from, 8, out);
        else
            spell_sums(g, group, mark, to - from, 2, out);
        return;
    }
    for (uint64_t i = from; i < to; i++, out += bytes) {
        uint8_t mark = mark_of(code, i);
        if (code->redop <= UT_AVG)
            memcpy(out, g->value[group_of(&g->form, i)][mark], bytes);
        else if (mark)
            put_other(code, op, i, ranks, out);
        else
            sim_code_put_infinite(code->dtype, out);
    }
}

void sim_code_make(const sim_code *code, uint64_t from, uint64_t to, uint64_t ranks, void *out)
{
    glossary g;
    write_glossary(code, ranks, &g);
    spell(code, &g, ranks, from, to, out);
}

void sim_code_fill(const sim_code *code, uint32_t rank, void *out, uint64_t count)
{
    sim_code_make(code, 0, count, sim_bit(rank), out);
}

uint64_t sim_code_agree(const sim_code *code, uint64_t from, uint64_t to, uint64_t ranks, const void *values)
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

static float expected_at(const sim_code *code, const glossary *g, uint64_t element)
{
    float ret;
    memcpy(&ret, g->value[group_of(&g->form, element)][mark_of(code, element)], sizeof ret);
    return ret;
}

/* A transform spreads the rounding of the largest element over all of its block. A rank more or less would be 5 apart
 * in a sum, and in an average, which is smaller as well, at least half. */
uint64_t sim_code_near(const sim_code *code, uint64_t from, uint64_t to, uint64_t ranks, const float *values)
{
    glossary g;
    float most = 0;
    write_glossary(code, ranks, &g);
    for (uint64_t i = from; i < to; i++) {
        float expected = expected_at(code, &g, i);
        most = expected - expected == 0 ? UT_MAX2(most, expected < 0 ? -expected : expected) : most;
    }
    const double apart = UT_MAX2(0.5, (double)most * 0x1p-22);
    for (; from < to; from++) {
        double expected = (double)expected_at(code, &g, from), x = (double)values[from];
        if (x - x == 0 && !(x > expected - apart && x < expected + apart))
            break;
    }
    return from;
}

/* ---- from values to ranks ---- */

/* Ranks of the element's group that |digits| hold. */
static bool read_digits(const form *f, int64_t digits, uint64_t *ret, const char **reason)
{
    *ret = 0;
    if (digits < 0 || digits >> 2 * f->per != 0) {
        *reason = "holds what no rank of the job contributed";
        return false;
    }
    for (uint32_t r = 0; r < f->per; r++) {
        unsigned digit = digits >> 2 * r & 3;
        if (digit > 1) {
            *reason = "holds a rank more than once";
            return false;
        }
        *ret |= (uint64_t)digit << r;
    }
    return true;
}

static bool read_sum(const sim_code *code, const form *f, uint64_t element, const void *value, uint64_t *ret,
                     const char **reason)
{
    int64_t x, unit = unit_of(mark_of(code, element));
    if (!sim_code_whole(code->dtype, value, &x) || x % unit != 0) {
        *reason = "is no multiple of this element's unit: data of another op, another place, or none";
        return false;
    }
    return read_digits(f, x / unit, ret, reason);
}

/* An average of |n| ranks. */
static bool read_average(const sim_code *code, const form *f, uint64_t element, const void *value, uint32_t n,
                         uint64_t *ret, const char **reason)
{
    int64_t unit = unit_of(mark_of(code, element)), digits, x;
    uint8_t again[8];
    *reason = "is the average of no set of ranks";
    if (code->dtype == UT_INT32 || code->dtype == UT_INT64) { /* cut off towards zero */
        if (!sim_code_whole(code->dtype, value, &x) || (x < 0) != (unit < 0 && x != 0))
            return false;
        unsigned __int128 sum = (unsigned __int128)(x < 0 ? -x : x) * n;
        uint64_t by = (uint64_t)(unit < 0 ? -unit : unit);
        if (sum >> 63)
            return false;
        digits = (int64_t)(((uint64_t)sum + by - 1) / by);
    } else {
        double real = sim_code_real(code->dtype, value) * n / (double)unit;
        if (!(real > -0.5 && real < 9e15))
            return false;
        digits = (int64_t)(real + 0.5);
    }
    if (digits >> 2 * f->per != 0)
        return false;
    sim_code_put(code->dtype, unit * digits, n, again);
    return memcmp(again, value, ut_dtype_bytes(code->dtype)) == 0 && read_digits(f, digits, ret, reason);
}

typedef struct reader {
    const sim_code *code;
    form form;
} reader;

static bool tell(const void *context, uint64_t element, const void *value, uint32_t n, sim_told *ret)
{
    const reader *r = context;
    const sim_code *code = r->code;
    const form *f = &r->form;
    uint32_t group = group_of(f, element);
    uint64_t ranks = 0;
    uint8_t infinite[8];
    *ret = (sim_told){.group = group, .members = members(code, f, group)};
    if (mark_of(code, element) == 0) {
        ret->members = 0;
        ret->reason = "is finite, and is not for anybody";
        sim_code_put_infinite(code->dtype, infinite);
        return memcmp(infinite, value, ut_dtype_bytes(code->dtype)) == 0;
    }
    bool good = n ? read_average(code, f, element, value, n, &ranks, &ret->reason)
                  : read_sum(code, f, element, value, &ranks, &ret->reason);
    ret->ranks = ranks << group * f->per;
    return good;
}

bool sim_code_read(const sim_code *code, uint64_t from, uint64_t to, const void *values, sim_held *ret,
                   sim_wrong *wrong)
{
    sim_slot slot = {.from = from, .to = to, .bytes = ut_dtype_bytes(code->dtype), .values = values};
    slot.ranks = code->ranks;
    slot.average = code->redop == UT_AVG;
    reader r = {code, form_of(code)};
    if (code->redop <= UT_AVG)
        return sim_read_slot(&slot, tell, &r, ret, wrong);
    /* Such a result is all ranks', or a rank has its own value back. */
    *ret = (sim_held){.ranks = sim_first(code->ranks)};
    *wrong = (sim_wrong){sim_code_agree(code, from, to, ret->ranks, values), "is not the result of all ranks"};
    for (uint32_t r = 0; wrong->element != to && r < code->ranks; r++) {
        ret->ranks = sim_bit(r);
        if (sim_code_agree(code, from, to, ret->ranks, values) == to)
            return true;
    }
    return wrong->element == to;
}
