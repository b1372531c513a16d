/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoders of sparse index sets, over bytes that anybody may have sent: what they accept is in order and in range.
 */
#include "fuzz.h"

#include "core/base/ut.h"
#include "kernels/sparse.h"

static void check(int result, const uint32_t *x, size_t n, uint64_t end)
{
    for (size_t i = 0; result == 0 && i < n; i++)
        MUST(x[i] < end && (i == 0 || x[i] > x[i - 1]));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    input in = {bytes, size};
    size_t n = take16(&in) % 2000;
    uint64_t end = take16(&in) + 1;
    uint32_t *x = malloc((n + 1) * sizeof *x);
    uint8_t *rest = copy_of(in.at, in.left);
    if (in.left >= (end + 7) / 8)
        check(ut_bitmap_decode(x, n, end, rest), x, n, end);
    check(ut_gaps_decode(x, n, end, rest, in.left), x, n, end);
    check(ut_runs_decode(x, n, end, rest, in.left), x, n, end);
    free(rest);
    free(x);
    return 0;
}
