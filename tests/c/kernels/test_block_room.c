/* SPDX-License-Identifier: Apache-2.0
 *
 * How much goes into a block: see kernels/block.h. An encoder measures seldom, so that this is tested by the
 * definition.
 */
#include "check.h"

#include "kernels/block.h"
#include "kernels/kernels.h"

#include <stdlib.h>

enum { ELEMENTS = 24000, ROOM_MAX = 1440 };
static float tensor[ELEMENTS];

/* The least bytes of the units of granules [|first|, |end|), by the definition. */
static size_t least_bytes(const ut_block_shape *s, uint32_t first, uint32_t end)
{
    uint32_t each = (15 + s->group) / s->group, units = UT_MIN2(end * each, s->units) - first * each, entries = 0;
    for (uint32_t u = 0; u < units; u++) {
        bool any = false;
        for (uint32_t k = 0; k < s->group; k++)
            any = any || tensor[((size_t)first * each + u) * s->group + k] != 0;
        entries += any;
    }
    size_t value = s->group * ut_value_bytes(s->form), head = 12 + (s->form == UT_VALUE_FLOAT8 ? 4 : 0);
    uint32_t low = 0;
    while (entries && low < 15 && (uint64_t)entries << (low + 1) <= units)
        low++;
    size_t names = (entries * low + 7) / 8 + (entries ? (entries + ((units - 1) >> low) + 7) / 8 : 0);
    return head + UT_MIN2(units * value, entries * value + UT_MIN2(names, (size_t)(units + 7) / 8));
}

/* Densities change within a block, from dense to empty and back: it has the least bytes, and the next granule would not
 * fit. */
static void blocks__are_as_full_as_they_can_be(void)
{
    for (unsigned round = 0; round < 300; round++) {
        const uint32_t groups[] = {1, 1, 1, 2, 16, 200};
        const unsigned rates[] = {0, 3, 30, 300, 1000};
        ut_block_shape s = {.group = groups[check_below(6)], .form = (uint8_t)check_below(UT_VALUE_FORMS_END)};
        s.units = ELEMENTS / s.group;
        memset(tensor, 0, sizeof tensor);
        unsigned rate = 0;
        for (uint32_t u = 0; u < s.units; u++) {
            rate = check_below(150 / s.group + 2) ? rate : rates[check_below(5)];
            if (check_below(1000) < rate)
                tensor[(size_t)u * s.group] = 1;
        }
        size_t least = ut_block_least(s.group, s.form), room = least + check_below(ROOM_MAX - least + 1);
        uint8_t *bytes = malloc(2 * ROOM_MAX);
        for (uint32_t first = 0, granules, all = ut_block_granules(&s); first < all; first += granules) {
            size_t n = ut_block_encode(bytes, room, tensor, &s, first, 1, &granules);
            if (!CHECK(n <= room) || !CHECK_EQ(n, least_bytes(&s, first, first + granules)) ||
                !CHECK(first + granules == all || least_bytes(&s, first, first + granules + 1) > room))
                break;
        }
        free(bytes);
    }
    /* The one entry of a range of so many units takes all their high bits. */
    ut_block_shape s = {.units = 24000000, .group = 1, .form = UT_VALUE_FLOAT32};
    const uint32_t name = s.units - 1;
    const float value = 1;
    ut_entries e = {.names = (const uint8_t *)&name, .values = (const uint8_t *)&value, .n = 1};
    uint8_t bytes[512];
    uint32_t granules;
    size_t n = ut_block_encode_entries(bytes, ut_block_least(1, s.form), &e, &s, 0, 0, 1, &granules);
    CHECK(n <= ut_block_least(1, s.form));
    CHECK_EQ(granules, s.units / 16 - 1);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    (void)ut_kernels_init(UT_ISA_BEST);
    RUN(blocks__are_as_full_as_they_can_be);
    return check_end();
}
