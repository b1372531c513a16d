/* SPDX-License-Identifier: Apache-2.0
 *
 * Sparse allreduces whose answers travel as int8, between whole engines. With one block to a chunk each bit of a result
 * is foretold: the exact sum of what all gave, divided, then rounded by the draws of the op, the owner and the chunk. A
 * draw of another stage or host, an owner that keeps its own sum, and NaN that is kept or counted twice show.
 */
#include "engines.h"

#include "core/face/engine_impl.h"
#include "core/plan/schedule.h"
#include "kernels/block.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/quant.h"

enum { COUNT = 1024, LONG = 4000, DST = ARENA - LONG * 4 };

static float exact[LONG], want[LONG];
static uint32_t count = COUNT;

static void submit(uint32_t h, uint64_t op, unsigned redop, uint64_t entries, uint8_t down)
{
    const ut_submission s = {.op_seq = op,
                             .dst = DST,
                             .count = count,
                             .deadline_ns = now + 900 * UT_MS,
                             .dtype = UT_FLOAT32,
                             .redop = (uint8_t)redop,
                             .mode = UT_BOUNDED,
                             .collective = UT_ALLREDUCE_SPARSE,
                             .entries = entries,
                             .alike.sparse = {.hint = 77, .group = 1, .form = UT_VALUE_FLOAT32, .down = down}};
    CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
    ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
}

/* Whole numbers by powers of two, so that sums are exact in whichever order; `exact` becomes their sum. */
static uint64_t give(uint32_t h, unsigned per_mille, bool bad)
{
    uint32_t *names = (uint32_t *)(void *)hosts[h].arena, entries = 0;
    static float values[LONG];
    for (uint32_t i = 0; i < count; i++)
        if (check_below(1000) < per_mille) {
            float x = ((float)check_below(2000) - 999.5f) * (i % 64 < 32 ? 1 : 0x1p-6f);
            if (bad && check_below(40) == 0)
                x = ut_float_of_bits(0x7f800000);
            if (i / 64 == 3) /* a whole stretch below 2^-100 */
                x *= 0x1p-112f;
            names[entries] = i;
            values[entries++] = x;
            exact[i] += x;
        }
    memcpy(names + entries, values, entries * sizeof *values);
    return entries;
}

/* The owner of each chunk rounds what is not zero of it, as one slot, or all of it where that is smaller: the block
 * itself says which, so both are tried, and the result has to be one of them in all elements. */
static bool one_of_both(uint64_t op, uint32_t owner, uint32_t chunk, uint32_t from, uint32_t end, uint32_t divisor,
                        const float *result)
{
    for (unsigned dense = 0; dense < 2; dense++) {
        float x[COUNT];
        uint32_t at[COUNT], m = 0;
        uint8_t slot[2 * COUNT];
        const ut_quant_rounding r = {.key = ut_quant_key(op, 1, owner, chunk, 0), .divisor = 1};
        memset(want + from, 0, (end - from) * sizeof *want);
        for (uint32_t i = from; i < end; i++)
            if (dense || exact[i] != 0) {
                at[m] = i;
                x[m++] = exact[i] / (float)divisor;
            }
        if (m) {
            (void)ut_quant_encode(UT_QUANT_INT8, slot, x, NULL, m, &r, NULL);
            ut_quant_decode(UT_QUANT_INT8, x, slot, m);
        }
        for (uint32_t i = 0; i < m; i++)
            want[at[i]] = x[i];
        if (memcmp(want + from, result + from, (end - from) * sizeof *want) == 0)
            return true;
    }
    return false;
}

static void op__answers_are_foretold_to_the_bit(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    unsigned bad = 0, flushed = 0;
    for (unsigned round = 0; round < 40; round++) {
        const unsigned rates[] = {0, 5, 50, 300, 900}, rate = rates[round % 5];
        n = 2 + (uint32_t)check_below(3);
        begin(tar);
        (void)ut_kernels_init((enum ut_isa)check_below(UT_ISA_BEST + 1));
        for (uint64_t op = 0; op < 3; op++) {
            const unsigned redop = check_below(2) ? UT_AVG : UT_SUM;
            const bool nans = check_below(4) == 0;
            memset(exact, 0, sizeof exact);
            for (uint32_t h = 0; h < n; h++)
                submit(h, op, redop, give(h, rate, nans), UT_VALUE_INT8);
            run(now + UT_SECOND);
            const float *first = (const float *)(const void *)(hosts[0].arena + DST);
            uint64_t nonfinite = 0;
            for (uint32_t i = 0; i < COUNT; i++)
                nonfinite += !(first[i] - first[i] == 0);
            for (uint32_t h = 0; h < n; h++) {
                ut_receipt r = receipt(h);
                CHECK_EQ(r.status, UT_COMPLETE);
                CHECK_EQ(r.nonfinite, nonfinite);
                CHECK((r.error_answer_squared > 0) == (rate > 0));
                CHECK(memcmp(hosts[h].arena + DST, first, COUNT * 4) == 0);
            }
            for (uint32_t h = 0; h < n; h++) {
                const uint32_t chunk = (uint32_t)((h + op) % n), all = COUNT / 16;
                const uint32_t from = all * chunk / n * 16, end = all * (chunk + 1) / n * 16;
                CHECK_MSG(one_of_both(op, h, chunk, from, end, redop == UT_AVG ? n : 1, first),
                          "op %u of %u hosts: the chunk of host %u is not what it rounds", (unsigned)op, n, h);
            }
            bad += nonfinite != 0;
            for (uint32_t i = 3 * 64; i < 4 * 64; i++)
                flushed += exact[i] != 0 && first[i] == 0;
        }
        end();
    }
    CHECK(bad > 5 && flushed > 100);
}

/* Where nothing is zero a block is dense, and has as many granules as fit: so each is foretold of several. */
static void op__each_block_has_draws_of_its_own(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    n = 2;
    count = LONG;
    begin(tar);
    memset(exact, 0, sizeof exact);
    for (uint32_t h = 0; h < n; h++)
        submit(h, 0, UT_AVG, give(h, 1000, false), UT_VALUE_INT8);
    run(now + UT_SECOND);
    const float *result = (const float *)(const void *)(hosts[0].arena + DST);
    const uint32_t payload = ut_wire_payload(1472, 0);
    uint32_t each = 0, blocks = 0;
    while (UT_BLOCK_HEADER + ut_values_bytes(UT_VALUE_INT8, each + 16) <= payload)
        each += 16;
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t from = c * (LONG / 32 * 16), end = c ? LONG : LONG / 32 * 16, b = 0; from < end; b++, blocks++) {
            const uint32_t m = UT_MIN2(each, end - from);
            uint8_t slot[2 * COUNT];
            float x[2 * COUNT];
            const ut_quant_rounding r = {.key = ut_quant_key(0, 1, c, c, b), .divisor = (float)n};
            (void)ut_quant_encode(UT_QUANT_INT8, slot, exact + from, NULL, m, &r, NULL);
            ut_quant_decode(UT_QUANT_INT8, x, slot, m);
            CHECK_MSG(memcmp(x, result + from, m * sizeof *x) == 0, "block %u of chunk %u", b, c);
            from += m;
        }
    CHECK_EQ(blocks, 4);
    CHECK(memcmp(result, hosts[1].arena + DST, LONG * sizeof *result) == 0);
    end();
    count = COUNT;
}

static void op__hosts_must_ask_for_the_same_answers(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    n = 2;
    begin(tar);
    for (uint32_t h = 0; h < n; h++)
        submit(h, 0, UT_SUM, 0, h ? UT_VALUE_INT8 : 0);
    run(now + UT_SECOND);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.error, UT_ERR_DESYNC);
    CHECK_EQ(r.field, UT_FIELD_DOWN);
    CHECK_EQ(r.value_here, 0);
    CHECK_EQ(r.value_there, UT_VALUE_INT8);
    CHECK_EQ(receipt(1).error, UT_ERR_DESYNC);
    end();
}

/* A quarter of float32's values travel back; contributions are as they were. */
static void op__answers_take_fewer_bytes(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    uint64_t bytes[2];
    for (unsigned down = 0; down < 2; down++) {
        n = 4;
        begin(tar);
        for (uint32_t h = 0; h < n; h++)
            submit(h, 0, UT_AVG, give(h, 1000, false), down ? UT_VALUE_INT8 : 0);
        run(now + UT_SECOND);
        ut_stats stats;
        ut_engine_stats(hosts[1].engine, &stats);
        bytes[down] = stats.data_sent_bytes;
        CHECK_EQ(receipt(1).status, UT_COMPLETE);
        end();
    }
    /* 3 contributions and 3 answers of 256 elements: answers of 4 + 256 + 2 bytes and a header for 1024 and one. */
    CHECK_MSG(bytes[0] - bytes[1] >= 3 * 760 && bytes[0] - bytes[1] <= 3 * 764, "%u and %u bytes", (unsigned)bytes[0],
              (unsigned)bytes[1]);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    ut_kernels_init(UT_ISA_BEST);
    RUN(op__answers_are_foretold_to_the_bit);
    RUN(op__each_block_has_draws_of_its_own);
    RUN(op__hosts_must_ask_for_the_same_answers);
    RUN(op__answers_take_fewer_bytes);
    return check_end();
}
