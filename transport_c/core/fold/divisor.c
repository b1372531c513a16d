/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fold/fold.h"

uint32_t ut_fold_divisor(const ut_op_fold *f, uint32_t g)
{
    if (f->averaged)
        return 1;
    if (f->what->by_world)
        return f->world;
    return UT_MAX2(f->weight[g], 1); /* a sum of nothing is zero, whatever it is divided by */
}
