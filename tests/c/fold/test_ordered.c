/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums in the order of hosts, without an op: the same contributions, handed in in any order to any owner, make the bits
 * that a sum from host 0 on makes. The values are such that another order makes other bits.
 */
#include "check.h"

#include "core/fold/ordered.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

enum { HOSTS = 5, EACH = 24 /* elements of a slot */, PER_SHARD = 2 * EACH + 8, COUNT = HOSTS * PER_SHARD, SLOTS = 3 };

static ut_op_what what;
static ut_op_plan plan;
static ut_op_memory memory;
static ut_op_fold fold;
static ut_work turn;
static ut_ordered ordered;
static uint8_t brought[HOSTS][COUNT * 8], result[COUNT * 8], held[COUNT * 8], kept[COUNT * 8 + HOSTS * 72];
static uint8_t state[HOSTS * SLOTS];
static uint16_t weight[HOSTS * SLOTS];
static uint32_t crc[HOSTS * SLOTS];
static uint64_t bits[64];

static size_t bytes_of(unsigned dtype)
{
    return ut_dtype_bytes(dtype);
}

static void put(unsigned dtype, uint8_t *at, double x)
{
    float single = (float)x;
    uint16_t half = dtype == UT_FLOAT16 ? ut_f16_of_float(single) : ut_bf16_of_float(single);
    const void *from = dtype == UT_FLOAT64 ? (const void *)&x : dtype == UT_FLOAT32 ? (const void *)&single : &half;
    memcpy(at, from, bytes_of(dtype));
}

/* Host h's view of an op by TAR. Whatever it brings itself lies in the result's place, as in an op in place. */
static void begin(unsigned dtype, unsigned redop, uint32_t self, const ut_fold_rule *rule)
{
    size_t element = bytes_of(dtype);
    what = (ut_op_what){.dtype = (uint8_t)dtype,
                        .redop = (uint8_t)redop,
                        .mode = UT_BOUNDED,
                        .count = COUNT,
                        .bytes = COUNT * element,
                        .element = element,
                        .acc_element = ut_dtype_acc_bytes(dtype)};
    uint32_t payload = (uint32_t)(EACH * element);
    ut_schedule_tar(&plan.schedule, &(ut_layout){HOSTS, self, COUNT, element}, HOSTS - 1, 1, (1 << HOSTS) - 1);
    for (uint32_t i = 0; i < plan.schedule.steps; i++)
        ut_transfer_init(&plan.transfer[i], plan.schedule.step[i].bytes, payload, &bits[2 * i], &bits[2 * i + 1]);
    memcpy(result, brought[self], COUNT * element);
    memory = (ut_op_memory){.src = result, .dst = result, .out = result, .held_from = plan.schedule.own_offset};
    memory.acc = what.acc_element == element ? result + plan.schedule.own_offset : held;
    turn = (ut_work){0};
    ut_work_begin_turn(&turn);
    ordered = (ut_ordered){.kept = kept, .room = sizeof kept};
    ut_fold_init(&fold, &what, &plan, &memory, &turn, &(ut_fold_job){payload, HOSTS, HOSTS, self});
    fold.state = state;
    fold.weight = weight;
    fold.crc = crc;
    fold.rule = rule;
    fold.rule_memory = &ordered;
    ut_fold_open(&fold, 1, 0);
}

static uint32_t from(uint32_t host)
{
    for (uint32_t i = 0; i < plan.schedule.steps; i++)
        if (plan.schedule.step[i].kind == UT_STEP_RECEIVE && plan.schedule.step[i].stage == 1 &&
            plan.schedule.step[i].peer == host)
            return i;
    CHECK(!"no such step");
    return 0;
}

static size_t length_of(uint32_t slot)
{
    return UT_MIN2(plan.schedule.own_bytes - (uint64_t)slot * fold.payload, fold.payload);
}

static void bring(uint32_t host, uint32_t slot)
{
    uint32_t i = from(host);
    uint64_t at = plan.schedule.own_offset + (uint64_t)slot * fold.payload;
    CHECK(!ut_fold_moot(&fold, &plan.schedule.step[i], slot));
    CHECK(ut_transfer_mark(&plan.transfer[i], slot));
    ut_fold_add(&fold, &plan.schedule.step[i], slot,
                &(ut_payloads){.first = brought[host] + at, .len = length_of(slot), .slots = 1}, 1);
}

/* What the hosts bring: two bring large values that cancel out, and what was small beside them has lost its last bits
 * if it was added between the two. */
static void fill(unsigned dtype)
{
    double large = dtype == UT_FLOAT64 ? 0x1p44 : 0x1p14;
    for (uint32_t i = 0; i < COUNT; i++) {
        double most = large * (1 + (double)check_below(1 << 7) / (1 << 7));
        uint32_t plus = (uint32_t)check_below(HOSTS), minus = (plus + 1 + (uint32_t)check_below(HOSTS - 1)) % HOSTS;
        for (uint32_t h = 0; h < HOSTS; h++) {
            double small = (1 + (double)check_below(1 << 20) / (1 << 20)) * 0x1p-8;
            double x = h == plus ? most : h == minus ? -most : small;
            put(dtype, brought[h] + i * bytes_of(dtype), x);
        }
    }
}

static float widened(unsigned dtype, const uint8_t *at)
{
    uint16_t half;
    float single;
    memcpy(&half, at, 2);
    memcpy(&single, at, dtype == UT_FLOAT32 ? 4 : 2);
    return dtype == UT_FLOAT32 ? single : dtype == UT_FLOAT16 ? ut_float_of_f16(half) : ut_float_of_bf16(half);
}

/* Element |i| as |hosts| (a mask) make it, one after the other, from host 0 on. */
static void expect(unsigned dtype, unsigned redop, uint32_t i, uint64_t hosts, uint8_t *ret)
{
    float sum = 0;
    double twice = 0;
    bool first = true;
    unsigned n = 0;
    for (uint32_t h = 0; h < HOSTS; h++) {
        const uint8_t *at = brought[h] + i * bytes_of(dtype);
        if (!(hosts >> h & 1))
            continue;
        double x;
        memcpy(&x, at, dtype == UT_FLOAT64 ? 8 : 2);
        twice = first ? x : redop == UT_PROD ? twice * x : twice + x;
        float one = dtype == UT_FLOAT64 ? 0 : widened(dtype, at);
        sum = first ? one : redop == UT_PROD ? sum * one : sum + one;
        first = false;
        n++;
    }
    double divisor = redop == UT_AVG ? n : 1;
    if (dtype == UT_FLOAT64)
        put(dtype, ret, twice / divisor);
    else if (dtype == UT_FLOAT32 || redop != UT_AVG)
        put(dtype, ret, dtype == UT_FLOAT32 ? (float)(sum / divisor) : sum);
    else
        put(dtype, ret, ut_float_odd_of_double(sum / divisor)); /* rounded once */
}

/* How many elements of the own shard are not as |hosts| make them, slot by slot. */
static uint32_t wrong(const uint64_t hosts[SLOTS])
{
    uint32_t ret = 0;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (size_t k = 0; k < length_of(slot) / what.element; k++) {
            uint64_t at = plan.schedule.own_offset + (uint64_t)slot * fold.payload + k * what.element;
            uint8_t want[8];
            expect(what.dtype, what.redop, (uint32_t)(at / what.element), hosts[slot], want);
            ret += memcmp(result + at, want, what.element) != 0;
        }
    return ret;
}

/* Each slot hears the others in an order of its own. */
static void bring_all_somehow(uint32_t self)
{
    uint32_t left[SLOTS * HOSTS], n = 0;
    for (uint32_t i = 0; i < SLOTS * HOSTS; i++)
        if (i % HOSTS != self)
            left[n++] = i;
    for (; n > 0; n--) {
        uint32_t at = (uint32_t)check_below(n), next = left[at];
        left[at] = left[n - 1];
        bring(next % HOSTS, next / HOSTS);
    }
}

static const unsigned dtypes[] = {UT_FLOAT32, UT_FLOAT64, UT_FLOAT16, UT_BFLOAT16};
static const unsigned redops[] = {UT_SUM, UT_AVG, UT_PROD};
static const uint64_t everybody[SLOTS] = {(1 << HOSTS) - 1, (1 << HOSTS) - 1, (1 << HOSTS) - 1};

static void ordered__any_order_at_any_owner_makes_the_same_bits(void)
{
    for (unsigned d = 0; d < 4; d++)
        for (unsigned r = 0; r < 3; r++)
            for (uint32_t round = 0; round < 40; round++) {
                uint32_t self = round % HOSTS;
                fill(dtypes[d]);
                begin(dtypes[d], redops[r], self, &ut_fold_ordered);
                bring_all_somehow(self);
                CHECK_EQ(fold.ready[1][plan.schedule.own], SLOTS);
                CHECK_EQ(fold.result.weight_min, HOSTS);
                CHECK_MSG(wrong(everybody) == 0, "dtype %u, redop %u, owner %u: %u elements differ", dtypes[d],
                          redops[r], self, wrong(everybody));
                uint64_t infinite = 0;
                for (uint64_t i = 0; i < plan.schedule.own_bytes / what.element && d != 1; i++) {
                    float x = widened(dtypes[d], result + plan.schedule.own_offset + i * what.element);
                    infinite += x - x != 0;
                }
                CHECK_EQ(fold.result.nonfinite, infinite);
            }
}

/* Else the test before this one would say nothing. */
static void ordered__the_plain_sum_of_them_has_other_bits(void)
{
    for (unsigned d = 0; d < 4; d++) {
        uint32_t differ = 0;
        for (uint32_t round = 0; round < 10; round++) {
            fill(dtypes[d]);
            begin(dtypes[d], UT_SUM, 3, NULL);
            bring_all_somehow(3);
            differ += wrong(everybody);
        }
        CHECK_MSG(differ > 10, "dtype %u: %u elements", dtypes[d], differ);
    }
}

static void ordered__who_did_not_come_is_left_out(void)
{
    for (unsigned d = 0; d < 4; d++) {
        fill(dtypes[d]);
        begin(dtypes[d], UT_AVG, 2, &ut_fold_ordered);
        bring(4, 0);
        bring(0, 0);
        bring(1, 2);
        bring(4, 2);
        bring(3, 2);
        for (uint32_t h = 0; h < HOSTS; h++)
            if (h != 2) {
                plan.transfer[from(h)].closed = 1;
                plan.transfer[from(h)].why = UT_MISSING_LOST;
            }
        CHECK(ut_fold_settle(&fold, false));
        const uint64_t in[SLOTS] = {1 << 0 | 1 << 2 | 1 << 4, 1 << 2, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4};
        CHECK_EQ(wrong(in), 0);
        CHECK_EQ(fold.result.weight_min, 1);
        CHECK_EQ(fold.ready[1][plan.schedule.own], SLOTS);
        for (uint32_t h = 0; h < HOSTS; h++) /* what is missing is missing for the reason that it was */
            CHECK(h == 2 || plan.transfer[from(h)].why == UT_MISSING_LOST);
    }
}

/* Of an op in which few own all, what comes may be more than there is room for. */
static void ordered__fits_what_all_owners_bring(void)
{
    const ut_job_config job = {.hosts = HOSTS, .bucket_bytes_max = COUNT * 4 + 4, .options = {.deterministic = 2}};
    ut_ordered o = {.kept = kept, .room = ut_ordered_bytes(&job)};
    for (uint64_t owners = 1; owners < 1 << HOSTS; owners++)
        for (uint64_t count = COUNT - 2; count <= COUNT + 1; count++) {
            uint32_t self = (uint32_t)__builtin_ctzll(owners), all = (uint32_t)__builtin_popcountll(owners);
            static ut_schedule s;
            ut_schedule_tar(&s, &(ut_layout){HOSTS, self, count, 4}, 1, 0, owners);
            CHECK_EQ(ut_ordered_fits(&o, &s), all + 1 >= HOSTS);
            for (uint32_t i = 0; i < s.steps; i++) /* hosts that own nothing because they are gone bring nothing */
                s.step[i].bytes = owners >> s.step[i].peer & 1 ? s.step[i].bytes : 0;
            CHECK(ut_ordered_fits(&o, &s));
        }
    o.kept = NULL;
    CHECK(!ut_ordered_fits(&o, &plan.schedule));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    ut_kernels_init(UT_ISA_AVX512);
    RUN(ordered__any_order_at_any_owner_makes_the_same_bits);
    RUN(ordered__the_plain_sum_of_them_has_other_bits);
    RUN(ordered__who_did_not_come_is_left_out);
    RUN(ordered__fits_what_all_owners_bring);
    return check_end();
}
