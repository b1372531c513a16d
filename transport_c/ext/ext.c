/* SPDX-License-Identifier: Apache-2.0
 *
 * Which extensions a program has: all of them.
 */
#include "core/op/ext.h"

#include "ext/coded/coded.h"
#include "ext/quant/variant.h"
#include "ext/sparse/variant.h"

const ut_extensions ut_extensions_linked = {
    .variant = {[UT_VARIANT_SPARSE] = &ut_variant_sparse, [UT_VARIANT_QUANT] = &ut_variant_quant},
    .coded = &ut_intake_coded,
};
