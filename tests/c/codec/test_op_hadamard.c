/* SPDX-License-Identifier: Apache-2.0
 *
 * An op that travels transformed, between two whole engines: sums and averages come back, a lost row is spread over its
 * group and no further, a lost group holds the host's own value, and a packet of the other kind is refused.
 */
#define _DEFAULT_SOURCE
#include "pair.h"

#include <math.h>

#include "core/codec/hadamard.h"
#include "core/plan/schedule.h"
#include "core/wire/packets.h"
#include "kernels/hadamard.h"

/* 8001 floats: shards of 4000 and 4001, 12 slots of 360, the last short: groups of 8, 2 and 1 rows, and the short one.
 */
enum { COUNT = 8001, P = 1440, SLOTS = 12 };

static float *floats(uint32_t h)
{
    return (float *)(void *)hosts[h].rank[0].arena;
}

static float value_of(uint32_t h, uint64_t i)
{
    return (float)((int64_t)(i * 37 % 201) - 100 + 1000 * h);
}

static float mean_of(uint64_t i)
{
    return (value_of(0, i) + value_of(1, i)) / 2;
}

/* Op |seq| on both hosts; the result out of place if |dst|. */
static void all_reduce(uint64_t seq, unsigned redop, ut_ns budget)
{
    for (uint32_t h = 0; h < HOSTS; h++) {
        for (uint64_t i = 0; i < COUNT; i++)
            floats(h)[i] = value_of(h, i);
        ut_submission s = call_of(seq, COUNT, redop, UT_BOUNDED, budget);
        s.dtype = UT_FLOAT32;
        submit(h, 0, s);
    }
    run(now + budget + 20 * UT_MS);
}

static void check_exact(uint32_t h, unsigned redop)
{
    for (uint64_t i = 0; i < COUNT; i++)
        if (!CHECK_DOUBLE(floats(h)[i], redop == UT_AVG ? mean_of(i) : 2 * mean_of(i)))
            return;
}

/* Both engines transform from op 8 on: host 0 would have it so, and both are handed an epoch with its wish. */
static void transformed_world(void)
{
    world(1, 0);
    const ut_job_options on = {.hadamard = UT_HADAMARD_ON}, off = {.hadamard = UT_HADAMARD_OFF};
    ut_epoch epoch = {.number = 1, .id = 0x76, .members = 3, .owners = 3, .world = HOSTS, .options = on};
    uint64_t next;
    CHECK_EQ(ut_engine_epoch(hosts[0].engine, 3, &epoch, now), UT_OK);
    epoch.options = off;
    CHECK_EQ(ut_engine_epoch(hosts[1].engine, 3, &epoch, now), UT_OK);
    epoch.number = 2;
    epoch.id = 0x77;
    epoch.from = 8;
    CHECK_EQ(ut_engine_job_wishes(hosts[0].engine, 3, &next, epoch.option), UT_OK);
    CHECK_EQ(next, 0);
    for (uint32_t h = 0; h < HOSTS; h++)
        CHECK_EQ(ut_engine_epoch(hosts[h].engine, 3, &epoch, now), UT_OK);
    for (uint64_t op = 0; op < 8; op++) {
        all_reduce(op, UT_SUM, UT_SECOND);
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_receipt r = receipt(h, 0);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.hadamard, 0);
        }
    }
}

static void op_hadamard__sum_and_average_come_back(void)
{
    transformed_world();
    for (uint64_t op = 8; op < 12; op++) {
        unsigned redop = op % 2 ? UT_AVG : UT_SUM;
        all_reduce(op, redop, UT_SECOND);
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_receipt r = receipt(h, 0);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.hadamard, 1);
            CHECK_EQ(r.nonfinite, 0);
            CHECK_HEX(r.full_mask, 3);
            check_exact(h, redop);
        }
    }
    end_world();
}

/* Reliable ops, other dtypes and reductions travel as they are. */
static void op_hadamard__others_travel_plain(void)
{
    static const struct {
        uint8_t dtype, redop, mode;
    } rows[] = {{UT_FLOAT32, UT_SUM, UT_RELIABLE},
                {UT_FLOAT32, UT_MAX, UT_RELIABLE},
                {UT_FLOAT64, UT_SUM, UT_BOUNDED},
                {UT_BFLOAT16, UT_AVG, UT_BOUNDED}};
    transformed_world();
    for (unsigned i = 0; i < 4; i++) {
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_submission s = call_of(8 + i, 1000, rows[i].redop, rows[i].mode, UT_SECOND);
            s.dtype = rows[i].dtype;
            submit(h, 0, s);
        }
        run(now + 50 * UT_MS);
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_receipt r = receipt(h, 0);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.hadamard, 0);
        }
    }
    end_world();
}

/* ---- losses ---- */

static uint64_t lost_slots; /* of the broadcast from 0 to 1 */
static uint64_t shard_offset;

static bool drop_slots(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    ut_ultima u;
    if (from != 0 || b->port != UT_PORT_DATA || stage_of(packet) != 2)
        return false;
    ut_ultima_decode(&u, packet + 23);
    return lost_slots >> (u.offset - shard_offset) / P & 1;
}

/* What host 1 must hold of the shard of host 0: its groups transformed by the definition, rows taken out, and back. */
static void check_against_definition(uint64_t seq)
{
    uint32_t index = ut_shard_of(0, seq, HOSTS);
    uint64_t first = ut_shard_bound(COUNT, HOSTS, index), end = ut_shard_bound(COUNT, HOSTS, index + 1);
    for (uint32_t g = 0; g < ut_hadamard_groups(SLOTS, true); g++) {
        ut_hadamard_group at = ut_hadamard_group_of(SLOTS, true, g);
        uint64_t key = ut_hadamard_key(seq, index, g), from = first + (uint64_t)at.first * (P / 4);
        uint32_t kept = 0;
        for (uint32_t r = 0; r < at.rows; r++)
            kept += !(lost_slots >> (at.first + r * at.apart) & 1);
        for (uint64_t c = 0; c < P / 4 && from + c < end; c++)
            for (uint32_t i = 0; i < at.rows; i++) {
                double want = 0;
                for (uint32_t r = 0; r < at.rows; r++) { /* row r of what travelled */
                    double y = 0;
                    for (uint32_t k = 0; k < at.rows; k++) {
                        bool minus = ut_hadamard_signs(key, k, (uint32_t)(c / 64)) >> c % 64 & 1;
                        double x = mean_of(from + (uint64_t)k * at.apart * (P / 4) + c);
                        y += (__builtin_popcount(k & r) & 1) != minus ? -x : x;
                    }
                    if (!(lost_slots >> (at.first + r * at.apart) & 1))
                        want += __builtin_popcount(r & i) & 1 ? -y : y;
                }
                if (ut_hadamard_signs(key, i, (uint32_t)(c / 64)) >> c % 64 & 1)
                    want = -want;
                uint64_t element = from + (uint64_t)i * at.apart * (P / 4) + c;
                want = kept ? want / kept : value_of(1, element);
                if (!CHECK_MSG(fabs(floats(1)[element] - want) < 1e-3,
                               "group %u row %u column %" PRIu64 ": %g, want %g", g, i, c, (double)floats(1)[element],
                               want))
                    return;
            }
    }
}

static void op_hadamard__a_loss_is_spread_over_its_group(void)
{
    static const uint64_t losses[] = {1 << 3, 1 << 1 | 1 << 6 | 1 << 9, 0x300, 0x400, 0x800, 0xdff};
    transformed_world();
    drop = drop_slots;
    for (uint64_t op = 8; op < 8 + sizeof losses / sizeof *losses; op++) {
        lost_slots = losses[op - 8];
        shard_offset = ut_shard_bound(COUNT, HOSTS, ut_shard_of(0, op, HOSTS)) * 4;
        all_reduce(op, UT_AVG, 50 * UT_MS);
        ut_receipt r = receipt(0, 0);
        CHECK_EQ(r.status, UT_COMPLETE);
        check_exact(0, UT_AVG);
        r = receipt(1, 0);
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.hadamard, 1);
        CHECK_EQ(r.peer[0].missing[1], (uint64_t)__builtin_popcountll(lost_slots & 0x7ff) * P +
                                           (lost_slots >> 11) * (r.peer[0].expected[1] - 11 * P));
        check_against_definition(op);
    }
    end_world();
}

/* A packet that lies about how it travelled is refused: its bytes are missing, and nothing is mixed. */
static bool lie(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    static uint8_t again[1472];
    ut_data h;
    if (from != 0 || b->port != UT_PORT_DATA)
        return false;
    size_t len = b->segment_bytes;
    if (ut_data_decode(&h, packet, len, UT_CHECK_SUM)) { /* the burst's last and shorter one */
        len = b->bytes - (b->segments - 1) * b->segment_bytes;
        CHECK_EQ(ut_data_decode(&h, packet, len, UT_CHECK_SUM), UT_OK);
    }
    CHECK_NE(h.view, 0);
    h.view = 0; /* that of plain values among all hosts */
    memcpy(again, packet, len);
    ut_data_encode(again, &h, h.payload_len);
    ut_engine_input(hosts[1].engine, UT_PORT_DATA, again, len, 0, false, now);
    return true;
}

static void op_hadamard__the_other_kind_is_refused(void)
{
    ut_stats before, after;
    transformed_world();
    drop = lie;
    ut_engine_stats(hosts[1].engine, &before);
    all_reduce(8, UT_SUM, 50 * UT_MS);
    ut_engine_stats(hosts[1].engine, &after);
    CHECK(after.data_refused - before.data_refused >= 2 * SLOTS);
    CHECK_EQ(after.data_used, before.data_used);
    ut_receipt r = receipt(1, 0);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    for (uint64_t i = 0; i < COUNT; i++)
        if (!CHECK_DOUBLE(floats(1)[i], value_of(1, i)))
            break;
    end_world();
}

/* The count is of the result: an Inf spoils its column of its group, and no more. */
static void op_hadamard__nonfinite_is_counted_after_decoding(void)
{
    transformed_world();
    for (uint32_t h = 0; h < HOSTS; h++) {
        for (uint64_t i = 0; i < COUNT; i++)
            floats(h)[i] = value_of(h, i);
        floats(h)[5] = INFINITY; /* slot 0 of a shard: a group of 8 */
        ut_submission s = call_of(8, COUNT, UT_SUM, UT_BOUNDED, UT_SECOND);
        s.dtype = UT_FLOAT32;
        submit(h, 0, s);
    }
    run(now + 50 * UT_MS);
    for (uint32_t h = 0; h < HOSTS; h++) {
        uint64_t bad = 0;
        for (uint64_t i = 0; i < COUNT; i++)
            bad += !isfinite(floats(h)[i]);
        CHECK_EQ(bad, 8);
        CHECK_EQ(receipt(h, 0).nonfinite, 8);
    }
    end_world();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(op_hadamard__sum_and_average_come_back);
    RUN(op_hadamard__others_travel_plain);
    RUN(op_hadamard__a_loss_is_spread_over_its_group);
    RUN(op_hadamard__the_other_kind_is_refused);
    RUN(op_hadamard__nonfinite_is_counted_after_decoding);
    return check_end();
}
