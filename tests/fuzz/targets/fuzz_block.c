/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of sparse blocks, and what follows from what it accepts: it stays in its chunk, its indices ascend, and
 * what it made is encoded into blocks that say the same.
 */
#include "fuzz.h"

#include "kernels/block.h"

enum { ELEMENTS = 4096, ROOM = 1440 };

/* The chunk as blocks and back. */
static void again(const float *chunk, const ut_block_shape *s, ut_block *b)
{
    static float back[ELEMENTS];
    uint8_t out[ROOM];
    uint32_t granules;
    uint64_t digest = 0;
    for (uint32_t first = 0; first < ut_block_granules(s); first += granules) {
        size_t n = ut_block_encode(out, sizeof out, chunk, s, first, 1, &granules);
        MUST(n <= sizeof out && granules);
        MUST(ut_block_open(b, out, n, s) == UT_OK && b->first == first && b->granules == granules);
        (void)ut_block_place(b, s, back, 0, &digest);
    }
    for (uint32_t i = 0; i < s->units * s->group; i++) {
        if (s->form == UT_VALUE_INT8) { /* rounded once more: what is zero or NaN stays */
            MUST((chunk[i] == chunk[i] || back[i] != back[i]) && (chunk[i] != 0 || back[i] == 0));
            continue;
        }
        float want = ut_value_rounded(chunk[i], s->form, 1);
        MUST(back[i] == want || (back[i] != back[i] && want != want));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float chunk[ELEMENTS];
    static ut_block b;
    uint64_t digest = 0;
    input in = {data, size};
    uint8_t group = take8(&in), form = take8(&in); /* the forms, then int8 in the place of 4 and 5 */
    ut_block_shape s = {.group = 1 + group % 64, .form = form % 6 < UT_VALUE_FORMS_END ? form % 6 : UT_VALUE_INT8};
    s.units = 1 + take16(&in) % (ELEMENTS / s.group);
    uint8_t *block = copy_of(in.at, in.left);
    memset(chunk, 0, sizeof chunk);
    if (ut_block_open(&b, block, in.left, &s) == UT_OK) {
        MUST(b.granules && b.base + b.units <= s.units && b.entries <= b.units);
        for (uint32_t i = 0; i < b.entries && b.index != UT_INDEX_DENSE; i++)
            MUST(b.at[i] < b.units && (i == 0 || b.at[i] > b.at[i - 1]));
        uint32_t told = 0;
        for (uint32_t i = 0; i < b.runs; i++)
            told += ut_block_run_at(&b, i).granules;
        MUST(b.runs == 0 || told == b.granules);
        (void)ut_block_place(&b, &s, chunk, 0, &digest);
        MUST(ut_block_error(&b, &s) >= 0);
        if (s.form != UT_VALUE_INT8)
            ut_block_add(&b, &s, chunk);
        again(chunk, &s, &b);
    }
    free(block);
    return 0;
}
