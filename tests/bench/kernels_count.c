/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_count KERNEL INSTRUCTION_SET CALLS: so many calls of a kernel over a packet's payload, to be counted by an
 * emulator: the difference of two runs is that of the calls alone. kernels_count.py runs and counts.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/hadamard.h"
#include "kernels/kernels.h"
#include "kernels/sparse.h"

enum { PAYLOAD = 1440, FLOATS = PAYLOAD / 4, ROWS = 64 };
static uint8_t a[2 * PAYLOAD] __attribute__((aligned(64))), in[2 * PAYLOAD] __attribute__((aligned(64)));
static uint8_t out[2 * PAYLOAD] __attribute__((aligned(64)));
static float rows_in[ROWS * FLOATS], rows_out[ROWS * FLOATS], values[FLOATS];
static uint32_t indices[FLOATS];
static volatile size_t sink;
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;

/* Numbers near 1, of either sign. */
static void fill(unsigned dtype, uint8_t *p)
{
    for (size_t i = 0; i < PAYLOAD / 4; i++) {
        const uint32_t sign = i % 2, j = (uint32_t)i;
        const uint32_t bits = dtype == UT_FLOAT32    ? sign << 31 | 0x3f800000 | j << 9
                              : dtype == UT_FLOAT16  ? (sign << 15 | (0x3c00 + j)) * 0x10001u
                              : dtype == UT_BFLOAT16 ? (sign << 15 | (0x3f80 + j % 100)) * 0x10001u
                                                     : j;
        memcpy(p + 4 * i, &bits, 4);
    }
}

/* What is counted is this loop. */
#define TIMES(work)                                                                                                    \
    for (int i_ = 0; i_ < calls; i_++)                                                                                 \
    work

static void call(const char *kernel, int calls)
{
    static const struct {
        const char *name;
        unsigned dtype;
    } dtypes[] = {{"float32", UT_FLOAT32}, {"bfloat16", UT_BFLOAT16}, {"float16", UT_FLOAT16},
                  {"float64", UT_FLOAT64}, {"int32", UT_INT32},       {"int64", UT_INT64}};
    const char *const part = strchr(kernel, ' ');
    for (size_t i = 0; part && i < sizeof dtypes / sizeof *dtypes; i++) {
        const unsigned dtype = dtypes[i].dtype;
        const size_t n = PAYLOAD / ut_dtype_bytes(dtype);
        if (strlen(dtypes[i].name) != (size_t)(part - kernel) || memcmp(kernel, dtypes[i].name, strlen(dtypes[i].name)))
            continue;
        fill(ut_dtype_bytes(dtype) == 2 ? UT_FLOAT32 : dtype, a);
        fill(dtype, in);
        if (strcmp(part, " sum") == 0)
            TIMES(sink += ut_fold(dtype, UT_SUM, 0, a, a, in, n, 1));
        else if (strcmp(part, " sum, result") == 0)
            TIMES(sink += ut_fold(dtype, UT_SUM, UT_OUT_IS_RESULT, out, a, in, n, 1));
        else if (strcmp(part, " average of 3, result") == 0)
            TIMES(sink += ut_fold(dtype, UT_AVG, UT_OUT_IS_RESULT, out, a, in, n, 3));
        else if (strcmp(part, " place") == 0)
            TIMES(sink += ut_place(dtype, out, in, n));
        else
            exit(2);
        return;
    }
    const ut_hadamard_block block = {ROWS, FLOATS, PAYLOAD, 7, 0.125f};
    const ut_selection selection = {UINT32_C(0x3f900000), 0, indices, values, FLOATS};
    if (strcmp(kernel, "memcpy") == 0)
        TIMES((void)copy(out, in, PAYLOAD));
    else if (strcmp(kernel, "crc32c") == 0)
        TIMES(sink += ut_crc32c(0, in, PAYLOAD));
    else if (strcmp(kernel, "crc32c-copy") == 0)
        TIMES(sink += ut_crc32c_copy(out, in, PAYLOAD));
    else if (strcmp(kernel, "hadamard-encode") == 0)
        TIMES(ut_hadamard_encode(rows_out, rows_in, &block));
    else if (strcmp(kernel, "hadamard-decode") == 0)
        TIMES(sink += ut_hadamard_decode(rows_out, rows_in, &block, NULL));
    else if (strcmp(kernel, "keep") == 0)
        TIMES(sink += ut_keep(rows_in, rows_out, FLOATS, &selection));
    else
        exit(2);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const enum ut_isa most = strcmp(argv[2], "plain") == 0 ? UT_ISA_PLAIN : UT_ISA_BEST;
    (void)ut_kernels_init(most);
    for (size_t i = 0; i < ROWS * FLOATS; i++)
        rows_in[i] = (float)(i % 100) / 50;
    call(argv[1], atoi(argv[3]));
    return 0;
}
