/* SPDX-License-Identifier: Apache-2.0
 *
 * What sealing costs: allreduces of 4 MiB among two drivers over loopback, where nothing but the CPU is the limit,
 * plain and sealed in turns in one run; the same with 64 KiB; and the ciphers alone. Prints CPU time of the process
 * (all threads, the kernel's part included) and ratios; absolute times mean little on a busy machine.
 */
#define _GNU_SOURCE
#include "cluster.h"

#include <time.h>

#include "cipher/evp.h"

enum { OPS = 20, ROUNDS = 5, ELEMENTS = ARENA / 4, SMALL_OPS = 400, SMALL_ELEMENTS = 65536 / 4 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* What an op takes: CPU in the mean, and time in the median. */
typedef struct cost {
    double cpu, p50;
} cost;

static cost run(uint32_t with, unsigned ops, uint32_t elements)
{
    static double took[SMALL_OPS];
    suite = with;
    cluster_open(2);
    double from = 0;
    for (unsigned op = 0; op < ops + 2; op++) {
        if (op == 2)
            from = cpu_s();
        const double begun = now_s();
        for (unsigned i = 0; i < 2; i++)
            submit(&hosts[i].trainer, op, elements, 20000);
        for (unsigned i = 0; i < 2; i++) {
            ut_receipt r;
            CHECK(wait_receipt(&hosts[i].trainer, &r) && r.status == UT_COMPLETE);
        }
        if (op >= 2)
            took[op - 2] = now_s() - begun;
    }
    const double used = cpu_s() - from;
    cluster_close(2);
    qsort(took, ops, sizeof *took, by_size);
    return (cost){used / ops, took[ops / 2]};
}

/* The medians of the rounds, and how much more than plain each took in time. */
static void small_ops(void)
{
    cost found[UT_SUITES_END][ROUNDS];
    for (unsigned round = 0; round < ROUNDS; round++)
        for (uint32_t with = 0; with < UT_SUITES_END; with++)
            found[with][round] = run(with, SMALL_OPS, SMALL_ELEMENTS);
    for (uint32_t with = 0; with < UT_SUITES_END; with++) {
        double p50[ROUNDS], cpu[ROUNDS], more[ROUNDS];
        for (unsigned round = 0; round < ROUNDS; round++) {
            p50[round] = found[with][round].p50;
            cpu[round] = found[with][round].cpu;
            more[round] = found[with][round].p50 - found[0][round].p50;
        }
        qsort(p50, ROUNDS, sizeof *p50, by_size);
        qsort(cpu, ROUNDS, sizeof *cpu, by_size);
        qsort(more, ROUNDS, sizeof *more, by_size);
        printf("%-18s p50 %4.0f us of an op of 64 KiB, 2 hosts, %.0f us of CPU; %+.0f us to plain (%+.0f to %+.0f)\n",
               with ? ut_evp_suite(with)->name : "plain", 1e6 * p50[ROUNDS / 2], 1e6 * cpu[ROUNDS / 2],
               1e6 * more[ROUNDS / 2], 1e6 * more[0], 1e6 * more[ROUNDS - 1]);
    }
}

static void cipher_alone(const ut_aead *a, size_t body)
{
    enum { TIMES = 20000 };
    static uint8_t bytes[9216 + 64], key[32], nonce[12];
    void *sealing = a->make(a, true), *opening = a->make(a, false);
    a->key(sealing, key);
    a->key(opening, key);
    const ut_aead_packet p = {nonce, bytes, 32, bytes + 32, body, bytes + 32 + body};
    double best[2] = {1, 1};
    for (unsigned round = 0; round < ROUNDS; round++) {
        double from = cpu_s();
        for (unsigned i = 0; i < TIMES; i++)
            a->seal(sealing, &p);
        const double seal = (cpu_s() - from) / TIMES;
        from = cpu_s();
        for (unsigned i = 0; i < TIMES; i++)
            (void)a->open(opening, &p); /* a wrong tag costs the same */
        const double open = (cpu_s() - from) / TIMES;
        best[0] = seal < best[0] ? seal : best[0];
        best[1] = open < best[1] ? open : best[1];
    }
    printf("%-18s %-9s %5zu bytes: seal %6.0f ns, open %6.0f ns; per byte %.3f and %.3f\n", a->name, a->provider, body,
           1e9 * best[0], 1e9 * best[1], 1e9 * best[0] / (double)body, 1e9 * best[1] / (double)body);
    a->drop(sealing);
    a->drop(opening);
}

int main(void)
{
    double used[UT_SUITES_END][ROUNDS];
    for (unsigned round = 0; round < ROUNDS; round++)
        for (uint32_t with = 0; with < UT_SUITES_END; with++)
            used[with][round] = run(with, OPS, ELEMENTS).cpu;
    for (uint32_t with = 0; with < UT_SUITES_END; with++) {
        double ratio[ROUNDS];
        for (unsigned round = 0; round < ROUNDS; round++)
            ratio[round] = used[0][round] / used[with][round];
        qsort(ratio, ROUNDS, sizeof *ratio, by_size);
        qsort(used[with], ROUNDS, sizeof **used, by_size);
        printf("%-18s %7.2f ms of CPU an op of 4 MiB, 2 hosts; plain over it: %.2f (%.2f to %.2f)\n",
               with ? ut_evp_suite(with)->name : "plain", 1e3 * used[with][ROUNDS / 2], ratio[ROUNDS / 2], ratio[0],
               ratio[ROUNDS - 1]);
    }
    small_ops();
    static const size_t sizes[] = {64, 1424, 8880};
    for (unsigned with = 1; with < UT_SUITES_END; with++)
        for (unsigned i = 0; i < 3; i++) {
            cipher_alone(ut_evp_libcrypto(with), sizes[i]);
            if (ut_evp_suite(with) != ut_evp_libcrypto(with))
                cipher_alone(ut_evp_suite(with), sizes[i]);
        }
    return check_run.failures > 0;
}
