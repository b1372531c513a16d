/* SPDX-License-Identifier: Apache-2.0
 *
 * Nanoseconds a call and gigabytes a second of the kernels on the packet path, for each instruction set of this CPU. By
 * hand, from the root of the repository:
 *
 *     gcc -O3 -I transport_c -o /tmp/bench tests/bench/kernels_bench.c transport_c/kernels/[a-z]*.c
 * transport_c/core/base/err.c -lm
 *
 * Buffers are L1-hot, as a packet is that has just been received; they stand where the engine has them, payloads and
 * accumulators at odd multiples of 32 bytes. Each figure is the best of many short runs: other work on the machine
 * only ever makes a run longer. GB/s count the payload, for combine that of all sources.
 */
#include "kernels/kernels.h"
#include "kernels/quant.h"

#include <stdio.h>
#include <time.h>

enum { PAYLOAD = 1440, ROUNDS = 400, CALLS = 1000 };
static uint8_t in[2 * PAYLOAD + 96] __attribute__((aligned(64)));
static uint8_t acc[2 * PAYLOAD + 96] __attribute__((aligned(64)));
static uint8_t out[2 * PAYLOAD + 96] __attribute__((aligned(64)));
static volatile size_t sink;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The bytes at |in| are halves or floats near 1: no arithmetic on subnormals, no growth over the rounds that matter. */
static void fill(unsigned dtype)
{
    static const uint8_t patterns[UT_DTYPES_END][8] = {
        [UT_FLOAT32] = {0, 0, 0x80, 0x3f, 0, 0, 0x80, 0xbf},
        [UT_FLOAT64] = {0, 0, 0, 0, 0, 0, 0xf0, 0x3f},
        [UT_FLOAT16] = {0, 0x3c, 0, 0xbc, 0, 0x3c, 0, 0xbc},
        [UT_BFLOAT16] = {0x80, 0x3f, 0x80, 0xbf, 0x80, 0x3f, 0x80, 0xbf},
        [UT_INT32] = {3, 0, 0, 0, 5, 0, 0, 0},
        [UT_INT64] = {3, 0, 0, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof in; i++) {
        in[i] = patterns[dtype][i % 8];
        acc[i] = out[i] = 0;
    }
}

/* The yardstick: libc's copy, neither inlined nor optimized away. */
static void *(*volatile copy)(void *to, const void *from, size_t len) = memcpy;

static const void *const sources[4] = {in + 32, acc + 32, in + 32, acc + 32};
#define BENCH(name, bytes, call)                                                                                       \
    do {                                                                                                               \
        uint64_t best = UINT64_MAX;                                                                                    \
        for (int round = 0; round < ROUNDS; round++) {                                                                 \
            const uint64_t start = now_ns();                                                                           \
            for (int i = 0; i < CALLS; i++)                                                                            \
                call;                                                                                                  \
            const uint64_t took = now_ns() - start;                                                                    \
            best = took < best ? took : best;                                                                          \
        }                                                                                                              \
        printf("  %-34s %8.1f ns %8.1f GB/s\n", name, (double)best / CALLS, (double)(bytes) * CALLS / (double)best);   \
    } while (0)

static void bench_dtype(const char *name, unsigned dtype)
{
    const size_t n = PAYLOAD / ut_dtype_bytes(dtype);
    uint8_t *const i32 = in + 32, *const a32 = acc + 32, *const o32 = out + 32;
    printf(" %s, n = %zu\n", name, n);
    fill(dtype);
    BENCH("fold sum, in place", PAYLOAD, sink += ut_fold(dtype, UT_SUM, 0, a32, a32, i32, n, 1));
    fill(dtype);
    BENCH("fold sum, a is input", PAYLOAD, sink += ut_fold(dtype, UT_SUM, UT_A_IS_INPUT, a32, i32, i32, n, 1));
    fill(dtype);
    BENCH("fold sum, result", PAYLOAD, sink += ut_fold(dtype, UT_SUM, UT_OUT_IS_RESULT, o32, a32, i32, n, 1));
    BENCH("fold avg of 4, result", PAYLOAD, sink += ut_fold(dtype, UT_AVG, UT_OUT_IS_RESULT, o32, a32, i32, n, 4));
    BENCH("fold avg of 3, result", PAYLOAD, sink += ut_fold(dtype, UT_AVG, UT_OUT_IS_RESULT, o32, a32, i32, n, 3));
    BENCH("fold max, in place", PAYLOAD, sink += ut_fold(dtype, UT_MAX, 0, a32, a32, i32, n, 1));
    if (dtype <= UT_BFLOAT16) {
        static const double weight[4] = {3, 5, 7, 9};
        static double wide[PAYLOAD];
        BENCH("weighted fold", PAYLOAD, ut_weigh_in(dtype, wide, i32, 3, false, n));
        fill(dtype);
        BENCH("weighted result", PAYLOAD, sink += ut_weigh_out(dtype, o32, wide, 24, n));
        BENCH("weighted mean of 4", 4 * PAYLOAD, ut_weigh(dtype, o32, sources, weight, 4, n, 24));
        memset(wide, 0, sizeof wide);
    }
    BENCH("place", PAYLOAD, sink += ut_place(dtype, o32, i32, n));
    BENCH("combine of 2", 2 * PAYLOAD, ut_combine(dtype, UT_SUM, o32, sources, 2, n, 0));
    BENCH("combine of 4", 4 * PAYLOAD, ut_combine(dtype, UT_SUM, o32, sources, 4, n, 0));
}

/* A packet of each form, whose elements are more than a dense packet's: GB/s count them as float32, beside copying
 * them.
 */
static void bench_quant(const char *name, unsigned form)
{
    static float x[2 * PAYLOAD], y[2 * PAYLOAD], residual[2 * PAYLOAD];
    static uint8_t slot[PAYLOAD];
    const uint32_t n = ut_quant_elements(form, PAYLOAD);
    const ut_quant_rounding nearest = {0, true, 1}, random = {7, false, 1}, answer = {7, false, 3};
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)(i * 0x9e3779b9u) * 0x1p-31f;
    printf(" %s, n = %u\n", name, n);
    BENCH("memcpy of its float32", 4 * n, copy(y, x, 4 * n));
    BENCH("encode to nearest", 4 * n, sink += ut_quant_encode(form, slot, x, NULL, n, &nearest, NULL));
    BENCH("encode to nearest with feedback", 4 * n,
          sink += ut_quant_encode(form, slot, x, residual, n, &nearest, NULL));
    BENCH("encode at random", 4 * n, sink += ut_quant_encode(form, slot, x, NULL, n, &random, NULL));
    BENCH("encode an answer of 3", 4 * n, sink += ut_quant_encode(form, slot, x, NULL, n, &answer, NULL));
    BENCH("decode", 4 * n, ut_quant_decode(form, y, slot, n));
    BENCH("decode and add", 4 * n, ut_quant_add(form, y, slot, n));
}

int main(void)
{
    static const char *const names[] = {"plain", "AVX2", "AVX-512", "NEON"};
    for (int isa = UT_ISA_PLAIN; isa <= UT_ISA_BEST; isa++) {
        if (ut_kernels_init((enum ut_isa)isa) != (enum ut_isa)isa)
            continue;
        printf("%s\n", names[isa]);
        BENCH("crc32c, 1440 bytes", 1440, sink += ut_crc32c(0, in + 32, 1440));
        BENCH("crc32c, 1472 bytes", 1472, sink += ut_crc32c(0, in, 1472));
        BENCH("crc32c, 100 bytes", 100, sink += ut_crc32c(0, in, 100));
        BENCH("crc32c, 31 bytes", 31, sink += ut_crc32c(0, in, 31));
        BENCH("crc32c with a header, 1440 bytes", 1440, sink += ut_crc32c_headed((uint64_t[]){sink, 1, 2, 3}, 7, 1440));
        BENCH("crc32c and copy, 1440 bytes", 1440, sink += ut_crc32c_copy(out + 32, in + 32, 1440));
        BENCH("fold sum of nothing: the call", 0, sink += ut_fold(UT_FLOAT32, UT_SUM, 0, acc, acc, in, 0, 1));
        BENCH("memcpy, 1440 bytes", 1440, copy(out + 32, in + 32, 1440));
        bench_dtype("float32", UT_FLOAT32);
        bench_dtype("bfloat16", UT_BFLOAT16);
        bench_dtype("float16", UT_FLOAT16);
        bench_dtype("float64", UT_FLOAT64);
        bench_dtype("int32", UT_INT32);
        bench_dtype("int64", UT_INT64);
        bench_quant("int16", UT_QUANT_INT16);
        bench_quant("int8", UT_QUANT_INT8);
        bench_quant("int4", UT_QUANT_INT4);
    }
    return 0;
}
