/* SPDX-License-Identifier: Apache-2.0
 *
 * The C transform as a filter, so that the one in torch can be held against it bit by bit. Arguments: rows, columns,
 * key, scale, "encode" or "decode". Reads rows x columns of float32 from standard input, writes as many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/hadamard.h"
#include "kernels/kernels.h"

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    ut_hadamard_block b = {.rows = (uint32_t)atoi(argv[1]),
                           .columns = (uint32_t)atoi(argv[2]),
                           .stride = 4 * (size_t)atoi(argv[2]),
                           .key = strtoull(argv[3], NULL, 0),
                           .scale = strtof(argv[4], NULL)};
    size_t count = (size_t)b.rows * b.columns;
    float *block = malloc(4 * count), *result = malloc(4 * count);
    if (!block || !result || fread(block, 4, count, stdin) != count)
        return 2;
    ut_kernels_init(UT_ISA_BEST); /* or the best that there is */
    if (strcmp(argv[5], "encode") == 0)
        ut_hadamard_encode(result, block, &b);
    else
        ut_hadamard_decode(result, block, &b, NULL);
    return fwrite(result, 4, count, stdout) == count ? 0 : 1;
}
