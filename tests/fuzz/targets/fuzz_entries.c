/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer's sparse entries, which change while they are read: what is made of them is a block that a receiver takes,
 * of the range that it says, and no sum is written beyond its end.
 */
#include "shared.h"

#include "kernels/block.h"

enum { ELEMENTS = 12000 }; /* more than a block has room for */

static void encode_all(ut_entries e, const ut_block_shape *s, uint32_t base, size_t room)
{
    static ut_block b;
    uint32_t granules, blocks = 0;
    uint8_t *out = malloc(room);
    for (uint32_t first = 0; first < ut_block_granules(s); first += granules, blocks++) {
        size_t n = ut_block_encode_entries(out, room, &e, s, base, first, 1, &granules);
        MUST(n <= room && ut_block_open(&b, out, n, s) == UT_OK && b.first == first && b.granules == granules);
    }
    MUST(blocks <= ut_block_count_most(s, room) && e.next <= e.n);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t groups[] = {1, 2, 5, 16, 64, 100, 200, 256};
    input in = {data, size};
    uint8_t how = take8(&in);
    ut_block_shape s = {.group = groups[how & 7], .form = how >> 3 & 3};
    uint32_t units = 1 + take16(&in) % (ELEMENTS / s.group), step = 1 + take8(&in) % 4, n = units / step;
    size_t least = ut_block_least(s.group, s.form), room = least + take16(&in) % (UT_PACKET_MAX - least);
    uint32_t base = take16(&in) % units;
    s.units = units - base;
    /* Blocks of their own, so that the sanitizer sees a byte too many. */
    uint32_t *names = malloc(4 * n + !n);
    float *values = malloc(4 * n * s.group + !n), *sums = calloc((size_t)s.units * s.group, sizeof *sums);
    for (uint32_t i = 0; i < n; i++)
        names[i] = i * step;
    for (uint32_t i = 0; i < n * s.group; i++)
        values[i] = i % 7 ? 1.5f : 0;
    memset(&shared, 0, sizeof shared);
    shared.script = shared.rest = in;
    share(names, 4 * n);
    share(values, 4 * n * s.group);
    ut_entries e = {.names = (const uint8_t *)names, .values = (const uint8_t *)values, .n = n}, passed = e;
    uint32_t before = ut_entries_skip(&passed, base, UINT32_MAX);
    MUST(before == passed.next && before <= n);
    encode_all(passed, &s, base, room);
    MUST(ut_entries_add(&passed, sums, &s, base, n, 1) <= n - before && passed.next <= n);
    (void)ut_largest_finite(values, (size_t)n * s.group);
    shared.regions = 0;
    free(names);
    free(values);
    free(sums);
    return 0;
}
