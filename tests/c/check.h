/* SPDX-License-Identifier: Apache-2.0
 *
 * The few lines that every C test shares: checks that print where and with which values they failed, a seeded
 * generator, and the command that replays a failing run. A test is one program:
 *
 *     static void thing_add__wraps(void) { CHECK_EQ(thing_add(250, 10), 4); }
 *     int main(int argc, char **argv)
 *     {
 *         check_begin(argc, argv);
 *         RUN(thing_add__wraps);
 *         return check_end();
 *     }
 *
 * A failed check is counted and the test goes on, so that one run shows all that is wrong. Random tests draw from
 * check_random() only: the same --seed gives the same run.
 */
#ifndef UT_CHECK_H
#define UT_CHECK_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mix.h"

enum { CHECK_PRINTED_MAX = 25 }; /* failures printed in full; the rest are only counted */

static struct {
    const char *program;
    const char *test; /* the RUN that is on */
    uint64_t seed, state;
    uint64_t checks, failures;
} check_run = {.program = "test", .test = "main"};

/* splitmix64: any seed is a good one, 0 included. */
__attribute__((unused)) static uint64_t check_random(void)
{
    return ut_mix_next(&check_run.state);
}

/* A number from 0 to |end| - 1; 0 if |end| is 0. */
__attribute__((unused)) static uint64_t check_below(uint64_t end)
{
    return end ? check_random() % end : 0;
}

/* Starts the generator over, so that one test's draws do not depend on the tests before it. */
__attribute__((unused)) static void check_reseed(uint64_t salt)
{
    check_run.state = check_run.seed ^ (salt * 0xd1342543de82ef95u);
}

__attribute__((unused, format(printf, 4, 5))) static bool check_that(bool ok, const char *file, int line,
                                                                     const char *format, ...)
{
    check_run.checks++;
    if (ok)
        return true;
    if (check_run.failures++ < CHECK_PRINTED_MAX) {
        va_list values;
        fprintf(stderr, "%s:%d: %s: ", file, line, check_run.test);
        va_start(values, format);
        vfprintf(stderr, format, values);
        va_end(values);
        fputc('\n', stderr);
    }
    return false;
}

/* Each CHECK is an expression: true if it held. The values of _EQ and friends are evaluated once. */
#define CHECK(condition) check_that((condition), __FILE__, __LINE__, "CHECK(%s)", #condition)
/* With a sentence of values: CHECK_MSG(n == m, "row %d: n %zu, want %zu", row, n, m). */
/* The condition comes first: what is told may be what it found. */
#define CHECK_MSG(condition, ...)                                                                                      \
    __extension__({                                                                                                    \
        const bool check_holds_ = (condition);                                                                         \
        check_that(check_holds_, __FILE__, __LINE__, __VA_ARGS__);                                                     \
    })

#define CHECK_COMPARE_(type, format, a, name_a, op, b, name_b)                                                         \
    __extension__({                                                                                                    \
        const type check_a_ = (type)(a), check_b_ = (type)(b);                                                         \
        check_that(check_a_ op check_b_, __FILE__, __LINE__, "%s " #op " %s: %" format ", %" format, name_a, name_b,   \
                   check_a_, check_b_);                                                                                \
    })
/* Signed integers of any width. */
#define CHECK_EQ(a, b) CHECK_COMPARE_(int64_t, PRId64, a, #a, ==, b, #b)
#define CHECK_NE(a, b) CHECK_COMPARE_(int64_t, PRId64, a, #a, !=, b, #b)
#define CHECK_LE(a, b) CHECK_COMPARE_(int64_t, PRId64, a, #a, <=, b, #b)
#define CHECK_GE(a, b) CHECK_COMPARE_(int64_t, PRId64, a, #a, >=, b, #b)
/* Unsigned ones, printed in hexadecimal. */
#define CHECK_HEX(a, b) CHECK_COMPARE_(uint64_t, PRIx64, a, #a, ==, b, #b)
/* Exactly equal doubles. */
#define CHECK_DOUBLE(a, b) CHECK_COMPARE_(double, ".17g", a, #a, ==, b, #b)

#define CHECK_STR(a, b) check_str((a), (b), #a, #b, __FILE__, __LINE__)
__attribute__((unused)) static bool check_str(const char *a, const char *b, const char *name_a, const char *name_b,
                                              const char *file, int line)
{
    return check_that(a && b && strcmp(a, b) == 0, file, line, "%s == %s: \"%s\", \"%s\"", name_a, name_b,
                      a ? a : "NULL", b ? b : "NULL");
}

/* |len| equal bytes; names the first that differs. */
#define CHECK_BYTES(a, b, len) check_bytes((a), (b), (len), #a, #b, __FILE__, __LINE__)
__attribute__((unused)) static bool check_bytes(const void *a, const void *b, size_t len, const char *name_a,
                                                const char *name_b, const char *file, int line)
{
    const uint8_t *p = (const uint8_t *)a, *q = (const uint8_t *)b;
    size_t i = 0;
    while (i < len && p[i] == q[i])
        i++;
    return check_that(i == len, file, line, "%s == %s: byte %zu of %zu: %02x, %02x", name_a, name_b, i, len,
                      i < len ? p[i] : 0, i < len ? q[i] : 0);
}

#define RUN(run_)                                                                                                      \
    do {                                                                                                               \
        check_run.test = #run_;                                                                                        \
        check_reseed(0);                                                                                               \
        run_();                                                                                                        \
    } while (0)

/* Reads --seed N (decimal or 0x...; default 1) and ignores the rest, which is the test's own. */
__attribute__((unused)) static void check_begin(int argc, char **argv)
{
    check_run.program = argc > 0 ? argv[0] : "test";
    check_run.seed = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") != 0)
            continue;
        char *end = NULL;
        if (i + 1 < argc)
            check_run.seed = strtoull(argv[++i], &end, 0);
        if (!end || *end || end == argv[i]) {
            fprintf(stderr, "%s: --seed wants a whole number from 0 to 2^64 - 1\n", check_run.program);
            exit(2);
        }
    }
    check_reseed(0);
}

/* The exit status for main: 0 if all held. */
__attribute__((unused)) static int check_end(void)
{
    if (check_run.failures == 0 && check_run.checks > 0) {
        printf("%s: %" PRIu64 " checks\n", check_run.program, check_run.checks);
        return 0;
    }
    fprintf(stderr, "%s: %" PRIu64 " of %" PRIu64 " checks failed; replay: %s --seed %" PRIu64 "\n", check_run.program,
            check_run.failures, check_run.checks, check_run.program, check_run.seed);
    return 1;
}

#endif
