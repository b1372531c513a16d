/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs whose contributions travel in few bits. What an op should give is made here anew, of the kernels alone,
 * for the ranks that its receipt names, and held against the result and the residuals to the bit.
 */
#include "crew.h"

#include "kernels/quant.h"

enum { FLOATS = ELEMENTS * 2 - 60, LEFT = 2 /* the buffer of the residual */, PAYLOAD = 1440 };

static float given[MOST][FLOATS], left[MOST][FLOATS], want[FLOATS];
static bool feeds;

static ut_job_options policy(unsigned which)
{
    return (ut_job_options){.policy = (uint8_t)which};
}

static float *floats_at(uint32_t h, uint32_t place, uint32_t buffer)
{
    return (float *)(void *)(trainers[h][place].arena + buffer * BUFFER);
}

static ut_submission quantised(uint64_t wanted, unsigned flags, uint8_t forms)
{
    ut_submission s = words(wanted, flags);
    s.count = FLOATS;
    s.dtype = UT_FLOAT32;
    s.collective = UT_ALLREDUCE_QUANT;
    s.gift_forms = forms;
    s.rounding = feeds;
    s.gift_residual = feeds ? LEFT * BUFFER / UT_GIFT_RESIDUAL + 1 : 0;
    return s;
}

/* Gives other values each time, from one of two buffers. */
static void give_drawn(uint32_t h, ut_submission s)
{
    struct trainer *t = &trainers[h][0];
    t->buffer = !t->buffer;
    float *at = floats_at(h, 0, t->buffer);
    for (uint32_t i = 0; i < FLOATS; i++)
        at[i] = given[h][i] = (float)((int)check_below(2001) - 1000) * (float)(1 + i / 200) / 64;
    s.src = t->buffer * BUFFER;
    s.flags |= UT_SUBMIT_GIVE;
    submit(h, 0, s);
}

static uint32_t elements_of(uint8_t forms, uint32_t *ret_parts)
{
    const uint32_t each = ut_quant_elements(forms & 15, PAYLOAD), part = ut_quant_elements(forms >> 4, PAYLOAD);
    *ret_parts = (each + part - 1) / part;
    return each / *ret_parts;
}

/* What |who| of the hosts give becomes `want`, and what rounding took is in `left`. */
static void reduce(uint64_t seq, uint32_t who, uint8_t forms, float divisor)
{
    uint32_t parts;
    const uint32_t part = elements_of(forms, &parts), each = part * parts;
    for (uint32_t c = 0; c < n; c++) {
        const uint32_t end = FLOATS * (c + 1) / n, owner = (uint32_t)((c + n - seq % n) % n);
        for (uint32_t at = FLOATS * c / n, slot = 0; at < end; at += each, slot++) {
            const uint32_t len = UT_MIN2(each, end - at);
            float sum[UT_QUANT_ELEMENTS_MAX] = {0};
            uint8_t bytes[UT_PACKET_MAX];
            for (uint32_t h = 0; h < n; h++) {
                const ut_quant_rounding r = {ut_quant_key(seq, 0, h, c, slot), feeds, 1};
                if (!(who >> h & 1))
                    continue;
                ut_quant_encode(forms & 15, bytes, &given[h][at], feeds ? &left[h][at] : NULL, len, &r, NULL);
                ut_quant_add(forms & 15, sum, bytes, len);
            }
            for (uint32_t i = 0; i * part < len; i++) {
                const ut_quant_rounding r = {ut_quant_key(seq, 1, owner, c, slot * parts + i), false, divisor};
                const uint32_t some = UT_MIN2(part, len - i * part);
                ut_quant_encode(forms >> 4, bytes, sum + i * part, NULL, some, &r, NULL);
                ut_quant_decode(forms >> 4, want + at + i * part, bytes, some);
            }
        }
    }
}

static void check_floats(const float *got, const float *wanted, const char *what, uint32_t h)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        if (!check_that(memcmp(got + i, wanted + i, 4) == 0, __FILE__, __LINE__, "host %u, %s %u: %.9g, not %.9g", h,
                        what, i, (double)got[i], (double)wanted[i]))
            return;
}

static void start_crew(uint32_t hosts_, uint32_t places, unsigned which)
{
    begin(hosts_, places, policy(which));
    memset(left, 0, sizeof left);
    run(10 * UT_MS);
}

static const uint8_t all_forms[] = {0x44, 0x55, 0x66, 0x56, 0x46};

/* Any part of the hosts gives; averages by contributors and by world, sums; with residuals and without. */
static void quant__any_subset(void)
{
    for (unsigned round = 0; round < 20; round++) {
        const uint8_t forms = all_forms[round % 5];
        feeds = round % 2;
        start_crew(2 + (uint32_t)check_below(5), 1, UT_POLICY_PROBE);
        for (uint32_t op = 0; op < 4; op++) {
            const uint32_t who = (uint32_t)check_below((1u << n) - 1) + 1, count = (uint32_t)__builtin_popcount(who);
            const unsigned kind = (unsigned)check_below(3);
            ut_submission s = quantised(op, kind == 1 ? UT_SUBMIT_WORLD : 0, forms);
            s.redop = kind == 2 ? UT_SUM : UT_AVG;
            for (uint32_t h = 0; h < n; h++)
                if (who >> h & 1)
                    give_drawn(h, s);
            run(UT_MS);
            const uint32_t first = (uint32_t)__builtin_ctz(who);
            CHECK_EQ(ut_engine_activate(hosts[first].engine, 0, op, now), UT_OK);
            run(10 * UT_MS);
            reduce(op, who, forms, kind == 2 ? 1 : (float)(kind == 1 ? n : count));
            for (uint32_t h = 0; h < n; h++) {
                const bool in = who >> h & 1;
                if (!in)
                    ask(h, op, UT_SUBMIT_NOWAIT);
                ut_receipt r = receipt(h);
                if (!in) { /* it asked for float64: a desync, which tells that the op has ended */
                    CHECK_EQ(r.error, UT_ERR_DESYNC);
                    ut_submission reader = quantised(op, UT_SUBMIT_NOWAIT, 0);
                    reader.collective = UT_ALLREDUCE, reader.rounding = 0, reader.gift_residual = 0;
                    submit(h, 0, reader);
                    r = receipt(h);
                }
                CHECK_EQ(r.op_seq, op);
                CHECK_EQ(r.status, UT_COMPLETE);
                CHECK_EQ(r.wire, forms);
                CHECK_EQ(r.included, count);
                CHECK_EQ(r.weight_min, count);
                CHECK_HEX(r.full_mask, who);
                CHECK_EQ(r.bytes_missing, 0);
                CHECK_EQ(r.digest, newest(0).digest);
                CHECK(r.bytes_used >= r.wire_received); /* dense bytes are counted */
                check_floats(floats_at(h, 0, RESULT), want, "element", h);
                if (feeds)
                    check_floats(floats_at(h, 0, LEFT), left[h], "residual", h);
            }
        }
        ut_stats stats;
        ut_engine_stats(hosts[0].engine, &stats);
        CHECK_EQ(stats.replicas_differ, 0);
        CHECK_EQ(stats.bad_submissions, 0);
        end();
    }
}

/* What came too late waits, and its residual with it; the next op takes both. */
static void quant__late(void)
{
    feeds = true;
    start_crew(2, 1, UT_POLICY_SOLO);
    for (uint32_t i = 0; i < FLOATS; i++)
        floats_at(0, 0, LEFT)[i] = left[0][i] = (float)(i % 7) / 512;
    give_drawn(1, quantised(0, 0, 0x55));
    run(10 * UT_MS);
    CHECK_EQ(receipt(1).included, 1);
    reduce(0, 2, 0x55, 1);
    check_floats(floats_at(1, 0, RESULT), want, "element", 1);
    give_drawn(0, quantised(0, 0, 0x55));
    CHECK_EQ(receipt(0).kept, 1);
    check_floats(floats_at(0, 0, RESULT), want, "element", 0);
    run(10 * UT_MS);
    check_floats(floats_at(0, 0, LEFT), left[0], "residual", 0);
    give_drawn(0, quantised(1, UT_SUBMIT_REPLACE, 0x55)); /* the client has added the two up */
    give_drawn(1, quantised(1, 0, 0x55));
    run(10 * UT_MS);
    const ut_receipt r = receipt(0);
    CHECK_EQ(r.op_seq, 1);
    CHECK_EQ(r.included, 2);
    CHECK_EQ(r.slot, UT_SLOT_STALE);
    reduce(1, 3, 0x55, 2);
    for (uint32_t h = 0; h < 2; h++) {
        check_floats(floats_at(h, 0, RESULT), want, "element", h);
        check_floats(floats_at(h, 0, LEFT), left[h], "residual", h);
    }
    end();
}

/* Nothing comes back of a contribution whose trainer has gone: in the holes stands what it gave, wherever that lay. */
static void quant__holes_after_the_trainer_has_gone(void)
{
    for (unsigned by_world = 0; by_world < 2; by_world++) {
        feeds = false;
        start_crew(2, 2, UT_POLICY_SOLO);
        silent = 2;
        ut_submission s = quantised(0, by_world ? UT_SUBMIT_WORLD : 0, 0x55);
        s.deadline_ns = now + 50 * UT_MS;
        ut_submission reader = s;
        reader.collective = UT_ALLREDUCE, reader.gift_forms = reader.rounding = 0;
        reader.deadline_ns = now + 200 * UT_MS;
        submit(0, 1, reader);
        give_drawn(0, s);
        run(5 * UT_MS);
        ut_engine_session_remove(hosts[0].engine, trainers[0][0].session, now);
        memset(trainers[0][0].arena, 0x77, ARENA);
        run(100 * UT_MS);
        const ut_receipt r = receipt_at(0, 1);
        CHECK_EQ(r.status, UT_INSUFFICIENT);
        CHECK_EQ(r.included, 1);
        const uint64_t from = FLOATS / 2; /* host 1 owns the second half of op 0 */
        const float *got = floats_at(0, 1, RESULT);
        for (uint32_t i = (uint32_t)from; i < FLOATS; i++)
            CHECK(got[i] == given[0][i] / (by_world ? 4 : 1));
        end();
    }
}

static void quant__a_host_alone(void)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        feeds = true;
        start_crew(1, 1, UT_POLICY_SOLO);
        ut_submission s = quantised(0, kind == 1 ? UT_SUBMIT_WORLD : 0, 0x56);
        s.redop = kind == 2 ? UT_SUM : UT_AVG;
        give_drawn(0, s);
        run(UT_MS);
        CHECK_EQ(receipt(0).status, UT_COMPLETE);
        reduce(0, 1, 0x56, 1);
        check_floats(floats_at(0, 0, RESULT), want, "element", 0);
        check_floats(floats_at(0, 0, LEFT), left[0], "residual", 0);
        end();
    }
}

static void quant__refused(void)
{
    feeds = false;
    start_crew(2, 1, UT_POLICY_SOLO);
#define ROW(why, change_)                                                                                              \
    do {                                                                                                               \
        ut_submission s = quantised(0, UT_SUBMIT_GIVE, 0x55);                                                          \
        change_;                                                                                                       \
        submit(0, 0, s);                                                                                               \
        CHECK_EQ(receipt(0).error, why);                                                                               \
    } while (0)
    ROW(UT_ERR_ARGUMENT, s.gift_forms = 0);
    ROW(UT_ERR_ARGUMENT, s.gift_forms = 0x65);
    ROW(UT_ERR_ARGUMENT, s.gift_forms = 0x75);
    ROW(UT_ERR_ARGUMENT, s.flags = 0); /* it only asks */
    ROW(UT_ERR_ARGUMENT, s.flags |= UT_SUBMIT_WEIGHTED);
    ROW(UT_ERR_ARGUMENT, s.rounding = 2);
    ROW(UT_ERR_ARGUMENT, s.portion = 0x20);
    ROW(UT_ERR_ARGUMENT, s.collective = UT_ALLREDUCE); /* forms of a dense one */
    ROW(UT_ERR_DTYPE, s.dtype = UT_FLOAT64);
    ROW(UT_ERR_REDOP, s.redop = UT_MAX);
    ROW(UT_ERR_TOO_LARGE, s.count = 1 << 20);
    ROW(UT_ERR_RANGE, s.dst = 2);
    ROW(UT_ERR_RANGE, s.gift_residual = UINT32_MAX);
    ROW(UT_ERR_RANGE, s.gift_residual = 1); /* where the contribution lies */
    ROW(UT_ERR_RANGE, s.gift_residual = (RESULT * BUFFER) / UT_GIFT_RESIDUAL + 2);
    ROW(UT_ERR_RANGE, s.flags |= UT_SUBMIT_STICKY; s.dst = s.src);
#undef ROW
    CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), 0); /* nothing has started */
    end();
}

/* Hosts that give in other forms, or dense, name the field. */
static void quant__desync(void)
{
    for (unsigned row = 0; row < 2; row++) {
        feeds = false;
        start_crew(2, 1, UT_POLICY_SOLO);
        ut_submission other = quantised(0, 0, row ? 0x55 : 0);
        if (!row)
            other.collective = UT_ALLREDUCE;
        give_drawn(0, quantised(0, 0, 0x66));
        give_drawn(1, other);
        run(20 * UT_MS);
        for (uint32_t h = 0; h < 2; h++) {
            const ut_receipt r = newest(h);
            CHECK_EQ(r.error, UT_ERR_DESYNC);
            CHECK_EQ(r.field, UT_FIELD_WIRE);
            CHECK_EQ(r.value_here, h ? (row ? 0x55 : 0) : 0x66);
        }
        end();
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(quant__any_subset);
    RUN(quant__late);
    RUN(quant__holes_after_the_trainer_has_gone);
    RUN(quant__a_host_alone);
    RUN(quant__refused);
    RUN(quant__desync);
    return check_end();
}
