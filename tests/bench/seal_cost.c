/* SPDX-License-Identifier: Apache-2.0
 *
 * What sealing costs: allreduces of 4 MiB among two drivers over loopback, where nothing but the CPU is the limit,
 * plain and sealed in turns in one run; and the ciphers alone. Prints CPU time of the process (all threads, the
 * kernel's part included) and ratios; absolute times mean little on a busy machine.
 */
#define _GNU_SOURCE
#include "cluster.h"

#include <time.h>

#include "cipher/evp.h"

enum { OPS = 20, ROUNDS = 5, ELEMENTS = ARENA / 4 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double run(uint32_t with)
{
    suite = with;
    cluster_open(2);
    double from = 0;
    for (unsigned op = 0; op < OPS + 2; op++) {
        if (op == 2)
            from = cpu_s();
        for (unsigned i = 0; i < 2; i++)
            submit(&hosts[i].trainer, op, ELEMENTS, 20000);
        for (unsigned i = 0; i < 2; i++) {
            ut_receipt r;
            CHECK(wait_receipt(&hosts[i].trainer, &r) && r.status == UT_COMPLETE);
        }
    }
    const double used = cpu_s() - from;
    cluster_close(2);
    return used / OPS;
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
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
            used[with][round] = run(with);
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
    static const size_t sizes[] = {64, 1424, 8880};
    for (unsigned with = 1; with < UT_SUITES_END; with++)
        for (unsigned i = 0; i < 3; i++) {
            cipher_alone(ut_evp_libcrypto(with), sizes[i]);
            if (ut_evp_suite(with) != ut_evp_libcrypto(with))
                cipher_alone(ut_evp_suite(with), sizes[i]);
        }
    return check_run.failures > 0;
}
