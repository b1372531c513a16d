/* SPDX-License-Identifier: Apache-2.0
 *
 * The long form of tests/c/cipher/test_forged.c: as many injections as the first argument says (1e6 if none), and what
 * became of them. Exit status 0 if none was folded, none changed anything, and all were counted.
 */
#include "cipher/forger.h"

#include "kernels/kernels.h"

int main(int argc, char **argv)
{
    enum { ROUND = 20000 };
    const double asked = argc > 1 ? strtod(argv[1], NULL) : 1e6;
    uint64_t ops = 0, whole = 0;
    proof p = {0};
    check_run.program = argv[0];
    check_run.seed = check_run.state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (unsigned part = 0; part < UT_SUITES_END; part++) {
        /* Each suite, and at last the first one with keys that change all the time. */
        const bool quick = part == UT_SUITES_END - 1;
        forged_begin(quick ? 1 : part + 1, quick ? (ut_key_life){50, UINT64_MAX, UT_NEVER, 0} : ut_key_life_usual);
        for (uint64_t op = 0; op < 4; op++, ops++)
            whole += forged_op(op);
        const uint64_t until = (uint64_t)(asked / UT_SUITES_END * (part + 1));
        for (uint64_t op = 4; injected_in_all(&p) < until; op++, ops++) {
            inject(ROUND, &p);
            whole += forged_op(op);
        }
        forged_end();
    }
    for (unsigned i = 0; i < ATTACKS; i++)
        printf("%-12s %12" PRIu64 " injected\n", attack_names[i], p.injected[i]);
    printf("%" PRIu64 " injected, %" PRIu64 " counted, %" PRIu64 " folded, %" PRIu64 " changes of state, %" PRIu64
           " bytes out; %" PRIu64 " ops between them, %" PRIu64 " whole\n",
           injected_in_all(&p), p.counted, p.folded, p.changes, p.bytes_out, ops, whole);
    return p.counted == injected_in_all(&p) && !p.folded && !p.changes && !p.bytes_out && ops == whole &&
                   !check_run.failures
               ? 0
               : 1;
}
