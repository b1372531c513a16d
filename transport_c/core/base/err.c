/* SPDX-License-Identifier: Apache-2.0
 *
 * Sentences for the error numbers, and the sizes of the dtypes: the two small tables behind ut.h.
 */
#include "core/base/ut.h"

/* When you add an error, add its sentence here; test_err.c goes through all of them. */
const char *ut_strerror(int error)
{
    switch (error) {
    case UT_OK:
        return "success";
    case UT_ERR_ARGUMENT:
        return "an argument is out of its range";
    case UT_ERR_MALFORMED:
        return "malformed datagram";
    case UT_ERR_CHECKSUM:
        return "checksum does not match";
    case UT_ERR_UNKNOWN:
        return "no such job, host, session or connection";
    case UT_ERR_FULL:
        return "a limit is reached";
    case UT_ERR_EXISTS:
        return "it exists already";
    case UT_ERR_DESYNC:
        return "ranks called this operation with different arguments";
    case UT_ERR_DTYPE:
        return "no such dtype";
    case UT_ERR_REDOP:
        return "no such reduction, or one that this mode does not offer";
    case UT_ERR_RANGE:
        return "the buffer lies outside the arena";
    case UT_ERR_TOO_LARGE:
        return "the bucket is larger than the job allows";
    case UT_ERR_TIMEOUT:
        return "the deadline passed";
    case UT_ERR_SEQUENCE:
        return "the operation number is not the next one";
    case UT_ERR_CLOSED:
        return "the job is closing";
    case UT_ERR_SYSTEM:
        return "a system call failed";
    default:
        return "unknown error";
    }
}

size_t ut_dtype_bytes(unsigned dtype)
{
    static const uint8_t bytes[UT_BYTES + 1] = {
        [UT_FLOAT32] = 4, [UT_FLOAT64] = 8, [UT_FLOAT16] = 2, [UT_BFLOAT16] = 2,
        [UT_INT32] = 4,   [UT_INT64] = 8,   [UT_BYTES] = 1,
    };
    assert(dtype > 0 && dtype <= UT_BYTES);
    return bytes[dtype];
}

size_t ut_dtype_acc_bytes(unsigned dtype)
{
    return dtype == UT_FLOAT16 || dtype == UT_BFLOAT16 ? ut_dtype_bytes(UT_FLOAT32) : ut_dtype_bytes(dtype);
}
