/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole engines of deterministic jobs: packets come in another order each time, some twice and some after a loss, and
 * the sums have the same bits. Without the option they have not.
 */
#include "engines.h"

enum { RUNS = 9, RUNS_MOST = 50 };

static uint8_t brought[MOST][ELEMENTS * 4];

/* Floats, or halves of them, of which two cancel out: what was small beside them has lost its last bits if it was added
 * between the two. */
static void draw(uint8_t dtype)
{
    for (uint32_t h = 0; h < n; h++)
        for (unsigned i = 0; i < ELEMENTS; i++) {
            float x = h == i % n ? 0x1p20f : h == (i + 1) % n ? -0x1p20f : (float)(1 + check_below(1 << 10)) / 0x1p9f;
            uint32_t u;
            uint16_t brain;
            memcpy(&u, &x, 4);
            brain = (uint16_t)(u >> 16);
            memcpy(brought[h] + (dtype == UT_FLOAT32 ? 4 : 2) * i, dtype == UT_FLOAT32 ? (void *)&x : &brain,
                   dtype == UT_FLOAT32 ? 4 : 2);
        }
}

/* Op |seq| with what was drawn; |ret| is the result, which all hosts must have. */
static void once(uint64_t seq, uint8_t collective, uint8_t dtype, uint8_t redop, uint8_t *ret)
{
    size_t bytes = ELEMENTS * ut_dtype_bytes(dtype), shard = bytes / n;
    for (uint32_t h = 0; h < n; h++) {
        memcpy(hosts[h].arena, brought[h], bytes);
        ut_submission s = {.op_seq = seq,
                           .dst = ELEMENTS * 8,
                           .count = ELEMENTS,
                           .deadline_ns = now + 20 * UT_SECOND,
                           .dtype = dtype,
                           .redop = redop,
                           .mode = UT_RELIABLE,
                           .collective = collective};
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
        if (check_below(2))
            run(now + check_below(3 * UT_MS)); /* calls are apart */
    }
    run(now + 3 * UT_SECOND);
    for (uint32_t h = 0; h < n; h++) {
        ut_receipt r = receipt(h);
        const uint8_t *mine = hosts[h].arena + ELEMENTS * 8;
        CHECK_EQ(r.status, UT_COMPLETE);
        if (collective == UT_REDUCE_SCATTER)
            memcpy(ret + h * shard, mine, shard);
        else if (h == 0)
            memcpy(ret, mine, bytes);
        else
            CHECK_BYTES(ret, mine, bytes);
    }
}

/* How many of |runs| of the same two ops, each on hosts anew, have other bits than the first; no more once |enough|
 * have. */
static unsigned differ(uint8_t algorithm, uint8_t collective, uint8_t dtype, uint8_t redop, unsigned runs,
                       unsigned enough)
{
    static uint8_t first[ELEMENTS * 4], again[ELEMENTS * 4];
    uint8_t same[MOST];
    unsigned ret = 0;
    memset(same, algorithm, sizeof same);
    draw(dtype);
    for (unsigned k = 0; k < runs && ret < enough; k++) {
        begin(same);
        late_ppm = 500000;
        loss_ppm = k % 2 ? 20000 : 0;
        for (uint64_t op = 0; op < 2; op++)
            once(op, collective, dtype, redop, k ? again : first);
        ret += k && memcmp(first, again, ELEMENTS * ut_dtype_bytes(dtype));
        end();
    }
    return ret;
}

static void ordered__runs_repeat_bit_by_bit(void)
{
    static const struct {
        uint8_t algorithm, collective, dtype, redop;
    } rows[] = {
        {UT_TAR, UT_ALLREDUCE, UT_FLOAT32, UT_SUM},      {UT_TAR, UT_ALLREDUCE, UT_FLOAT32, UT_AVG},
        {UT_TAR, UT_ALLREDUCE, UT_BFLOAT16, UT_AVG},     {UT_TAR, UT_ALLREDUCE, UT_FLOAT32, UT_PROD},
        {UT_TAR, UT_REDUCE_SCATTER, UT_FLOAT32, UT_SUM}, {UT_PS, UT_ALLREDUCE, UT_FLOAT32, UT_SUM},
        {UT_RING, UT_ALLREDUCE, UT_FLOAT32, UT_SUM},     {UT_RING, UT_REDUCE_SCATTER, UT_FLOAT32, UT_AVG},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        n = 3 + (uint32_t)i % 2 * 3; /* divisors of the elements */
        ordered = true;
        unsigned found = differ(rows[i].algorithm, rows[i].collective, rows[i].dtype, rows[i].redop, RUNS, RUNS);
        CHECK_MSG(found == 0, "row %zu, %u hosts: %u of %d runs differ", i, n, found, RUNS - 1);
        ordered = false;
        bool forwards = rows[i].algorithm == UT_RING && rows[i].collective == UT_ALLREDUCE;
        found =
            forwards ? 1 : differ(rows[i].algorithm, rows[i].collective, rows[i].dtype, rows[i].redop, RUNS_MOST, 1);
        CHECK_MSG(found > 0, "row %zu, %u hosts: no run differs without the option", i, n);
    }
}

/* Whichever host owns a shard in an op, its sum is the same, so the same bucket in another op has the same bits. */
static void ordered__is_the_order_of_hosts_whoever_owns_what(void)
{
    static uint8_t found[ELEMENTS * 4];
    const uint8_t tar[MOST] = {UT_TAR, UT_TAR, UT_TAR, UT_TAR, UT_TAR};
    n = 5;
    ordered = true;
    draw(UT_FLOAT32);
    begin(tar);
    late_ppm = 300000;
    for (uint64_t op = 0; op < 7; op++) {
        unsigned wrong = 0;
        once(op, UT_ALLREDUCE, UT_FLOAT32, UT_SUM, found);
        for (unsigned i = 0; i < ELEMENTS; i++) {
            float sum, x;
            memcpy(&sum, brought[0] + 4 * i, 4);
            for (uint32_t h = 1; h < n; h++) {
                memcpy(&x, brought[h] + 4 * i, 4);
                sum += x;
            }
            wrong += memcmp(&sum, found + 4 * i, 4) != 0;
        }
        CHECK_EQ(wrong, 0);
    }
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ordered__runs_repeat_bit_by_bit);
    RUN(ordered__is_the_order_of_hosts_whoever_owns_what);
    return check_end();
}
