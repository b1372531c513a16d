/* SPDX-License-Identifier: Apache-2.0
 *
 * Which option of a job is out of its range, in words. What is right says core/face/valid.c.
 */
#ifndef UT_DESCRIBE_H
#define UT_DESCRIBE_H

#include <stddef.h>

#include "core/base/options.h"

/* Writes into |ret|, which holds |len| bytes, the first option that no job of |hosts| hosts and |world| ranks can have,
 * its value, and what is allowed. Returns false if all are right. */
bool ut_describe_bad_options(const ut_job_options *o, uint32_t hosts, uint32_t world, char *ret, size_t len);

#endif
