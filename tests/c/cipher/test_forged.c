/* SPDX-License-Identifier: Apache-2.0
 *
 * Nothing that the path's other end has not sealed for this path has any effect. `make prove` is the long form.
 */
#include "forger.h"

static void try_suite(unsigned suite, ut_key_life life, uint64_t rounds)
{
    proof p = {0};
    forged_begin(suite, life);
    for (uint64_t op = 0; op < 4; op++)
        CHECK_MSG(forged_op(op), "suite %u, op %" PRIu64, suite, op);
    for (uint64_t round = 0; round < rounds; round++) {
        inject(500, &p);
        CHECK_MSG(forged_op(4 + round), "suite %u, after round %" PRIu64, suite, round);
    }
    CHECK_EQ(p.counted, injected_in_all(&p));
    CHECK_EQ(p.folded, 0);
    CHECK_EQ(p.changes, 0);
    CHECK_EQ(p.bytes_out, 0);
    forged_end();
}

static void forged__nothing_is_folded_and_all_is_counted(void)
{
    for (unsigned suite = 1; suite < UT_SUITES_END; suite++)
        try_suite(suite, ut_key_life_usual, 5);
}

static void forged__while_keys_change_all_the_time(void)
{
    try_suite(UT_SUITE_AES_128_GCM, (ut_key_life){7, UINT64_MAX, UT_NEVER, 0}, 5);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(forged__nothing_is_folded_and_all_is_counted);
    RUN(forged__while_keys_change_all_the_time);
    return check_end();
}
