/* SPDX-License-Identifier: Apache-2.0
 *
 * Which extensions a program has: all of them.
 */
#include "core/op/ext.h"

#include "ext/coded/coded.h"
#include "ext/sparse/variant.h"

const ut_extensions ut_extensions_linked = {.sparse = &ut_variant_sparse, .coded = &ut_intake_coded};
