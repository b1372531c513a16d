/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised allreduces between whole engines: what is refused at the door, how few bytes travel, and that no byte
 * behind a result is written. Values to the bit are the simulator's (sim/quant/).
 */
#include "engines.h"

#include "core/face/engine_impl.h"
#include "kernels/kernels.h"
#include "kernels/quant.h"

enum { FLOATS = 2500, DST = 16384, LEFT = 32768 };

static ut_submission submission(uint64_t op, uint8_t forms)
{
    return (ut_submission){.op_seq = op,
                           .dst = DST,
                           .count = FLOATS,
                           .deadline_ns = now + 900 * UT_MS,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED,
                           .collective = UT_ALLREDUCE_QUANT,
                           .alike.quant = {.forms = forms}};
}

static void submit(uint32_t h, const ut_submission *s)
{
    CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, s), UT_OK);
    ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
}

static void begin_two(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    n = 2;
    begin(tar);
}

static void op__bad_input(void)
{
    begin_two();
    uint64_t op = 0;
#define ROW(why, change_)                                                                                              \
    for (uint32_t h = 0; h < n; h++) {                                                                                 \
        ut_submission s = submission(op, 0x55);                                                                        \
        change_;                                                                                                       \
        submit(h, &s);                                                                                                 \
    }                                                                                                                  \
    op++;                                                                                                              \
    for (uint32_t h = 0; h < n; h++)                                                                                   \
    CHECK_EQ(receipt(h).error, why)
    ROW(UT_ERR_ARGUMENT, s.alike.quant.forms = 0);
    ROW(UT_ERR_ARGUMENT, s.alike.quant.forms = 0x05);
    ROW(UT_ERR_ARGUMENT, s.alike.quant.forms = 0x75);
    ROW(UT_ERR_ARGUMENT, s.alike.quant.forms = 0x65); /* answers coarser than contributions */
    ROW(UT_ERR_ARGUMENT, s.alike.quant.none = 1);
    ROW(UT_ERR_ARGUMENT, s.alike.quant.zero[0] = 1);
    ROW(UT_ERR_ARGUMENT, s.rounding = 2);
    ROW(UT_ERR_ARGUMENT, s.flags = UT_SUBMIT_WORLD);
    ROW(UT_ERR_ARGUMENT, s.residual |= UINT64_C(1) << UT_RESIDUAL_BITS); /* a weight, and nothing says so */
    ROW(UT_ERR_REDOP, s.flags = UT_SUBMIT_WEIGHTED; s.redop = UT_SUM);
    ROW(UT_ERR_DTYPE, s.dtype = UT_FLOAT64);
    ROW(UT_ERR_DTYPE, s.dtype = UT_INT32);
    ROW(UT_ERR_REDOP, s.redop = UT_MAX);
    ROW(UT_ERR_TOO_LARGE, s.count = 1 << 20);
    ROW(UT_ERR_RANGE, s.dst = DST + 2);
    ROW(UT_ERR_RANGE, s.dst = 4);
    ROW(UT_ERR_RANGE, s.src = ARENA - 32);
    ROW(UT_ERR_RANGE, s.residual = LEFT + 2);
    ROW(UT_ERR_RANGE, s.residual = ARENA - 32 + 1);
    ROW(UT_ERR_RANGE, s.residual = (UINT64_C(1) << UT_RESIDUAL_BITS) - 1);
    ROW(UT_ERR_RANGE, s.residual = 4 + 1);
    ROW(UT_ERR_RANGE, s.residual = DST + 4 * FLOATS - 4 + 1);
#undef ROW
    ut_stats stats;
    ut_engine_stats(hosts[0].engine, &stats);
    CHECK_EQ(stats.bad_submissions, op);
    CHECK_EQ(stats.data_sent, 0);
    end();
}

/* The daemon counts by form what the op has moved: just what its receipt says, once. */
static void check_told(uint32_t h, const ut_receipt *r)
{
    unsigned told = 0;
    for (ut_event e; ut_engine_poll_event(hosts[h].engine, &e);)
        if (e.kind == UT_EVENT_QUANT) {
            told++;
            CHECK_EQ(e.op_seq, r->op_seq);
            CHECK_EQ(e.a, r->wire);
            CHECK_EQ(e.b, r->wire_sent);
            CHECK_EQ(e.c, r->wire_received);
            CHECK_EQ(e.d, r->bytes_used);
        }
    CHECK_EQ(told, r->wire ? 1 : 0);
}

/* Forms, and headers of a slot: a data packet has 32 bytes of our own. */
static void op__sends_few_bytes_and_counts_dense_ones(void)
{
    static const struct {
        uint8_t forms;
        double most; /* of dense payload */
    } rows[] = {{0x44, 0.51}, {0x55, 0.27}, {0x66, 0.15}, {0x56, 0.21}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin_two();
        for (uint32_t h = 0; h < n; h++) {
            memset(hosts[h].arena, 0x5a, ARENA);
            float *x = (float *)(void *)hosts[h].arena, *left = (float *)(void *)(hosts[h].arena + LEFT);
            for (uint32_t k = 0; k < FLOATS; k++) {
                x[k] = (float)(k % 13) - 6;
                left[k] = 0;
            }
            ut_submission s = submission(0, rows[i].forms);
            s.residual = LEFT + 1;
            s.rounding = 1;
            submit(h, &s);
        }
        run(now + UT_SECOND);
        for (uint32_t h = 0; h < n; h++) {
            const ut_receipt r = receipt(h);
            const float *out = (const float *)(const void *)(hosts[h].arena + DST);
            const float *left = (const float *)(const void *)(hosts[h].arena + LEFT);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.wire, rows[i].forms);
            CHECK_EQ(r.bytes_expected, 4 * FLOATS);
            CHECK_EQ(r.bytes_used, 4 * FLOATS);
            check_told(h, &r);
            CHECK((double)r.wire_sent <= rows[i].most * 4 * FLOATS);
            CHECK(r.wire_received > 0 && r.error_given_squared > 0 && r.error_answer_squared > 0);
            CHECK_EQ(memcmp(hosts[0].arena + DST, hosts[h].arena + DST, 4 * FLOATS), 0);
            for (uint32_t k = 0; k < FLOATS; k++) {
                const float given = (float)(k % 13) - 6, step = 6.0f * 17 / 16 / ((rows[i].forms & 15) == 6 ? 7 : 127);
                CHECK(left[k] <= step / 2 + 1e-6f && left[k] >= -step / 2 - 1e-6f);
                CHECK(out[k] - 2 * given <= 4 * step && out[k] - 2 * given >= -4 * step);
            }
            const uint8_t *behind = hosts[h].arena + DST + 4 * FLOATS;
            for (uint32_t k = 0; k < 64; k++)
                CHECK_EQ(behind[k], 0x5a);
        }
        end();
    }
}

static void take_records(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    ut_feedback f;
    (void)from, (void)to;
    if (port != UT_PORT_FEEDBACK || ut_feedback_decode(&f, packet, len, UT_CHECK_SUM))
        return;
    for (unsigned i = 0; i < f.records; i++)
        f.record[i].op_seq = 0x100000; /* one that is not heard */
    (void)ut_feedback_encode(packet, &f);
}

/* A dense slot and a quantised one may be as long: before any record has come the tag alone tells them apart. */
static void op__other_forms_are_refused_before_the_record(void)
{
    static const uint8_t forms[][2] = {{0x55, 0}, {0x55, 0x66}, {0x56, 0x66}};
    for (unsigned i = 0; i < sizeof forms / sizeof *forms; i++) {
        begin_two();
        change = take_records;
        for (uint32_t h = 0; h < n; h++) {
            memset(hosts[h].arena, 0, ARENA);
            ut_submission s = submission(0, forms[i][h]);
            if (!forms[i][h])
                s.collective = UT_ALLREDUCE;
            submit(h, &s);
        }
        run(now + UT_SECOND);
        for (uint32_t h = 0; h < n; h++) {
            ut_stats stats;
            ut_engine_stats(hosts[h].engine, &stats);
            CHECK(stats.data_refused > 0);
            CHECK_EQ(stats.data_used, 0);
            CHECK_EQ(receipt(h).status, UT_INSUFFICIENT);
        }
        end();
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    ut_kernels_init(UT_ISA_BEST);
    RUN(op__bad_input);
    RUN(op__other_forms_are_refused_before_the_record);
    RUN(op__sends_few_bytes_and_counts_dense_ones);
    return check_end();
}
