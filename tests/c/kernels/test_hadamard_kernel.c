/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform against its definition and the examples of docs/papers.md, section 1.9, on every instruction
 * set of this CPU. A wrong butterfly shows against the definition; a wrong sign, scale or row in the vectors; an
 * instruction set that adds in another order as a bit; a store past a row's end in the bytes between rows.
 */
#define _DEFAULT_SOURCE
#include "check.h"

#include <math.h>

#include "isas.h"
#include "kernels/hadamard.h"
#include "kernels/kernels.h"

enum { ROOM = 1024 * 80 };
static float room_in[ROOM], room_out[ROOM], room_back[ROOM], room_first[ROOM];

static double sign_of(uint64_t key, uint32_t row, uint32_t column)
{
    return ut_hadamard_signs(key, row, column / 64) >> column % 64 & 1 ? -1 : 1;
}

static float random_float(void)
{
    return (float)(int64_t)check_random() * 0x1p-60f;
}

static void fill_random(float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = random_float();
}

/* A key whose signs of rows 0 .. 7 of column 0 are |minus|, bit per row. */
static uint64_t key_with(unsigned minus)
{
    for (uint64_t key = 0;; key++) {
        unsigned bits = 0;
        for (uint32_t r = 0; r < 8; r++)
            bits |= (unsigned)(ut_hadamard_signs(key, r, 0) & 1) << r;
        if (bits == minus)
            return key;
    }
}

static ut_hadamard_block column_of(uint32_t rows, uint64_t key)
{
    return (ut_hadamard_block){.rows = rows, .columns = 1, .stride = 4, .key = key, .scale = 1 / sqrtf((float)rows)};
}

/* ---- docs/papers.md, section 1.9: n = 8, x = 1 .. 8, s = (+,-,+,+,-,+,-,-) ---- */

enum { SPEC_MINUS = 0xd2 };
static const float SPEC_X[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static void hadamard__spec_vector(void)
{
    static const float want[8] = {-8, -8, 8, -8, 20, 12, -24, 16};
    FOR_EACH_ISA(isa)
    {
        ut_hadamard_block b = column_of(8, key_with(SPEC_MINUS));
        b.scale = 1;
        ut_hadamard_encode(room_out, SPEC_X, &b);
        CHECK_BYTES(room_out, want, sizeof want);
    }
}

static void hadamard__spec_vector_with_a_loss(void)
{
    static const double zero_fill[8] = {-1, 0, 5, 2, 3, 4, 9, 6};
    static const double rescaled[8] = {-1.142857, 0, 5.714286, 2.285714, 3.428571, 4.571429, 10.285714, 6.857143};
    const uint64_t present = 0x7f; /* all but row 7 */
    FOR_EACH_ISA(isa)
    {
        ut_hadamard_block b = column_of(8, key_with(SPEC_MINUS));
        double mse[2] = {0};
        ut_hadamard_encode(room_out, SPEC_X, &b);
        room_out[7] = NAN; /* must not be read */
        for (unsigned how = 0; how < 2; how++) {
            if (how)
                b.scale *= 8.0f / 7.0f;
            CHECK_EQ(ut_hadamard_decode(room_back, room_out, &b, &present), 0);
            for (unsigned i = 0; i < 8; i++) {
                const double want = how ? rescaled[i] : zero_fill[i];
                CHECK_MSG(fabs(room_back[i] - want) < 2e-6, "isa %u, how %u, element %u: %.9g, want %.9g", isa, how, i,
                          (double)room_back[i], want);
                mse[how] += (room_back[i] - SPEC_X[i]) * (room_back[i] - SPEC_X[i]) / 8;
            }
        }
        CHECK_MSG(fabs(mse[0] - 4.0) < 1e-5 && fabs(mse[1] - 4.438776) < 1e-5, "MSE %.7g, %.7g", mse[0], mse[1]);
    }
}

/* Rescaled by n / (n - k) and averaged over all 256 signs, a loss is no bias; filled with zero it is one. */
static void hadamard__unbiased_over_all_signs(void)
{
    for (unsigned lost = 1; lost < 255; lost = lost * 2 + (lost & 1)) {
        const uint64_t present = ~(uint64_t)lost;
        const unsigned kept = 8 - (unsigned)__builtin_popcount(lost & 0xff);
        double mean[8] = {0}, mean_zero[8] = {0};
        for (unsigned minus = 0; minus < 256; minus++) {
            ut_hadamard_block b = column_of(8, key_with(minus));
            ut_hadamard_encode(room_out, SPEC_X, &b);
            (void)ut_hadamard_decode(room_back, room_out, &b, &present);
            for (unsigned i = 0; i < 8; i++)
                mean_zero[i] += room_back[i] / 256;
            b.scale *= 8.0f / (float)kept;
            (void)ut_hadamard_decode(room_back, room_out, &b, &present);
            for (unsigned i = 0; i < 8; i++)
                mean[i] += room_back[i] / 256;
        }
        for (unsigned i = 0; i < 8; i++) {
            const double biased = SPEC_X[i] * kept / 8;
            CHECK_MSG(fabs(mean[i] - SPEC_X[i]) < 1e-5, "lost %#x, element %u: mean %.8g", lost, i, mean[i]);
            CHECK_MSG(fabs(mean_zero[i] - biased) < 1e-5, "lost %#x, element %u: %.8g", lost, i, mean_zero[i]);
        }
    }
}

/* ---- claim U11: a spike in the tail of 1024 elements, the tail lost ---- */

/* Without a transform the last |k| elements are zero: nearly all of the energy is gone. With it each loses a little. */
static void hadamard__tail_spike(void)
{
    static const struct {
        uint32_t lost;
        double with, without;
    } rows[] = {{10, 0.0093, 0.9766}, {51, 0.0486, 0.9766}, {102, 0.0973, 0.9766}};
    enum { N = 1024, SPIKE = 10, KEYS = 200 };
    for (unsigned r = 0; r < sizeof rows / sizeof *rows; r++) {
        double mse = 0, without = 0;
        uint64_t present[N / 64];
        memset(room_in, 0, N * sizeof(float));
        memset(present, 0xff, sizeof present);
        for (uint32_t i = N - SPIKE; i < N; i++)
            room_in[i] = 10;
        for (uint32_t i = N - rows[r].lost; i < N; i++) {
            present[i / 64] &= ~(1ULL << i % 64);
            without += room_in[i] * room_in[i] / N;
        }
        for (uint64_t key = 0; key < KEYS; key++) {
            const ut_hadamard_block b = column_of(N, key);
            ut_hadamard_encode(room_out, room_in, &b);
            (void)ut_hadamard_decode(room_back, room_out, &b, present);
            for (unsigned i = 0; i < N; i++)
                mse += (room_back[i] - room_in[i]) * (room_back[i] - room_in[i]) / N / KEYS;
        }
        CHECK_MSG(fabs(mse - rows[r].with) < 0.05 * rows[r].with, "%u lost: MSE %.4f with the transform, want %.4f",
                  rows[r].lost, mse, rows[r].with);
        CHECK_MSG(fabs(without - rows[r].without) < 0.0001, "%u lost: MSE %.4f without", rows[r].lost, without);
    }
}

/* ---- against the definition ---- */

static void check_against_definition(unsigned isa, const ut_hadamard_block *b, const float *in, const float *out)
{
    double worst = 0;
    for (uint32_t c = 0; c < b->columns; c++)
        for (uint32_t i = 0; i < b->rows; i++) {
            double sum = 0;
            for (uint32_t r = 0; r < b->rows; r++) {
                const double x = in[r * b->stride / 4 + c] * sign_of(b->key, r, c);
                sum += __builtin_popcount(i & r) & 1 ? -x : x;
            }
            worst = fmax(worst, fabs(out[i * b->stride / 4 + c] - sum * b->scale));
        }
    CHECK_MSG(worst < 2e-5 * sqrt(b->rows), "isa %u, %u rows of %u: off by %g", isa, b->rows, b->columns, worst);
}

/* Every size, widths around the tile and vector edges, a gap between rows that nobody may touch; the same bits from all
 * instruction sets; the inverse gives the input back. */
static void hadamard__all_shapes_on_all_isas(void)
{
    static const uint32_t widths[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 70};
    for (uint32_t rows = 1; rows <= UT_HADAMARD_ROWS_MAX; rows *= 2)
        for (unsigned w = 0; w < sizeof widths / sizeof *widths; w++) {
            if (rows > 128 && widths[w] % 16 > 1)
                continue;
            const size_t gap = check_below(4), pitch = widths[w] + gap, total = rows * pitch;
            const ut_hadamard_block b = {rows, widths[w], pitch * 4, check_random(), 1 / sqrtf((float)rows)};
            bool first = true;
            fill_random(room_in, total);
            FOR_EACH_ISA(isa)
            {
                for (size_t i = 0; i < total; i++)
                    room_out[i] = room_back[i] = 12345;
                ut_hadamard_encode(room_out, room_in, &b);
                if (rows <= 128)
                    check_against_definition(isa, &b, room_in, room_out);
                CHECK_EQ(ut_hadamard_decode(room_back, room_out, &b, NULL), 0);
                for (size_t i = 0; i < total; i++) {
                    if (i % UT_MAX2(pitch, 1) >= widths[w])
                        CHECK(room_out[i] == 12345 && room_back[i] == 12345);
                    else if (fabsf(room_back[i] - room_in[i]) > 1e-5f)
                        CHECK_MSG(false, "isa %u, %u rows of %u: element %zu: %g back from %g", isa, rows, widths[w], i,
                                  (double)room_back[i], (double)room_in[i]);
                }
                if (!first)
                    CHECK_BYTES(room_first, room_out, total * 4);
                memcpy(room_first, room_out, total * 4);
                first = false;
                memcpy(room_out, room_in, total * 4);
                ut_hadamard_encode(room_out, room_out, &b); /* in place */
                for (size_t r = 0; r < rows; r++)
                    CHECK_BYTES(room_out + r * pitch, room_first + r * pitch, widths[w] * 4);
            }
        }
}

/* Decoding with rows missing gives the same bits everywhere too. */
static void hadamard__decode_is_the_same_on_all_isas(void)
{
    for (unsigned round = 0; round < 30; round++) {
        const uint32_t columns = 1 + (uint32_t)check_below(80);
        const ut_hadamard_block b = {64, columns, columns * 4, check_random(), 0.125f};
        const uint64_t present = check_random() | check_random();
        bool first = true;
        fill_random(room_in, 64 * columns);
        FOR_EACH_ISA(isa)
        {
            (void)ut_hadamard_decode(room_out, room_in, &b, &present);
            if (!first)
                CHECK_BYTES(room_first, room_out, 64 * columns * 4);
            memcpy(room_first, room_out, 64 * columns * 4);
            first = false;
        }
    }
}

/* Sums of what hosts encoded decode to their sum: exactly, for whole numbers and scales that are powers of two. */
static void hadamard__linear_on_integers(void)
{
    enum { COLUMNS = 70, N = 64 * COLUMNS };
    const ut_hadamard_block b = {64, COLUMNS, COLUMNS * 4, 77, 0.125f};
    for (unsigned i = 0; i < N; i++) {
        room_in[i] = (float)(int64_t)check_below(8191) - 4095;
        room_first[i] = (float)(int64_t)check_below(8191) - 4095;
    }
    FOR_EACH_ISA(isa)
    {
        static float sum[N], other[N];
        for (unsigned i = 0; i < N; i++)
            sum[i] = room_in[i] + room_first[i];
        ut_hadamard_encode(room_out, room_in, &b);
        ut_hadamard_encode(other, room_first, &b);
        ut_hadamard_encode(room_back, sum, &b);
        for (unsigned i = 0; i < N; i++)
            room_out[i] += other[i];
        CHECK_BYTES(room_out, room_back, sizeof sum);
        CHECK_EQ(ut_hadamard_decode(room_back, room_out, &b, NULL), 0);
        for (unsigned i = 0; i < N; i++)
            CHECK_MSG(room_back[i] == sum[i], "element %u: %g, want %g", i, (double)room_back[i], (double)sum[i]);
    }
}

static void hadamard__keeps_the_energy(void)
{
    enum { COLUMNS = 360 };
    static float in[64 * COLUMNS], out[64 * COLUMNS];
    const ut_hadamard_block b = {64, COLUMNS, COLUMNS * 4, 5, 0.125f};
    double before = 0, after = 0;
    fill_random(in, 64 * COLUMNS);
    ut_hadamard_encode(out, in, &b);
    for (unsigned i = 0; i < 64 * COLUMNS; i++) {
        before += (double)in[i] * in[i];
        after += (double)out[i] * out[i];
    }
    CHECK_MSG(fabs(after / before - 1) < 1e-6, "|y|^2 / |x|^2 = %.9g", after / before);
}

/* One Inf makes its whole column useless, and each element of it is counted, once. */
static void hadamard__counts_nonfinite(void)
{
    enum { COLUMNS = 41 };
    const ut_hadamard_block b = {16, COLUMNS, COLUMNS * 4, 9, 0.25f};
    FOR_EACH_ISA(isa)
    {
        fill_random(room_in, 16 * COLUMNS);
        room_in[3 * COLUMNS + 40] = INFINITY;
        room_in[5 * COLUMNS + 40] = NAN;
        room_in[7 * COLUMNS + 2] = -INFINITY;
        ut_hadamard_encode(room_out, room_in, &b);
        const size_t bad = ut_hadamard_decode(room_back, room_out, &b, NULL);
        size_t there = 0;
        for (unsigned i = 0; i < 16 * COLUMNS; i++)
            there += !isfinite(room_back[i]);
        CHECK_EQ(bad, there);
        CHECK_EQ(bad, 32);
    }
}

/* Half of the signs are minus; neighbours, rows and keys do not follow each other. */
static void hadamard_signs__look_random(void)
{
    uint64_t minus = 0, same_key = 0, same_row = 0, same_word = 0;
    enum { WORDS = 4096 };
    for (uint32_t i = 0; i < WORDS; i++) {
        const uint64_t bits = ut_hadamard_signs(3, i / 8, i % 8);
        minus += (uint64_t)__builtin_popcountll(bits);
        same_key += (uint64_t)__builtin_popcountll(~(bits ^ ut_hadamard_signs(4, i / 8, i % 8)));
        same_row += (uint64_t)__builtin_popcountll(~(bits ^ ut_hadamard_signs(3, i / 8 + 1, i % 8)));
        same_word += (uint64_t)__builtin_popcountll(~(bits ^ ut_hadamard_signs(3, i / 8, i % 8 + 1)));
    }
    const uint64_t half = WORDS * 32, spread = 5 * 256; /* five standard deviations of 2^18 fair coins */
    const uint64_t counts[] = {minus, same_key, same_row, same_word};
    for (unsigned i = 0; i < 4; i++)
        CHECK_MSG(counts[i] > half - spread && counts[i] < half + spread, "count %u: %" PRIu64 " of %" PRIu64, i,
                  counts[i], 2 * half);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(hadamard__spec_vector);
    RUN(hadamard__spec_vector_with_a_loss);
    RUN(hadamard__unbiased_over_all_signs);
    RUN(hadamard__tail_spike);
    RUN(hadamard__all_shapes_on_all_isas);
    RUN(hadamard__decode_is_the_same_on_all_isas);
    RUN(hadamard__linear_on_integers);
    RUN(hadamard__keeps_the_energy);
    RUN(hadamard__counts_nonfinite);
    RUN(hadamard_signs__look_random);
    return check_end();
}
