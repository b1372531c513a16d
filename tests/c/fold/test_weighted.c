/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted means, without an op: each slot hears other hosts, in any order, and becomes the mean of those that it heard
 * with their weights. Host h brings powers of two that say who is in a sum.
 */
#include "check.h"

#include "core/fold/weighted.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#include <math.h>

enum { HOSTS = 5, EACH = 72 /* elements of a slot */, PER_SHARD = 2 * EACH + 8, COUNT = HOSTS * PER_SHARD, SLOTS = 3 };

static ut_op_what what;
static ut_op_plan plan;
static ut_op_memory memory;
static ut_op_fold fold;
static ut_work turn;
static uint8_t brought[HOSTS][COUNT * 8], result[COUNT * 8], held[COUNT * 8];
static uint8_t state[HOSTS * SLOTS];
static uint16_t weight[HOSTS * SLOTS];
static uint32_t crc[HOSTS * SLOTS];
static uint64_t bits[64];

static void put(uint8_t *at, double x)
{
    const float single = (float)x;
    const uint16_t half = what.dtype == UT_FLOAT16 ? ut_f16_of_float(single) : ut_bf16_of_float(single);
    const void *from = what.dtype == UT_FLOAT64   ? (const void *)&x
                       : what.dtype == UT_FLOAT32 ? (const void *)&single
                                                  : &half;
    memcpy(at, from, what.element);
}

static double get(const uint8_t *at)
{
    double x;
    float single;
    uint16_t half;
    memcpy(&x, at, what.element == 8 ? 8 : 2);
    memcpy(&single, at, what.element >= 4 ? 4 : 2);
    memcpy(&half, at, 2);
    return what.dtype == UT_FLOAT64 ? x
           : what.dtype == UT_FLOAT32
               ? (double)single
               : (double)(what.dtype == UT_FLOAT16 ? ut_float_of_f16(half) : ut_float_of_bf16(half));
}

/* Host |self|'s view of an op in place, by TAR. */
static void begin(unsigned dtype, uint32_t self, const uint32_t share[HOSTS])
{
    const size_t element = ut_dtype_bytes(dtype);
    const uint32_t payload = (uint32_t)(EACH * element);
    what = (ut_op_what){.dtype = (uint8_t)dtype,
                        .redop = UT_AVG,
                        .mode = UT_BOUNDED,
                        .weighted = 1,
                        .count = COUNT,
                        .bytes = COUNT * element,
                        .element = element,
                        .acc_element = ut_dtype_acc_bytes(dtype)};
    for (uint32_t h = 0; h < HOSTS; h++)
        for (uint32_t i = 0; i < COUNT; i++)
            put(brought[h] + i * element, share[h] ? (double)(1 << h) : NAN);
    ut_schedule_tar(&plan.schedule, &(ut_layout){HOSTS, self, COUNT, element}, HOSTS - 1, 1, (1 << HOSTS) - 1);
    for (uint32_t i = 0; i < plan.schedule.steps; i++)
        ut_transfer_init(&plan.transfer[i], plan.schedule.step[i].bytes, payload, &bits[2 * i], &bits[2 * i + 1]);
    memcpy(result, brought[self], COUNT * element);
    memory = (ut_op_memory){.src = result, .dst = result, .out = result, .held_from = plan.schedule.own_offset};
    memory.acc = what.acc_element == element ? result + plan.schedule.own_offset : held;
    turn = (ut_work){0};
    ut_work_begin_turn(&turn);
    ut_fold_init(&fold, &what, &plan, &memory, &turn, &(ut_fold_job){payload, HOSTS, HOSTS, self});
    fold.state = state, fold.weight = weight, fold.crc = crc;
    fold.rule = &ut_fold_weighted;
    fold.averaged = true;
    memcpy(fold.share, share, HOSTS * sizeof *share);
    ut_fold_open(&fold, 1, 0);
}

static size_t length_of(uint32_t slot)
{
    return UT_MIN2(plan.schedule.own_bytes - (uint64_t)slot * fold.payload, fold.payload);
}

static void bring(uint32_t host, uint32_t slot)
{
    for (uint32_t i = 0; i < plan.schedule.steps; i++) {
        const ut_step *s = &plan.schedule.step[i];
        if (s->kind != UT_STEP_RECEIVE || s->stage != 1 || s->peer != host)
            continue;
        const uint64_t at = plan.schedule.own_offset + (uint64_t)slot * fold.payload;
        CHECK(ut_transfer_mark(&plan.transfer[i], slot));
        ut_fold_add(&fold, s, slot, &(ut_payloads){.first = brought[host] + at, .len = length_of(slot), .slots = 1}, 1);
    }
}

static void end(void)
{
    for (uint32_t i = 0; i < plan.schedule.steps; i++)
        if (plan.schedule.step[i].kind == UT_STEP_RECEIVE && plan.schedule.step[i].stage == 1)
            plan.transfer[i].closed = 1;
    CHECK(ut_fold_settle(&fold, false));
}

static void weighted__a_slot_is_the_mean_of_those_in_it(void)
{
    static const unsigned dtypes[] = {UT_FLOAT32, UT_FLOAT64, UT_FLOAT16, UT_BFLOAT16};
    for (uint32_t round = 0; round < 400; round++) {
        const uint32_t self = (uint32_t)check_below(HOSTS);
        const unsigned dtype = dtypes[round % 4];
        uint32_t share[HOSTS], in[SLOTS] = {0};
        for (uint32_t h = 0; h < HOSTS; h++)
            share[h] = check_below(4) ? (uint32_t)check_below(1 << 24) : 0;
        begin(dtype, self, share);
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            const uint32_t first = (uint32_t)check_below(HOSTS);
            in[slot] = 1U << self;
            for (uint32_t k = 0; k < HOSTS; k++) {
                const uint32_t h = (first + k) % HOSTS;
                if (h == self || check_below(3) == 0)
                    continue;
                bring(h, slot);
                in[slot] |= 1U << h;
            }
        }
        end();
        CHECK_EQ(fold.result.nonfinite, 0);
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            double sum = 0, all = 0;
            for (uint32_t h = 0; h < HOSTS; h++)
                if (in[slot] >> h & 1)
                    sum += (double)share[h] * (1 << h), all += share[h];
            const double want = all > 0 ? sum / all : 0, near = dtype == UT_BFLOAT16 ? 0x1p-7 : 0x1p-10;
            for (size_t i = 0; i < length_of(slot) / what.element; i++) {
                const double got =
                    get(result + plan.schedule.own_offset + (uint64_t)slot * fold.payload + i * what.element);
                CHECK_MSG(fabs(got - want) <= near * want, "dtype %u, slot %u, element %zu: %g, not %g", dtype, slot, i,
                          got, want);
            }
            CHECK_EQ(fold.weight[fold.first[plan.schedule.own] + slot], __builtin_popcount(in[slot]));
        }
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    ut_kernels_init(UT_ISA_AVX512);
    RUN(weighted__a_slot_is_the_mean_of_those_in_it);
    return check_end();
}
