/* SPDX-License-Identifier: Apache-2.0
 *
 * Gigabytes a second of the Hadamard transform on one core, each way, beside libc's memcpy of the same bytes in the
 * same run, for each instruction set of this CPU. By hand, from the root of the repository:
 *
 *     gcc -O3 -I transport_c -o /tmp/bench tests/bench/hadamard_bench.c transport_c/kernels/[a-z]*.c
 * transport_c/core/base/err.c -lm && /tmp/bench
 *
 * A bucket of 25 MB as the engine transforms it: shards of a quarter, groups of 64 packets of 1440 bytes, rows
 * interleaved. The best of some runs: other work on the machine only ever makes a run longer.
 */
#include "kernels/hadamard.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAYLOAD = 1440, ROWS = 64, SHARDS = 4, RUNS = 25 };
static const size_t BYTES = 26214400;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *(*volatile copy)(void *to, const void *from, size_t len) = memcpy;
enum { COPY, ENCODE, DECODE };

static void work(int what, uint8_t *dst, const uint8_t *src)
{
    const size_t shard = BYTES / SHARDS, groups = shard / (ROWS * PAYLOAD);
    if (what == COPY)
        copy(dst, src, BYTES);
    for (size_t s = 0; what != COPY && s < SHARDS; s++)
        for (size_t g = 0; g < groups; g++) {
            const size_t at = s * shard + g * PAYLOAD;
            const ut_hadamard_block b = {ROWS, PAYLOAD / 4, groups * PAYLOAD, s << 32 | g, 0.125f};
            if (what == ENCODE)
                ut_hadamard_encode(dst + at, src + at, &b);
            else
                (void)ut_hadamard_decode(dst + at, src + at, &b, NULL);
        }
}

int main(void)
{
    static const char *const isas[] = {"plain", "AVX2", "AVX-512", "NEON"};
    static const char *const whats[] = {"memcpy", "encode", "decode"};
    uint8_t *a = aligned_alloc(4096, (BYTES + 4095) / 4096 * 4096),
            *b = aligned_alloc(4096, (BYTES + 4095) / 4096 * 4096);
    if (!a || !b)
        return 1;
    for (size_t i = 0; i < BYTES / 4; i++)
        ((float *)a)[i] = (float)(i % 1000) - 500;
    copy(b, a, BYTES);
    for (int isa = UT_ISA_PLAIN; isa <= UT_ISA_BEST; isa++) {
        if (ut_kernels_init((enum ut_isa)isa) != (enum ut_isa)isa)
            continue;
        double best[3] = {1e9, 1e9, 1e9};
        for (int run = 0; run < RUNS; run++)
            for (int what = COPY; what <= DECODE; what++) {
                const double start = now_s();
                work(what, b, a);
                const double took = now_s() - start;
                best[what] = took < best[what] ? took : best[what];
            }
        printf("%-8s", isas[isa]);
        for (int what = COPY; what <= DECODE; what++)
            printf("  %s %5.2f ms %5.2f GB/s", whats[what], best[what] * 1e3, (double)BYTES / best[what] / 1e9);
        printf("\n");
    }
    free(a);
    free(b);
    return 0;
}
