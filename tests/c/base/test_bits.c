/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/bits.h"

#include "check.h"

static void bits__small_questions(void)
{
    CHECK_EQ(ut_bit(0), 1);
    CHECK_EQ(ut_bit(63), 1ULL << 63);
    CHECK(ut_bits_have(ut_bit(63) | ut_bit(2), 63));
    CHECK(!ut_bits_have(ut_bit(63) | ut_bit(2), 3));
    CHECK_EQ(ut_bits_below(1), 1);
    CHECK_EQ(ut_bits_below(5), 0x1f);
    CHECK_EQ(ut_bits_below(64), UINT64_MAX);
    CHECK_EQ(ut_bits_count(0), 0);
    CHECK_EQ(ut_bits_count(UINT64_MAX), 64);
    CHECK_EQ(ut_bits_first(ut_bit(63)), 63);
    CHECK_EQ(ut_bits_first(0x18), 3);
}

/* Each member once, in order; against bit after bit. */
static void bits__each_member_once_in_order(void)
{
    for (unsigned round = 0; round < 1000; round++) {
        uint64_t set = check_random() & check_random() & check_random(), seen = 0;
        int64_t before = -1;
        if (round == 0)
            set = 0;
        if (round == 1)
            set = UINT64_MAX;
        UT_FOR_BITS (member, set) {
            CHECK((int64_t)member > before && member < 64);
            before = (int64_t)member;
            seen |= 1ULL << member;
        }
        CHECK_EQ(seen, set);
    }
}

static void bits__walks_nest_and_end(void)
{
    uint64_t set = ut_bit(1) | ut_bit(5) | ut_bit(9) | ut_bit(40);
    unsigned sum = 0, pairs = 0;
    UT_FOR_BITS (a, set) {
        set = 0; /* the walk goes on over what it was */
        if (a == 5)
            continue;
        if (a == 40)
            break;
        sum += (unsigned)a;
    }
    CHECK_EQ(sum, 10);
    UT_FOR_BITS (a, 0x7)
        UT_FOR_BITS (b, 0x3)
            pairs += a != b;
    CHECK_EQ(pairs, 4);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(bits__small_questions);
    RUN(bits__each_member_once_in_order);
    RUN(bits__walks_nest_and_end);
    return check_end();
}
