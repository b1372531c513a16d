/* SPDX-License-Identifier: Apache-2.0
 *
 * Fingerprints of contributions to partial jobs. Each rank has some bits of a number for itself; what stands there
 * says which of its contributions it is, by a digit that differs from element to element. So a sum tells of each of its
 * elements who is in it and with what, whatever op it was given for. Where there is no room for all ranks, the elements
 * take turns as in code.c, each for a group of them. All values are exact in the dtype.
 */
#include "sim/partial/partial.h"

#include "kernels/quant.h"

static unsigned exact_bits(unsigned dtype)
{
    static const uint8_t bits[] = {[UT_FLOAT32] = 24, [UT_FLOAT64] = 53, [UT_FLOAT16] = 11,
                                   [UT_BFLOAT16] = 8, [UT_INT32] = 31,   [UT_INT64] = 62};
    return bits[dtype];
}

enum { BITS_ALONE = 2, BITS_MOST = 6, BITS_IN_TURN = 3 /* of a digit */ };

/* Of few bits an element. A scale is the largest magnitude of a block over the largest code, and a 16th more at most,
 * and an element is off by less than a scale. An element is given by three hosts at most where groups take turns (by
 * one in int8), each of whose blocks may hold another group's largest digits, and by all ranks else. So contributions
 * are off by less than 0.13 altogether (4 bits in int8, one group: 15 / 127 * 17 / 16), and the result by as much
 * again. */
static unsigned quant_bits(unsigned wire)
{
    return (wire & 15) == UT_QUANT_INT16 ? 10 : 4;
}

uint32_t sim_gift_most(unsigned wire)
{
    return (1u << quant_bits(wire)) - 1;
}

#define READABLE 0.27

/* Three bits less than are exact: then quotients of different sums differ, too. */
static sim_gift_form form_of(unsigned dtype, unsigned wire, unsigned redop, uint32_t ranks)
{
    unsigned room = wire ? quant_bits(wire) : exact_bits(dtype) - 3;
    sim_gift_form f = {.groups = 1, .per = ranks, .bits = UT_MIN2(room / ranks, (unsigned)BITS_MOST)};
    if (redop == UT_AVG && (dtype == UT_INT32 || dtype == UT_INT64))
        return (sim_gift_form){0};
    if (f.bits >= BITS_ALONE)
        return f;
    f.bits = BITS_IN_TURN;
    f.groups = (ranks + room / f.bits - 1) / (room / f.bits);
    f.per = (ranks + f.groups - 1) / f.groups;
    return f;
}

uint32_t sim_gift_groups(unsigned dtype, unsigned wire, unsigned redop, uint32_t ranks)
{
    return form_of(dtype, wire, redop, ranks).groups;
}

sim_gift_code sim_gift_code_of(const sim_world *w, uint32_t job)
{
    const sim_part_plan *p = &w->plan.job[job].part;
    return (sim_gift_code){.seed = sim_mix(w->seed ^ sim_mix(job)),
                           .ranks = w->job[job].ranks,
                           .world = p->world ? w->job[job].ranks : 0,
                           .dtype = p->dtype,
                           .redop = p->redop,
                           .wire = p->wire,
                           .form = form_of(p->dtype, p->wire, p->redop, w->job[job].ranks)};
}

static int64_t digit(const sim_gift_code *code, unsigned bits, uint64_t element, uint32_t rank, uint32_t number)
{
    uint64_t most = (UINT64_C(1) << bits) - 1;
    uint64_t shift = sim_mix(code->seed ^ element * 0x9e3779b97f4a7c15u ^ (uint64_t)rank << 56);
    return (int64_t)(1 + (number + shift % most) % most);
}

static int64_t sign(const sim_gift_code *code, uint64_t element)
{
    return sim_mix(code->seed + element) >> 63 ? -1 : 1;
}

void sim_gift_fill(const sim_gift_code *code, uint32_t rank, uint32_t number, void *out, uint64_t count)
{
    const sim_gift_form *f = &code->form;
    size_t bytes = ut_dtype_bytes(code->dtype);
    for (uint64_t i = 0; i < count; i++) {
        bool in = rank / f->per == i % f->groups;
        int64_t value = in ? digit(code, f->bits, i, rank, number) << f->bits * (rank % f->per) : 0;
        sim_code_put(code->dtype, sign(code, i) * value, 1, (uint8_t *)out + i * bytes);
    }
}

/* Ranks of the element's group of which |sum| holds the digits, if it holds nothing else. */
static bool read_digits(const sim_gift_code *code, const sim_part_op *op, uint64_t element, int64_t sum, sim_told *ret)
{
    const sim_gift_form *f = &code->form;
    for (uint64_t left = ret->members; left; left &= left - 1) {
        uint32_t r = (uint32_t)__builtin_ctzll(left);
        int64_t d = sum >> f->bits * (r % f->per) & ((1 << f->bits) - 1);
        if (d == 0)
            continue;
        bool now = op->gift[r] && d == digit(code, f->bits, element, r, op->gift[r] - 1);
        bool before = op->gift_before[r] && d == digit(code, f->bits, element, r, op->gift_before[r] - 1);
        if (!now && !before) {
            ret->reason = op->gift[r] ? "holds another contribution of a rank than that which its host put into this op"
                                      : "holds something of a rank whose host put nothing of it into this op";
            return false;
        }
        ret->ranks |= sim_bit(r);
    }
    return true;
}

typedef struct reader {
    const sim_gift_code *code;
    const sim_part_op *op;
} reader;

static bool tell(const void *context, uint64_t element, const void *value, uint32_t n, sim_told *ret)
{
    const sim_gift_code *code = ((const reader *)context)->code;
    const sim_gift_form *f = &code->form;
    uint32_t group = (uint32_t)(element % f->groups);
    *ret = (sim_told){.group = group, .reason = "is no sum of contributions"};
    ret->members = sim_first(f->per) << group * f->per & sim_first(code->ranks);
    int64_t by = n ? n : code->redop == UT_AVG ? code->world : 1, sum;
    double x = sim_code_real(code->dtype, value) * (double)sign(code, element) * (double)by;
    uint8_t again[8];
    if (!(x > -0.5 && x < 9e18))
        return false;
    sum = (int64_t)(x + 0.5);
    if (code->dtype == UT_INT64) { /* more bits than a double has */
        memcpy(&sum, value, 8);
        sum *= sign(code, element);
    }
    if (sum < 0 || sum >> f->bits * sim_ones(ret->members)) /* the last group may be a smaller one */
        return false;
    sim_code_put(code->dtype, sign(code, element) * sum, by, again);
    if (code->wire ? x - (double)sum > READABLE || (double)sum - x > READABLE || (sum == 0) != (x == 0)
                   : memcmp(again, value, ut_dtype_bytes(code->dtype)) != 0)
        return false;
    return read_digits(code, ((const reader *)context)->op, element, sum, ret);
}

bool sim_gift_read(const sim_gift_code *code, const sim_part_op *op, uint64_t from, uint64_t to, const void *values,
                   sim_held *ret, sim_wrong *wrong)
{
    reader r = {code, op};
    sim_slot slot = {.from = from, .to = to, .bytes = ut_dtype_bytes(code->dtype), .values = values};
    slot.ranks = code->ranks;
    slot.average = code->redop == UT_AVG && !code->world;
    slot.may_be_empty = true;
    return sim_read_slot(&slot, tell, &r, ret, wrong);
}
