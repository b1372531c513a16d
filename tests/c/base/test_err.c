/* SPDX-License-Identifier: Apache-2.0
 *
 * Every error has its own sentence, and the dtypes their sizes. Fails when an error is added without a sentence.
 */
#include "check.h"
#include "core/base/ut.h"

static void ut_strerror__one_sentence_each(void)
{
    const char *const unknown = ut_strerror(1);
    CHECK_STR(unknown, "unknown error");
    CHECK_STR(ut_strerror(UT_OK), "success");
    for (int a = UT_ERR_SYSTEM; a <= UT_OK; a++) {
        CHECK_MSG(strcmp(ut_strerror(a), unknown) != 0, "error %d has no sentence", a);
        for (int b = UT_ERR_SYSTEM; b < a; b++)
            CHECK_MSG(strcmp(ut_strerror(a), ut_strerror(b)) != 0, "errors %d and %d: %s", a, b, ut_strerror(a));
    }
    CHECK_STR(ut_strerror(UT_ERR_SYSTEM - 1), unknown);
    CHECK_STR(ut_strerror(INT32_MIN), unknown);
}

static void ut_dtype_bytes__all(void)
{
    static const struct {
        unsigned dtype;
        size_t bytes, acc_bytes;
    } rows[] = {
        /* 0 */ {UT_FLOAT32, 4, 4},  /* 1 */ {UT_FLOAT64, 8, 8}, /* 2 */ {UT_FLOAT16, 2, 4},
        /* 3 */ {UT_BFLOAT16, 2, 4}, /* 4 */ {UT_INT32, 4, 4},   /* 5 */ {UT_INT64, 8, 8},
    };
    CHECK_EQ(sizeof rows / sizeof *rows, UT_DTYPES_END - 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_EQ(ut_dtype_bytes(rows[i].dtype), rows[i].bytes);
        CHECK_EQ(ut_dtype_acc_bytes(rows[i].dtype), rows[i].acc_bytes);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_strerror__one_sentence_each);
    RUN(ut_dtype_bytes__all);
    return check_end();
}
