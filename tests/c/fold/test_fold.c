/* SPDX-License-Identifier: Apache-2.0
 *
 * What slots hold, without an op: a table of steps of four hosts, buffers, and contributions handed in by the test. The
 * plain sum; and a rule of the test's own, with coefficients that depend on who came (core/fold/fold.h).
 */
#include "check.h"

#include "core/base/bits.h"
#include "core/base/digest.h"
#include "core/fold/fold.h"
#include "kernels/kernels.h"

enum { HOSTS = 4, FLOATS = 16, P = FLOATS * 4, COUNT = HOSTS * 40, SLOTS = 3 /* of a shard: 16, 16 and 8 floats */ };

static ut_op_what what;
static ut_op_plan plan;
static ut_op_memory memory;
static ut_op_fold fold;
static ut_work turn;
static float mine[COUNT], result[COUNT];
static uint8_t state[HOSTS * SLOTS];
static uint16_t weight[HOSTS * SLOTS];
static uint32_t crc[HOSTS * SLOTS];
static uint64_t bits[64];

/* Host 0's view of an average over all, by TAR; it has summed nothing yet. */
static void begin(const ut_fold_rule *rule, void *rule_memory)
{
    what = (ut_op_what){.dtype = UT_FLOAT32,
                        .redop = UT_AVG,
                        .mode = UT_BOUNDED,
                        .count = COUNT,
                        .bytes = sizeof mine,
                        .element = 4,
                        .acc_element = 4};
    ut_schedule_tar(&plan.schedule, &(ut_layout){HOSTS, 0, COUNT, 4}, HOSTS - 1, 0, (1 << HOSTS) - 1);
    for (uint32_t i = 0; i < plan.schedule.steps; i++)
        ut_transfer_init(&plan.transfer[i], plan.schedule.step[i].bytes, P, &bits[2 * i], &bits[2 * i + 1]);
    for (unsigned i = 0; i < COUNT; i++)
        mine[i] = (float)i;
    memory = (ut_op_memory){.src = (const uint8_t *)mine,
                            .dst = (uint8_t *)result,
                            .out = (const uint8_t *)result,
                            .held_from = plan.schedule.own_offset,
                            .acc = (uint8_t *)result + plan.schedule.own_offset};
    turn = (ut_work){0};
    ut_work_begin_turn(&turn);
    ut_fold_init(&fold, &what, &plan, &memory, &turn, &(ut_fold_job){P, HOSTS, HOSTS, 0});
    fold.state = state;
    fold.weight = weight;
    fold.crc = crc;
    fold.rule = rule;
    fold.rule_memory = rule_memory;
    ut_fold_open(&fold, 1, 0);
}

/* The step by which |host| contributes to this host's shard. */
static uint32_t from(uint32_t host)
{
    for (uint32_t i = 0; i < plan.schedule.steps; i++)
        if (plan.schedule.step[i].kind == UT_STEP_RECEIVE && plan.schedule.step[i].stage == 1 &&
            plan.schedule.step[i].peer == host)
            return i;
    CHECK(!"no such step");
    return 0;
}

static uint32_t floats_of(uint32_t slot)
{
    return slot + 1 == SLOTS ? 8 : FLOATS;
}

static float own_at(uint32_t slot, unsigned i)
{
    return mine[plan.schedule.own_offset / 4 + slot * FLOATS + i];
}

static float result_at(uint32_t slot, unsigned i)
{
    return result[plan.schedule.own_offset / 4 + slot * FLOATS + i];
}

/* |host| brings |scale| times what this host has. */
static void bring(uint32_t host, uint32_t slot, float scale)
{
    float payload[FLOATS];
    uint32_t i = from(host);
    for (unsigned k = 0; k < floats_of(slot); k++)
        payload[k] = scale * own_at(slot, k);
    CHECK(!ut_fold_moot(&fold, &plan.schedule.step[i], slot));
    CHECK(ut_transfer_mark(&plan.transfer[i], slot));
    ut_fold_add(&fold, &plan.schedule.step[i], slot,
                &(ut_payloads){.first = (const uint8_t *)payload, .len = floats_of(slot) * 4, .slots = 1}, 1);
}

static void check_slot(uint32_t slot, float times, unsigned ranks)
{
    uint32_t g = fold.first[plan.schedule.own] + slot;
    CHECK_EQ(fold.weight[g], ranks);
    for (unsigned i = 0; i < floats_of(slot); i++)
        if (!CHECK_DOUBLE(result_at(slot, i), times * own_at(slot, i)))
            return;
}

static void fold__a_plain_average_is_there_when_all_have_come(void)
{
    begin(NULL, NULL);
    CHECK_EQ(fold.ready[1][plan.schedule.own], 0);
    for (uint32_t slot = SLOTS; slot-- > 0;) /* the last slot first: readiness is from the first on */
        for (uint32_t h = 1; h < HOSTS; h++)
            bring(h, slot, (float)h);
    CHECK_EQ(fold.ready[1][plan.schedule.own], SLOTS);
    uint64_t digest = 0;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        uint64_t at = plan.schedule.own_offset + slot * P;
        check_slot(slot, (1 + 1 + 2 + 3) / 4.0f, HOSTS);
        CHECK(ut_fold_moot(&fold, &plan.schedule.step[from(1)], slot));
        digest += ut_digest_part(ut_crc32c(0, (uint8_t *)result + at, floats_of(slot) * 4), at, floats_of(slot) * 4);
    }
    CHECK_HEX(fold.result.digest, digest);
    CHECK_EQ(fold.result.weight_min, HOSTS);
}

static void fold__a_plain_average_is_over_those_that_came(void)
{
    begin(NULL, NULL);
    bring(1, 0, 1);
    bring(2, 0, 4);
    bring(3, 2, 3);
    for (uint32_t h = 1; h < HOSTS; h++)
        plan.transfer[from(h)].closed = 1;
    CHECK(ut_fold_settle(&fold, false));
    check_slot(0, 2, 3);
    check_slot(1, 1, 1);
    check_slot(2, 2, 2);
    CHECK_EQ(fold.result.weight_min, 1);
    CHECK_EQ(fold.ready[1][plan.schedule.own], SLOTS);
}

/* ---- a rule: two of three suffice, with coefficients by who came ----
 *
 * The others bring 1, 2 and 3 times some vector, and the slot is to hold our own and 3 times that vector. */
typedef struct code {
    unsigned opened;
    uint8_t came[HOSTS * SLOTS]; /* bit per host */
    float kept[HOSTS * SLOTS][HOSTS][FLOATS];
} code;

static void code_open(ut_op_fold *f)
{
    code *c = f->rule_memory;
    c->opened++;
    memset(c->came, 0, sizeof c->came);
}

static bool code_arrive(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len,
                        unsigned ranks)
{
    code *c = f->rule_memory;
    uint32_t g = f->first[s->chunk] + slot;
    (void)ranks;
    c->came[g] |= (uint8_t)(1 << s->peer);
    memcpy(c->kept[g][s->peer], payload, len);
    return true;
}

static bool code_enough(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    const code *c = f->rule_memory;
    return __builtin_popcount(c->came[f->first[chunk] + slot]) >= 2;
}

static size_t code_finish(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint8_t *dst, size_t len)
{
    static const float coefficient[1 << HOSTS][HOSTS] = {
        [1 << 1 | 1 << 2] = {0, 1, 1, 0}, [1 << 1 | 1 << 3] = {0, 0, 0, 1}, [1 << 2 | 1 << 3] = {0, 0, 0, 1}};
    const code *c = f->rule_memory;
    uint32_t g = f->first[chunk] + slot;
    const float *a = coefficient[c->came[g]];
    for (size_t i = 0; i < len / 4; i++) {
        float own, sum = 0;
        memcpy(&own, ut_fold_own(f, chunk, slot) + i * 4, 4);
        for (uint32_t h = 1; h < HOSTS; h++)
            sum += c->came[g] >> h & 1 ? a[h] * c->kept[g][h][i] : 0;
        sum += own;
        memcpy(dst + i * 4, &sum, 4);
    }
    return 0;
}

static const ut_fold_rule two_of_three = {
    .open = code_open, .arrive = code_arrive, .enough = code_enough, .finish = code_finish};

static void fold__a_rule_decodes_each_slot_from_whoever_came(void)
{
    static code c;
    c.opened = 0;
    begin(&two_of_three, &c);
    CHECK_EQ(c.opened, 1);
    bring(1, 0, 1);
    CHECK_EQ(fold.ready[1][plan.schedule.own], 0);
    bring(2, 0, 2);
    check_slot(0, 1 + 3, 3);
    bring(3, 1, 3);
    bring(1, 1, 1);
    check_slot(1, 1 + 3, 3);
    CHECK(ut_fold_moot(&fold, &plan.schedule.step[from(2)], 1)); /* the third is not needed */
    CHECK(!plan.transfer[from(2)].closed);
    bring(2, 2, 2);
    bring(3, 2, 3);
    check_slot(2, 1 + 3, 3);
    for (uint32_t h = 1; h < HOSTS; h++)
        CHECK(ut_transfer_over(&plan.transfer[from(h)])); /* and nobody is waited for */
    CHECK_EQ(fold.ready[1][plan.schedule.own], SLOTS);
    begin(&two_of_three, &c);
    CHECK_EQ(c.opened, 2); /* what came to the op before is forgotten */
    CHECK_EQ(c.came[0], 0);
}

static void fold__a_rule_makes_what_it_can_when_no_more_comes(void)
{
    static code c;
    begin(&two_of_three, &c);
    bring(2, 1, 2);
    for (uint32_t h = 1; h < HOSTS; h++)
        plan.transfer[from(h)].closed = 1;
    CHECK(ut_fold_settle(&fold, false));
    check_slot(0, 1, 1);
    check_slot(1, 1, 2); /* came, but cannot be decoded alone */
    CHECK_EQ(fold.ready[1][plan.schedule.own], SLOTS);
    CHECK_EQ(fold.final >> plan.schedule.own & 1, 1);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    ut_kernels_init(UT_ISA_PLAIN);
    RUN(fold__a_plain_average_is_there_when_all_have_come);
    RUN(fold__a_plain_average_is_over_those_that_came);
    RUN(fold__a_rule_decodes_each_slot_from_whoever_came);
    RUN(fold__a_rule_makes_what_it_can_when_no_more_comes);
    return check_end();
}
