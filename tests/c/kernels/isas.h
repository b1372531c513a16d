/* SPDX-License-Identifier: Apache-2.0
 *
 * Every instruction set that this CPU has, each chosen in turn, and its name.
 */
#ifndef UT_TESTS_ISAS_H
#define UT_TESTS_ISAS_H

#include "kernels/kernels.h"

__attribute__((unused)) static const char *const ISA_NAMES[] = {"plain", "avx2", "avx512", "neon"};
#define FOR_EACH_ISA(isa)                                                                                              \
    for (unsigned isa = UT_ISA_PLAIN; isa <= UT_ISA_BEST; isa++)                                                       \
        if (ut_kernels_init((enum ut_isa)isa) == (enum ut_isa)isa)

#endif
