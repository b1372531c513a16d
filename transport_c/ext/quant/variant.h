/* SPDX-License-Identifier: Apache-2.0
 *
 * The quantised allreduce, as the core sees it (core/op/variant.h): op_quant.c has the table, quant.h how the bucket is
 * cut, quant_codec.c how it travels, coded_slots.c how it is added up.
 */
#ifndef UT_QUANT_VARIANT_H
#define UT_QUANT_VARIANT_H

#include "core/op/op.h"

#include "ext/quant/quant.h"

extern const ut_variant ut_variant_quant;
extern const ut_codec ut_codec_quant;
extern const ut_fold_rule ut_fold_quant;

#endif
