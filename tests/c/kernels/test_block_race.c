/* SPDX-License-Identifier: Apache-2.0
 *
 * An index that its trainer changes between any two reads. The encoder is compiled into this test with a reader of
 * indices that changes each index as soon as it was read: an encoder that read one twice could take all of the chunk's
 * entries for those of one granule, which its memory has no room for.
 */
#include "check.h"

#include "kernels/block.h"

static unsigned reads;

static uint32_t read_and_change(const ut_entries *e, uint32_t i, uint32_t least, uint32_t end)
{
    uint32_t index = ut_entries_index(e, i, least, end), *at = (uint32_t *)(uintptr_t)(e->names + 4 * (size_t)i);
    *at = *at == i ? UINT32_MAX : i;
    reads++;
    return index;
}

/* A copy beside the encoder of the core, under names of its own. */
#define ut_entries_index read_and_change
#define ut_granule_units copy_granule_units
#define ut_block_granules copy_granules
#define ut_block_least copy_least
#define ut_block_fit copy_fit
#define ut_block_count_most copy_count_most
#define ut_block_index_bytes copy_index_bytes
#define ut_block_encode copy_encode
#define ut_block_encode_who copy_encode_who
#define ut_block_encode_entries copy_encode_entries
#include "kernels/block.c"

enum { UNITS = 60, GROUP = UT_BLOCK_GROUP_MAX, ROOM = 8000 };
_Static_assert(UNITS *GROUP > UT_BLOCK_VALUES_MAX + 2 * UT_BLOCK_GROUP_MAX, "more than an encoder has room for");

/* The first index, each, or none is bad when it is read, and otherwise a moment later. */
static void entries__may_change_between_two_reads(void)
{
    static const ut_block_shape s = {.units = UNITS, .group = GROUP, .form = UT_VALUE_FLOAT32};
    static const struct {
        uint32_t bad; /* of the first indices */
        uint32_t taken;
    } rows[] = {{1, 0}, {UNITS, 0}, {0, 1}};
    static uint32_t names[UNITS];
    static float values[UNITS * GROUP];
    static uint8_t bytes[ROOM];
    static ut_block b;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (uint32_t u = 0; u < UNITS; u++)
            names[u] = u < rows[i].bad ? UINT32_MAX : u;
        for (size_t k = 0; k < UNITS * GROUP; k++)
            values[k] = 1;
        ut_entries e = {.names = (const uint8_t *)names, .values = (const uint8_t *)values, .n = UNITS};
        uint32_t granules;
        reads = 0;
        size_t n = copy_encode_entries(bytes, ROOM, &e, &s, 0, 0, 1, &granules);
        CHECK_LE(n, ROOM);
        CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_OK);
        CHECK_EQ(b.entries, rows[i].taken);
        CHECK_EQ(e.next, rows[i].taken);
        CHECK_LE(reads, 2 * rows[i].taken + 2); /* one of its own granule, and the one behind it */
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(entries__may_change_between_two_reads);
    return check_end();
}
