/* SPDX-License-Identifier: Apache-2.0
 *
 * What all kernels make of the same numbers, as digests: a line for each instruction set of this CPU and each kernel.
 * They are the same on all CPUs, whatever their kind. There is no NaN among the numbers, for a NaN may be another.
 */
#include <stdio.h>

#include "check.h"
#include "kernels/hadamard.h"
#include "kernels/isas.h"
#include "kernels/quant.h"
#include "kernels/sparse.h"

enum { N = 1000, ROOM = 8 * N, WIDE = 64 * 70 };
static const char *name_of_isa;
static uint64_t digest;

static void add(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ ((const uint8_t *)p)[i]) * 0x100000001b3;
}

static void say(const char *kernel)
{
    printf("%s %s %016" PRIx64 "\n", name_of_isa, kernel, digest);
    digest = 0xcbf29ce484222325;
}

/* From 2^-40 to 2^4 mostly, and one in sixteen near the least that bfloat16 can say. */
static float any_float(void)
{
    const uint32_t random = (uint32_t)check_random(), exponent = check_below(16) ? 87 + random % 44 : random % 30;
    const uint32_t bits = (random & 0x80000000) | exponent << 23 | (uint32_t)(check_random() & 0x7fffff);
    float ret;
    memcpy(&ret, &bits, sizeof ret);
    return ret;
}

static void fill(unsigned dtype, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float single = any_float();
        const double wide = (double)single * (1 + (double)check_below(1u << 30) * 0x1p-31);
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        const uint64_t whole = check_random();
        const uint16_t half =
            (uint16_t)(dtype == UT_BFLOAT16 ? bits >> 16 : (whole & 0x83ff) | (5 + check_below(14)) << 10);
        const size_t bytes = ut_dtype_bytes(dtype);
        const void *from = dtype == UT_FLOAT32   ? (const void *)&single
                           : dtype == UT_FLOAT64 ? (const void *)&wide
                           : bytes == 2          ? (const void *)&half
                                                 : (const void *)&whole;
        memcpy(p + i * bytes, from, bytes);
    }
}

static void folds(void)
{
    static const char *const NAMES[] = {"", "float32", "float64", "float16", "bfloat16", "int32", "int64"};
    static uint8_t a[ROOM], in[ROOM], more[ROOM], out[ROOM];
    for (unsigned dtype = UT_FLOAT32; dtype < UT_DTYPES_END; dtype++) {
        const size_t bytes = ut_dtype_bytes(dtype);
        const unsigned wide = bytes == 2 ? UT_FLOAT32 : dtype;
        const void *const sources[] = {a, in, more};
        for (unsigned redop = UT_SUM; redop < UT_REDOPS_END; redop++)
            for (unsigned how = 0; how < 4; how++)
                for (uint32_t divisor = 1; divisor < 9; divisor++) {
                    fill(how & UT_A_IS_INPUT ? dtype : wide, a, N);
                    fill(dtype, in, N);
                    (void)ut_fold(dtype, redop, how, out, a, in, N - divisor, divisor);
                    add(out, (N - divisor) * ut_dtype_bytes(how & UT_OUT_IS_RESULT ? dtype : wide));
                    (void)ut_finish(dtype, redop, how & UT_A_IS_INPUT, out, a, N - divisor, divisor);
                    add(out, (N - divisor) * bytes);
                    fill(dtype, a, N);
                    fill(dtype, more, N);
                    ut_combine(dtype, redop, out, sources, 3, N, how ? 0 : divisor);
                    add(out, N * bytes);
                }
        (void)ut_place(dtype, out, in, N);
        add(out, N * bytes);
        say(NAMES[dtype]);
    }
}

/* Coefficients of which no product is exact. */
static void weighs(void)
{
    static uint8_t src[3][ROOM], out[ROOM], acc[ROOM];
    const void *const sources[] = {src[0], src[1], src[2]};
    const double weight[] = {1.0 / 3, -2.0 / 7, 0.1};
    for (unsigned dtype = UT_FLOAT32; dtype <= UT_BFLOAT16; dtype++) {
        for (unsigned i = 0; i < 3; i++)
            fill(dtype, src[i], N);
        ut_weigh(dtype, out, sources, weight, 3, N, 1);
        add(out, N * ut_dtype_bytes(dtype));
        for (unsigned i = 0; i < 3; i++)
            ut_weigh_in(dtype, acc, src[i], weight[i], i == 0, N - i);
        (void)ut_weigh_out(dtype, out, acc, 7, N - 3);
        add(out, (N - 3) * ut_dtype_bytes(dtype));
    }
    say("weigh");
}

static void transforms(void)
{
    static float src[WIDE], out[WIDE], back[WIDE];
    fill(UT_FLOAT32, (uint8_t *)src, WIDE);
    for (uint32_t rows = 1; rows <= 64; rows *= 2)
        for (uint32_t columns = 59; columns <= 70; columns++) {
            const ut_hadamard_block b = {rows, columns, 70 * sizeof(float), check_random(), 0.3f};
            const uint64_t present = check_random() | 1;
            ut_hadamard_encode(out, src, &b);
            (void)ut_hadamard_decode(back, out, &b, &present);
            for (uint32_t r = 0; r < rows; r++) {
                add(out + 70 * r, columns * sizeof(float));
                add(back + 70 * r, columns * sizeof(float));
            }
        }
    say("hadamard");
}

static void sparse(void)
{
    static float kept[N], velocity[N], more[N], values[N], norms[N];
    static uint32_t indices[N], codes[N];
    static uint8_t bits[1 << 12];
    fill(UT_FLOAT32, (uint8_t *)kept, N);
    fill(UT_FLOAT32, (uint8_t *)velocity, N);
    for (unsigned i = 0; i < 16; i++) {
        fill(UT_FLOAT32, (uint8_t *)more, N);
        const ut_selection s = {UINT32_C(0x3a000000) + (i << 22), i % 3, indices, values, N};
        const size_t taken =
            i % 2 ? ut_keep(kept, more, N - i, &s) : ut_keep_momentum(kept, velocity, more, 0.9f, N - i, &s);
        add(indices, taken * sizeof *indices);
        add(values, taken * sizeof *values);
        add(kept, sizeof kept);
        add(velocity, sizeof velocity);
        digest ^= ut_nonzero(kept + i, 64);
    }
    say("keep");
    for (uint32_t m = 32749, i = 0; i < 8; i++, m -= 1009) {
        memset(bits, 0, sizeof bits);
        for (unsigned j = 0; j < 600; j++)
            indices[j] = (uint32_t)check_below(5000);
        ut_bloom_insert(bits, m, 1 + i, indices, 600);
        const size_t members = ut_bloom_members(bits, m, 1 + i, 5000, codes, N);
        add(codes, UT_MIN2(members, (size_t)N) * sizeof *codes);
    }
    say("bloom");
    for (unsigned width = 2; width <= 16; width++) {
        fill(UT_FLOAT32, (uint8_t *)values, N);
        ut_qsgd_encode(norms, codes, values, N, 64 + width, width, width);
        ut_qsgd_decode(more, norms, codes, N, 64 + width, width);
        add(norms, (N + 63 + width) / (64 + width) * sizeof *norms);
        add(codes, sizeof codes);
        add(more, sizeof more);
    }
    say("qsgd");
}

static void quantised(void)
{
    static float x[N], residual[N], back[N];
    static uint8_t slot[2 * N + N / 32 + 3];
    for (unsigned form = UT_QUANT_INT16; form <= UT_QUANT_INT4; form++)
        for (unsigned i = 0; i < 64; i++) {
            fill(UT_FLOAT32, (uint8_t *)x, N);
            fill(UT_FLOAT32, (uint8_t *)residual, N);
            const ut_quant_rounding r = {check_random(), i % 2, (float)(1 + i % 5)};
            ut_quant_told told;
            add(slot, ut_quant_encode(form, slot, x, i % 4 < 2 ? residual : NULL, N - i, &r, &told));
            add(&told.error, sizeof told.error);
            add(residual, sizeof residual);
            ut_quant_decode(form, back, slot, N - i);
            ut_quant_add(form, x, slot, N - i);
            add(back, (N - i) * sizeof *back);
            add(x, sizeof x);
        }
    say("quant");
}

static void checksums(void)
{
    static uint8_t data[4000], copy[4000];
    const uint64_t header[4] = {1, 2, 3, 4};
    fill(UT_INT32, data, 1000);
    for (size_t len = 0; len < sizeof data; len += 1 + len / 30) {
        uint32_t sums[3] = {ut_crc32c((uint32_t)len, data, len), ut_crc32c_copy(copy, data, len)};
        sums[2] = ut_crc32c_headed(header, sums[1], len);
        add(sums, sizeof sums);
        add(copy, len);
    }
    say("crc32c");
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    digest = 0xcbf29ce484222325;
    FOR_EACH_ISA(isa)
    {
        name_of_isa = ISA_NAMES[isa];
        check_reseed(0);
        folds();
        weighs();
        transforms();
        sparse();
        quantised();
        checksums();
    }
    return 0;
}
