/* SPDX-License-Identifier: Apache-2.0
 *
 * mixed_host SELF HOSTS: one host of a cluster over loopback, a process of its own, so that hosts of one cluster can be
 * built for CPUs of several kinds. It prints a line of its ports and of the ids by which it listens to each host, and
 * reads the lines of all HOSTS hosts. Then it takes part in one average of each dtype, and prints for each the
 * receipt's status, which hosts are in all of it (a bit each), and a digest of the result. It stays until its input
 * ends, for others may still ask it for packets.
 */
#define _GNU_SOURCE
#include "cluster.h"

enum { COUNT = 30001 };

/* Whole numbers, or halves of which no two are far apart: their sums are exact in whatever order packets come. */
static void fill(uint8_t *arena, unsigned dtype, uint32_t self)
{
    check_reseed(dtype * 16 + self + 1);
    for (uint64_t i = 0; i < COUNT; i++) {
        const int64_t whole = (int64_t)check_below(1 << 20) - (1 << 19);
        const float single = (float)whole;
        const double wide = (double)whole * 1234567891;
        uint32_t bits;
        memcpy(&bits, &single, sizeof(bits));
        const uint16_t half =
            (uint16_t)(dtype == UT_BFLOAT16 ? bits >> 16 : (bits >> 16 & 0x8000) | (0x2c00 + check_below(0x1800)));
        const size_t bytes = ut_dtype_bytes(dtype);
        const void *from = dtype == UT_FLOAT32   ? (const void *)&single
                           : dtype == UT_FLOAT64 ? (const void *)&wide
                           : bytes == 2          ? (const void *)&half
                                                 : (const void *)&whole;
        memcpy(arena + i * bytes, from, bytes);
    }
}

static void average(host *h, unsigned dtype, uint32_t self)
{
    uint8_t *const arena = (uint8_t *)h->trainer.arena;
    ut_receipt r;
    fill(arena, dtype, self);
    const ut_submission s = {.op_seq = dtype - 1,
                             .count = COUNT,
                             .deadline_ns = ut_driver_now() + PATIENCE_MS * UT_MS,
                             .dtype = (uint8_t)dtype,
                             .redop = UT_AVG,
                             .mode = UT_BOUNDED};
    CHECK_EQ(ut_ring_submit(h->trainer.submissions, h->trainer.completions, &s), UT_OK);
    ring(&h->trainer);
    if (!wait_receipt(&h->trainer, &r))
        exit(1);
    uint64_t digest = 0xcbf29ce484222325;
    for (size_t i = 0; i < COUNT * ut_dtype_bytes(dtype); i++)
        digest = (digest ^ arena[i]) * 0x100000001b3;
    printf("%u %u %u %016" PRIx64 "\n", dtype, r.status, (unsigned)r.full_mask, digest);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    check_begin(1, argv);
    const uint32_t self = argc == 3 ? (uint32_t)atoi(argv[1]) : HOSTS_MAX, n = argc == 3 ? (uint32_t)atoi(argv[2]) : 0;
    if (n < 2 || n > HOSTS_MAX || self >= n) {
        fprintf(stderr, "usage: mixed_host SELF HOSTS, with 2 to %d hosts and SELF below their number\n", HOSTS_MAX);
        return 2;
    }
    host *const h = &hosts[self];
    h->driver = open_driver();
    ut_driver_get_info(h->driver, &h->info);
    const ut_job_config config = job_config(n, self);
    h->job = ut_driver_job_add(h->driver, &config);
    CHECK_MSG(h->job >= 0, "%s", ut_driver_error(h->driver));
    attach(h, 0);
    for (uint32_t k = 0; k < n; k++)
        if (k != self)
            CHECK_EQ(ut_driver_peer_listen(h->driver, (uint32_t)h->job, k, NULL, &cids[self][k]), UT_OK);
    printf("%u %u %u %u %u %u\n", (unsigned)h->info.data_port, (unsigned)h->info.feedback_port, cids[self][0],
           cids[self][1], cids[self][2], cids[self][3]);
    fflush(stdout);
    for (uint32_t k = 0; k < n; k++) {
        unsigned data, feedback, at[HOSTS_MAX];
        if (scanf("%u %u %u %u %u %u", &data, &feedback, &at[0], &at[1], &at[2], &at[3]) != 6)
            return 2;
        if (k != self)
            CHECK_EQ(ut_driver_peer_connect(h->driver, (uint32_t)h->job, k, address, (uint16_t)data, (uint16_t)feedback,
                                            at[self], NULL),
                     UT_OK);
    }
    for (unsigned dtype = UT_FLOAT32; dtype < UT_DTYPES_END; dtype++)
        average(h, dtype, self);
    int end;
    while ((end = getchar()) != EOF)
        ;
    ut_driver_close(h->driver);
    let_go(h);
    return check_end();
}
