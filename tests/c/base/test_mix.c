/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/mix.h"

#include "check.h"

/* The first numbers that splitmix64 gives from state 0, as other implementations print them. */
static void mix__gives_what_other_splitmix64s_give(void)
{
    static const uint64_t known[] = {0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec,
                                     0x1b39896a51a8749b};
    uint64_t state = 0;
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        CHECK_EQ(ut_mix_next(&state), known[i]);
}

static void mix__known_values(void)
{
    CHECK_EQ(ut_mix(0), 0);
    CHECK_EQ(ut_mix(UT_MIX_STEP), 0xe220a8397b1dcdaf);
    CHECK_EQ(ut_mix(1234567 + UT_MIX_STEP), 6457827717110365317u);
    CHECK_EQ(ut_mix(1234567 + 2 * UT_MIX_STEP), 3203168211198807973u);
}

/* A bit of the input changes about half of the bits of the output. */
static void mix__every_bit_counts(void)
{
    for (unsigned bit = 0; bit < 64; bit++) {
        unsigned changed = 0;
        for (unsigned i = 0; i < 64; i++) {
            uint64_t x = check_random();
            changed += (unsigned)__builtin_popcountll(ut_mix(x) ^ ut_mix(x ^ 1ULL << bit));
        }
        CHECK(changed > 64 * 24 && changed < 64 * 40); /* 32 each; a deviation of 8 of the mean of 64 is 16 sigma */
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(mix__gives_what_other_splitmix64s_give);
    RUN(mix__known_values);
    RUN(mix__every_bit_counts);
    return check_end();
}
