/* SPDX-License-Identifier: Apache-2.0
 *
 * Fold, finish, place and combine against the model, bit for bit, on every instruction set that this CPU has: all
 * dtypes, operations, ways of calling, lengths 0 to 200 and some long ones, at random alignments, in place where that
 * is allowed. Since each set equals the model, the sets equal each other. A lane, a mask, a tail or a rounding that is
 * wrong shows as a value; a store past the end shows in the bytes around the output.
 */
#define _DEFAULT_SOURCE
#include "kernels_check.h"

#include <sys/mman.h>
#include <unistd.h>

static uint8_t room_sources[5][ROOM];
static element acc[N_MAX];

static void check_count(const char *what, unsigned isa, unsigned dtype, unsigned redop, size_t n, size_t got,
                        size_t right)
{
    CHECK_MSG(got == right, "%s of %zu %s, %s on %s: counts %zu not finite, want %zu", what, n, DTYPE_NAMES[dtype],
              REDOP_NAMES[redop], ISA_NAMES[isa], got, right);
}

static void fold_case(unsigned dtype, unsigned redop, unsigned how, size_t n)
{
    const unsigned a_dtype = how & UT_A_IS_INPUT ? dtype : acc_of(dtype);
    const unsigned out_dtype = how & UT_OUT_IS_RESULT ? dtype : acc_of(dtype);
    const uint8_t *const a = random_elements(a_dtype, room_a, n), *const in = random_elements(dtype, room_in, n);
    const uint32_t divisor = random_divisor();
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        const element mine = element_at(a_dtype, a, i);
        want[i] =
            model_fold(dtype, redop, how & UT_A_IS_INPUT ? model_widen(dtype, mine) : mine, element_at(dtype, in, i));
        if (how & UT_OUT_IS_RESULT) {
            want[i] = model_finish(dtype, redop, want[i], divisor);
            bad += model_is_bad(dtype, want[i]);
        }
    }
    FOR_EACH_ISA(isa)
    {
        uint8_t *const out = room_out + FENCE + check_below(64);
        fence_build(out, n * ut_dtype_bytes(out_dtype));
        check_count("fold", isa, dtype, redop, n, ut_fold(dtype, redop, how, out, a, in, n, divisor), bad);
        check_elements("fold", isa, dtype, redop, how, out_dtype, out, n, divisor);
        if (ut_dtype_bytes(out_dtype) > ut_dtype_bytes(a_dtype))
            continue; /* not in place: it would overwrite what it has not read */
        memcpy(out, a, n * ut_dtype_bytes(a_dtype));
        memset(out + n * ut_dtype_bytes(a_dtype), 0xa5, FENCE);
        check_count("fold in place", isa, dtype, redop, n, ut_fold(dtype, redop, how, out, out, in, n, divisor), bad);
        memset(out + n * ut_dtype_bytes(out_dtype), 0xa5, n * (ut_dtype_bytes(a_dtype) - ut_dtype_bytes(out_dtype)));
        check_elements("fold in place", isa, dtype, redop, how, out_dtype, out, n, divisor);
    }
}

static void ut_fold__is_the_model(void)
{
    FOR_EACH_DTYPE(dtype)
    FOR_EACH_REDOP(redop)
    for (unsigned how = 0; how < 4; how++)
        for (size_t n = 0; n != SIZE_MAX; n = next_n(n))
            fold_case(dtype, redop, how, n);
}

static void finish_case(unsigned dtype, unsigned redop, unsigned how, size_t n)
{
    const unsigned a_dtype = how & UT_A_IS_INPUT ? dtype : acc_of(dtype);
    const uint8_t *const a = random_elements(a_dtype, room_a, n);
    const uint32_t divisor = random_divisor();
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        const element mine = element_at(a_dtype, a, i);
        want[i] = model_finish(dtype, redop, how & UT_A_IS_INPUT ? model_widen(dtype, mine) : mine, divisor);
        bad += model_is_bad(dtype, want[i]);
    }
    FOR_EACH_ISA(isa)
    {
        uint8_t *const out = room_out + FENCE + check_below(64);
        fence_build(out, n * ut_dtype_bytes(dtype));
        check_count("finish", isa, dtype, redop, n, ut_finish(dtype, redop, how, out, a, n, divisor), bad);
        check_elements("finish", isa, dtype, redop, how, dtype, out, n, divisor);
        memcpy(out, a, n * ut_dtype_bytes(a_dtype));
        check_count("finish in place", isa, dtype, redop, n, ut_finish(dtype, redop, how, out, out, n, divisor), bad);
        memset(out + n * ut_dtype_bytes(dtype), 0xa5, n * (ut_dtype_bytes(a_dtype) - ut_dtype_bytes(dtype)) + FENCE);
        check_elements("finish in place", isa, dtype, redop, how, dtype, out, n, divisor);
    }
}

static void ut_finish__is_the_model(void)
{
    FOR_EACH_DTYPE(dtype)
    FOR_EACH_REDOP(redop)
    for (unsigned how = 0; how <= UT_A_IS_INPUT; how++)
        for (size_t n = 0; n != SIZE_MAX; n = next_n(n))
            finish_case(dtype, redop, how, n);
}

/* A copy to the bit, NaN payloads too. */
static void ut_place__copies_and_counts(void)
{
    FOR_EACH_DTYPE(dtype)
    for (size_t n = 0; n != SIZE_MAX; n = next_n(n)) {
        const uint8_t *const src = random_elements(dtype, room_in, n);
        const size_t bytes = n * ut_dtype_bytes(dtype);
        size_t bad = 0;
        for (size_t i = 0; i < n; i++)
            bad += model_is_bad(dtype, element_at(dtype, src, i));
        FOR_EACH_ISA(isa)
        {
            uint8_t *const dst = room_out + FENCE + check_below(64);
            fence_build(dst, bytes);
            check_count("place", isa, dtype, UT_SUM, n, ut_place(dtype, dst, src, n), bad);
            CHECK_BYTES(dst, src, bytes);
            CHECK_MSG(fence_stands(dst, bytes), "place of %zu %s on %s: bytes around", n, DTYPE_NAMES[dtype],
                      ISA_NAMES[isa]);
        }
    }
}

/* One element of each kind in each place of a vector and a tail: the count finds it wherever it is. */
static void ut_place__counts_every_lane(void)
{
    static const struct {
        unsigned dtype;
        element bits;
        size_t bad;
    } rows[] = {
        /* 0 */ {UT_FLOAT32, 0x7f800000, 1},
        /* 1 */ {UT_FLOAT32, 0xff800000, 1},
        /* 2 */ {UT_FLOAT32, 0xffc00001, 1},
        /* 3 */ {UT_FLOAT32, 0x7f7fffff, 0},
        /* 4 */ {UT_FLOAT64, 0xfff0000000000000, 1},
        /* 5 */ {UT_FLOAT64, 0x7fefffffffffffff, 0},
        /* 6 */ {UT_FLOAT16, 0xfc00, 1},
        /* 7 */ {UT_FLOAT16, 0x7c01, 1},
        /* 8 */ {UT_FLOAT16, 0xfbff, 0},
        /* 9 */ {UT_BFLOAT16, 0x7f80, 1},
        /* 10 */ {UT_BFLOAT16, 0xffff, 1},
        /* 11 */ {UT_BFLOAT16, 0x7f7f, 0},
    };
    enum { N = 77 };
    FOR_EACH_ISA(isa)
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
        for (size_t at = 0; at < N; at++)
            for (size_t offset = 0; offset < 64; offset += 16) {
                uint8_t *const src = room_in + offset, *const dst = room_out + offset;
                memset(src, 0, N * ut_dtype_bytes(rows[row].dtype));
                element_put(rows[row].dtype, src, at, rows[row].bits);
                const size_t bad = ut_place(rows[row].dtype, dst, src, N);
                const size_t finished = ut_finish(rows[row].dtype, UT_AVG, UT_A_IS_INPUT, dst, src, N, 1);
                CHECK_MSG(bad == rows[row].bad && finished == rows[row].bad,
                          "row %zu, lane %zu on %s: place %zu, finish %zu", row, at, ISA_NAMES[isa], bad, finished);
            }
}

/* More of them than a 16-bit counter holds. */
static void nonfinite__many(void)
{
    enum { N = 70001 };
    static uint16_t nan[N], copy[N];
    static float sum[N];
    memset(nan, 0xff, sizeof nan);
    FOR_EACH_ISA(isa)
    for (unsigned dtype = UT_FLOAT16; dtype <= UT_BFLOAT16; dtype++) {
        CHECK_EQ(ut_place(dtype, copy, nan, N), N);
        CHECK_EQ(ut_fold(dtype, UT_SUM, UT_A_IS_INPUT, sum, nan, nan, N, 1), 0);
        CHECK_EQ(ut_finish(dtype, UT_AVG, 0, copy, sum, N, 3), N);
    }
}

static void combine_case(unsigned dtype, unsigned redop, unsigned k, size_t n)
{
    const void *src[5], *moved[5];
    for (unsigned j = 0; j < k; j++)
        src[j] = random_elements(dtype, room_sources[j], n);
    for (size_t i = 0; i < n; i++) {
        acc[i] = model_widen(dtype, element_at(dtype, src[0], i));
        for (unsigned j = 1; j < k; j++)
            acc[i] = model_fold(dtype, redop == UT_AVG ? UT_SUM : redop, acc[i], element_at(dtype, src[j], i));
        want[i] = model_finish(dtype, UT_SUM, acc[i], 1);
    }
    FOR_EACH_ISA(isa)
    for (unsigned own = 0; own <= k; own++) { /* dst is source |own|; for k it is none of them */
        uint8_t *const dst = room_out + FENCE + check_below(64);
        memcpy(moved, src, sizeof moved);
        fence_build(dst, n * ut_dtype_bytes(dtype));
        if (own < k) {
            memcpy(dst, src[own], n * ut_dtype_bytes(dtype));
            moved[own] = dst;
        }
        ut_combine(dtype, redop, dst, moved, k, n, 0);
        check_elements("combine", isa, dtype, redop, own, dtype, dst, n, k);
    }
}

static void ut_combine__is_the_model(void)
{
    FOR_EACH_DTYPE(dtype)
    FOR_EACH_REDOP(redop)
    for (unsigned k = 1; k <= 5; k++)
        for (size_t n = 0; n != SIZE_MAX; n = n < 40 ? n + 1 : next_n(n < 190 ? n + 50 : n))
            combine_case(dtype, redop, k, n);
}

/* Sources that the last fold alone would have clobbered: one buffer, several times. */
static void ut_combine__same_source_twice(void)
{
    enum { N = 1100 };
    FOR_EACH_ISA(isa)
    {
        float *const x = (float *)(void *)(room_out + 64);
        const void *const src[4] = {x, x, x, x};
        for (int i = 0; i < N; i++)
            x[i] = (float)i;
        ut_combine(UT_FLOAT32, UT_SUM, x, src, 4, N, 0);
        for (int i = 0; i < N; i++)
            CHECK_DOUBLE(x[i], 4.0 * i);
    }
}

/* The largest halves there are, k times: no sum of them is a half. */
static void ut_combine__averages_before_it_rounds(void)
{
    enum { N = 1100, LARGEST = 0x7bff };
    FOR_EACH_ISA(isa)
    for (unsigned k = 1; k <= 5; k++) {
        uint16_t *const x = (uint16_t *)(void *)(room_out + 64), *const out = x + N;
        const void *const src[5] = {x, x, x, x, x};
        for (int i = 0; i < N; i++)
            x[i] = (uint16_t)(LARGEST - i % 7);
        ut_combine(UT_FLOAT16, UT_AVG, out, src, k, N, k);
        for (int i = 0; i < N; i++)
            CHECK_EQ(out[i], x[i]);
        ut_combine(UT_FLOAT16, UT_AVG, out, src, k, N, 5 * k); /* of a world that not all have come from */
        CHECK_EQ(out[0], 0x7266);                              /* 65504 / 5 = 13100.8, of which a half has 13104 */
    }
}

/* Memory with a forbidden page before and after: an access outside is a crash, whatever instruction makes it. */
static uint8_t *between_guards(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *const p = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(p != MAP_FAILED) || !CHECK_EQ(mprotect(p + page, bytes, PROT_READ | PROT_WRITE), 0))
        exit(1);
    return p + page;
}

/* Buffers that touch their first or their last byte, in all lengths that make a different tail. */
static void kernels__stay_inside(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *const a = between_guards(page), *const in = between_guards(page), *const out = between_guards(page);
    const void *sources[3] = {NULL};
    FOR_EACH_ISA(isa)
    FOR_EACH_DTYPE(dtype)
    FOR_EACH_REDOP(redop)
    for (size_t n = 0; n <= 70; n++)
        for (int last = 0; last < 2; last++) {
            const size_t bytes = ut_dtype_bytes(dtype), wide = ut_dtype_bytes(acc_of(dtype));
            uint8_t *const in_at = last ? in + page - n * bytes : in;
            for (unsigned how = 0; how < 4; how++) {
                const size_t a_bytes = how & UT_A_IS_INPUT ? bytes : wide,
                             out_bytes = how & UT_OUT_IS_RESULT ? bytes : wide;
                uint8_t *const a_at = last ? a + page - n * a_bytes : a, *const out_at =
                                                                             last ? out + page - n * out_bytes : out;
                CHECK_EQ(ut_fold(dtype, redop, how, out_at, a_at, in_at, n, 3), 0);
                CHECK_EQ(ut_finish(dtype, redop, how & UT_A_IS_INPUT, last ? out + page - n * bytes : out, a_at, n, 3),
                         0);
            }
            uint8_t *const dst = last ? out + page - n * bytes : out;
            CHECK_EQ(ut_place(dtype, dst, in_at, n), 0);
            sources[0] = sources[1] = sources[2] = in_at;
            ut_combine(dtype, redop, dst, sources, 3, n, 0);
            (void)ut_crc32c(0, in_at, n * bytes);
        }
    munmap(a - page, 3 * page);
    munmap(in - page, 3 * page);
    munmap(out - page, 3 * page);
}

static void integers__by_table(void)
{
    static const struct {
        unsigned redop;
        int64_t a, in;
        uint32_t divisor;
        int64_t i32, i64;
    } rows[] = {
        /* 0 */ {UT_SUM, INT32_MAX, 1, 1, INT32_MIN, (int64_t)INT32_MAX + 1},
        /* 1 */ {UT_AVG, -7, 0, 2, -3, -3},
        /* 2 */ {UT_AVG, 7, 0, 2, 3, 3},
        /* 3 */ {UT_AVG, INT32_MIN, 0, 1, INT32_MIN, INT32_MIN},
        /* 4 */ {UT_AVG, INT32_MIN, 0, 3, -715827882, -715827882},
        /* 5 */ {UT_AVG, INT32_MAX, 1, 4, INT32_MIN / 4, ((int64_t)INT32_MAX + 1) / 4},
        /* 6 */ {UT_PROD, INT32_MIN, -1, 9, INT32_MIN, -(int64_t)INT32_MIN},
        /* 7 */ {UT_MIN, INT32_MIN, INT32_MAX, 9, INT32_MIN, INT32_MIN},
        /* 8 */ {UT_MAX, INT32_MIN, INT32_MAX, 9, INT32_MAX, INT32_MAX},
        /* 9 */ {UT_AVG, 5, -5, 1 << 24, 0, 0},
    };
    enum { N = 37 };
    FOR_EACH_ISA(isa)
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        int32_t a[N], in[N], out[N];
        int64_t wide_a[N], wide_in[N], wide_out[N];
        for (int i = 0; i < N; i++) {
            a[i] = (int32_t)(wide_a[i] = rows[row].a);
            in[i] = (int32_t)(wide_in[i] = rows[row].in);
        }
        CHECK_EQ(ut_fold(UT_INT32, rows[row].redop, UT_OUT_IS_RESULT, out, a, in, N, rows[row].divisor), 0);
        CHECK_EQ(ut_fold(UT_INT64, rows[row].redop, UT_OUT_IS_RESULT, wide_out, wide_a, wide_in, N, rows[row].divisor),
                 0);
        for (int i = 0; i < N; i++)
            CHECK_MSG(out[i] == rows[row].i32 && wide_out[i] == rows[row].i64, "row %zu on %s: %d, %lld", row,
                      ISA_NAMES[isa], out[i], (long long)wide_out[i]);
    }
    FOR_EACH_ISA(isa)
    {
        const int64_t least = INT64_MIN, none = 0;
        int64_t out = 1;
        ut_fold(UT_INT64, UT_AVG, UT_OUT_IS_RESULT, &out, &least, &none, 1, 1);
        CHECK_EQ(out, INT64_MIN);
        ut_finish(UT_INT64, UT_AVG, 0, &out, &least, 1, 1000);
        CHECK_EQ(out, -9223372036854775);
    }
}

static void ut_kernels_init__never_more_than_asked(void)
{
    const enum ut_isa all = ut_kernels_init(UT_ISA_BEST);
    enum ut_isa before = UT_ISA_PLAIN;
    for (unsigned most = UT_ISA_PLAIN; most <= UT_ISA_BEST; most++) {
        const enum ut_isa isa = ut_kernels_init((enum ut_isa)most);
        CHECK(isa == before || isa == (enum ut_isa)most); /* what this CPU lacks changes nothing */
        CHECK_EQ(ut_kernels_isa(), isa);
        before = isa;
    }
    CHECK_EQ(before, all);
#if defined(__aarch64__)
    CHECK_EQ(all, UT_ISA_NEON);
#endif
    printf("best instruction set of this CPU: %s\n", ISA_NAMES[all]);
}

static void kernels__work_before_init(void)
{
    float x[3] = {1, 2, 3};
    CHECK_EQ(ut_kernels_isa(), UT_ISA_PLAIN);
    CHECK_EQ(ut_fold(UT_FLOAT32, UT_AVG, UT_OUT_IS_RESULT, x, x, x, 3, 4), 0);
    CHECK_DOUBLE(x[2], 1.5);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(kernels__work_before_init);
    RUN(ut_kernels_init__never_more_than_asked);
    RUN(ut_fold__is_the_model);
    RUN(ut_finish__is_the_model);
    RUN(ut_place__copies_and_counts);
    RUN(ut_place__counts_every_lane);
    RUN(nonfinite__many);
    RUN(ut_combine__is_the_model);
    RUN(ut_combine__same_source_twice);
    RUN(ut_combine__averages_before_it_rounds);
    RUN(kernels__stay_inside);
    RUN(integers__by_table);
    return check_end();
}
