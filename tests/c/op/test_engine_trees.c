/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole engines on schedules that forward: every algorithm gives the same sums; a host that is gone leaves exactly the
 * hole that the schedule says, and the receipts say it; hosts that were told different algorithms do not mix.
 */
#include "engines.h"

/* Host h brings 10^h in each element, so that a sum reads as the hosts in it. */
static void submit(uint64_t op_seq, uint64_t count, unsigned redop, unsigned mode, bool in_place)
{
    for (uint32_t h = 0; h < n; h++) {
        int64_t *src = (int64_t *)hosts[h].arena, value = 1;
        for (uint32_t k = 0; k < h; k++)
            value *= 10;
        for (uint64_t i = 0; i < count; i++)
            src[i] = value;
        ut_submission s = {.op_seq = op_seq,
                           .dst = in_place ? 0 : ELEMENTS * 8,
                           .count = count,
                           .deadline_ns = now + UT_SECOND,
                           .dtype = UT_INT64,
                           .redop = (uint8_t)redop,
                           .mode = (uint8_t)mode};
        if (silent >> h & 1)
            continue;
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
    }
}

static const int64_t *result(uint32_t h, bool in_place)
{
    return (const int64_t *)(hosts[h].arena + (in_place ? 0 : ELEMENTS * 8));
}

static void engine__every_algorithm_sums_all(void)
{
    for (unsigned algorithm = UT_TAR; algorithm < UT_ALGORITHMS_END; algorithm++)
        for (n = 1; n <= MOST; n++) {
            uint8_t same[MOST];
            int64_t all = 0;
            memset(same, (int)algorithm, sizeof same);
            begin(same);
            for (uint32_t h = 0, p = 1; h < n; h++, p *= 10)
                all += p;
            for (uint64_t op = 0; op < 8; op++) {
                loss_ppm = op < 2 ? 0 : 50000;
                uint64_t count = op == 0 ? ELEMENTS : check_below(op == 1 ? n + 1 : ELEMENTS);
                submit(op, count, UT_SUM, op % 2 ? UT_BOUNDED : UT_RELIABLE, op % 4 < 2);
                run(now + 900 * UT_MS);
                for (uint32_t h = 0; h < n; h++) {
                    ut_receipt r = receipt(h);
                    CHECK_MSG(r.status == UT_COMPLETE, "algorithm %u, %u hosts, op %d: status %u", algorithm, n,
                              (int)op, r.status);
                    CHECK_HEX(r.full_mask, (1u << n) - 1);
                    for (uint64_t i = 0; i < count; i++)
                        CHECK_EQ(result(h, op % 4 < 2)[i], all);
                }
            }
            end();
        }
}

/* Host 1 of a ring of four says nothing. Chunk r sets out at r + 1: what passes host 1, or ends there, ends. */
static void engine__a_silent_host_cuts_the_ring_where_it_stands(void)
{
    static const uint8_t ring[MOST] = {UT_RING, UT_RING, UT_RING, UT_RING};
    for (int in_place = 0; in_place < 2; in_place++) {
        n = 4;
        begin(ring);
        silent = 1 << 1;
        submit(0, 4, UT_SUM, UT_BOUNDED, in_place);
        run(now + 1100 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            if (h == 1)
                continue;
            ut_receipt r = receipt(h);
            uint64_t least = 4;
            uint64_t everywhere = 15, anywhere = 0;
            CHECK_EQ(r.status, h == 2 ? UT_INSUFFICIENT : UT_PARTIAL); /* all that 2 hears comes from 1 */
            CHECK_LE(r.elapsed_ns, UT_SECOND + UT_MS);
            for (uint32_t c = 0; c < 4; c++) {
                int64_t x = result(h, in_place)[c];
                uint64_t hosts_in = 0, ranks = 0;
                for (uint32_t p = 0; p < 4; p++, x /= 10) {
                    CHECK_LE(x % 10, 1); /* nobody twice */
                    hosts_in |= (uint64_t)(x % 10) << p;
                    ranks += (uint64_t)(x % 10);
                }
                CHECK_EQ(x, 0);
                CHECK(hosts_in != 0 && !(hosts_in & 2));
                least = UT_MIN2(least, ranks);
                everywhere &= hosts_in;
                anywhere |= hosts_in;
            }
            CHECK_EQ(r.weight_min, least);
            CHECK_HEX(r.full_mask & ~everywhere, 0);
            CHECK_HEX(r.any_mask & ~anywhere, 0);
        }
        /* Chunk 0 sets out at 1. Host 2 gives 1 up first, so that its sum still passes 3 and reaches the owner. */
        CHECK_EQ(result(0, in_place)[0], 1101);
        end();
    }
}

/* The same with host 1 known to be gone: nobody waits for the deadline, and what comes after the break is what the
 * first host behind it holds. */
static void engine__an_absent_host_is_not_waited_for(void)
{
    for (unsigned algorithm = UT_TAR; algorithm < UT_ALGORITHMS_END; algorithm++) {
        uint8_t same[MOST];
        memset(same, (int)algorithm, sizeof same);
        n = 4;
        begin(same);
        silent = 1 << 1;
        for (uint32_t h = 0; h < n; h++)
            if (h != 1)
                ut_engine_peer_absent(hosts[h].engine, 0, 1, now);
        submit(0, ELEMENTS, UT_SUM, UT_BOUNDED, true);
        run(now + 1100 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            if (h == 1)
                continue;
            ut_receipt r = receipt(h);
            CHECK_EQ(r.status, algorithm == UT_RING && h == 2 ? UT_INSUFFICIENT : UT_PARTIAL);
            CHECK_LE(r.elapsed_ns, 300 * UT_MS);
            CHECK_HEX(r.any_mask & 2, 0);
        }
        end();
    }
}

static void engine__other_algorithms_are_a_desync(void)
{
    for (unsigned a = UT_TAR; a < UT_ALGORITHMS_END; a++)
        for (unsigned b = UT_TAR; b < UT_ALGORITHMS_END; b++) {
            uint8_t each[MOST] = {(uint8_t)a, (uint8_t)b, (uint8_t)a};
            if (a == b)
                continue;
            n = 3;
            begin(each);
            submit(0, ELEMENTS, UT_SUM, UT_BOUNDED, false);
            run(now + 100 * UT_MS);
            for (uint32_t h = 0; h < n; h++) {
                ut_receipt r = receipt(h);
                CHECK_EQ(r.error, UT_ERR_DESYNC);
                CHECK_EQ(r.field, UT_FIELD_ALGORITHM);
                CHECK_EQ(r.value_here, each[h]);
                CHECK_EQ(r.value_there, h == 1 ? a : b);
                CHECK(h == 1 ? r.culprit != 1 : r.culprit == 1);
            }
            end();
        }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(engine__every_algorithm_sums_all);
    RUN(engine__a_silent_host_cuts_the_ring_where_it_stands);
    RUN(engine__an_absent_host_is_not_waited_for);
    RUN(engine__other_algorithms_are_a_desync);
    return check_end();
}
