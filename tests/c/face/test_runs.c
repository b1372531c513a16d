/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets that follow each other in one transfer and come in one piece are taken in as one. That must be as if they had
 * come one by one: the same worlds are run both ways, and everything that a host says, counts and results in is held
 * against the other way.
 */
#include "engines.h"

#include "kernels/kernels.h"

enum { OPS = 6 };

static uint32_t said;      /* CRC32C of all packets, in the order in which they left */
static uint32_t spoil_ppm; /* of all packets one bit is turned */

static void listen_in(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    uint8_t where[] = {(uint8_t)from, (uint8_t)to, (uint8_t)port};
    said = ut_crc32c(ut_crc32c(said, where, sizeof where), packet, len);
    if (check_below(1000000) < spoil_ppm)
        packet[check_below(check_below(2) ? len : UT_DATA_HEADER)] ^= (uint8_t)(1 << check_below(8));
}

/* All hosts give doubles, so that shards have several packets: element i of host h is 2^h + i. */
static void call(uint64_t op)
{
    for (uint32_t h = 0; h < n; h++) {
        double *a = (double *)(void *)hosts[h].arena;
        for (unsigned i = 0; i < ELEMENTS; i++)
            a[i] = (double)((1U << h) + i);
        ut_submission s = {.op_seq = op,
                           .count = ELEMENTS,
                           .deadline_ns = now + 300 * UT_MS,
                           .dtype = UT_FLOAT64,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED};
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
    }
    run(now + 400 * UT_MS);
}

typedef struct outcome {
    uint32_t said, results, receipts;
    ut_stats stats[MOST];
} outcome;

static outcome world(uint64_t seed, bool in_runs, const uint8_t *algorithm)
{
    outcome o = {0};
    check_reseed(seed);
    begin(algorithm);
    loss_ppm = (uint32_t)check_below(3) * 30000;
    late_ppm = (uint32_t)check_below(3) * 30000;
    spoil_ppm = (uint32_t)check_below(2) * 30000;
    change = listen_in;
    said = 0;
    joins = in_runs;
    for (uint64_t op = 0; op < OPS; op++) {
        call(op);
        for (uint32_t h = 0; h < n; h++) {
            const double *a = (const double *)(const void *)hosts[h].arena;
            const ut_receipt r = receipt(h);
            if (r.bytes_missing == 0)
                for (unsigned i = 0; i < ELEMENTS; i++)
                    CHECK(a[i] == (double)((1U << n) - 1 + n * i));
            o.results = ut_crc32c(o.results, a, ELEMENTS * sizeof *a);
            o.receipts = ut_crc32c(o.receipts, &r, sizeof r);
        }
    }
    for (uint32_t h = 0; h < n; h++) {
        ut_engine_stats(hosts[h].engine, &o.stats[h]);
        o.stats[h].progress = 0; /* calls */
    }
    joins = false;
    end();
    o.said = said;
    return o;
}

static void input__of_a_run_is_as_of_its_packets(void)
{
    static const uint8_t tar[MOST] = {0};
    for (uint64_t seed = 1; seed <= 60; seed++) {
        n = 2 + (uint32_t)(seed % 4);
        const outcome apart = world(seed, false, tar), as_one = world(seed, true, tar);
        CHECK_MSG(apart.said == as_one.said, "seed %lu: other packets", (unsigned long)seed);
        CHECK_MSG(apart.results == as_one.results, "seed %lu: other results", (unsigned long)seed);
        CHECK_MSG(apart.receipts == as_one.receipts, "seed %lu: other receipts", (unsigned long)seed);
        CHECK_MSG(memcmp(apart.stats, as_one.stats, sizeof apart.stats) == 0, "seed %lu: other counts",
                  (unsigned long)seed);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(input__of_a_run_is_as_of_its_packets);
    return check_end();
}
