/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots: every instruction set against a twin that is written differently here (in double, scales by
 * powers of two), slots by hand, and what a sum over hosts relies on. A scale of the neighbour, a draw that is used
 * twice, a residual that is lost or a subnormal that is kept shows as another bit.
 */
#include "check.h"

#include <float.h>
#include <math.h>

#include "isas.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/quant.h"

enum { N = 3000, ROOM = 2 * N + 200, FENCE = 64, KINDS = 9 };
static float x[N + 1], before[N + 1], after[N + 1], want_after[N + 1], told_out[N + 1], want_out[N + 1];
static uint8_t slot_room[FENCE + ROOM + FENCE], want_slot[ROOM];
static uint8_t *const slot = slot_room + FENCE;
static const char *const FORM_NAMES[] = {"", "", "", "", "int16", "int8", "int4"};
#define FOR_EACH_FORM(form) for (unsigned form = UT_QUANT_INT16; form <= UT_QUANT_INT4; form++)

/* ---- the twin ---- */

static double levels_of(unsigned form)
{
    return form == UT_QUANT_INT16 ? 32767 : form == UT_QUANT_INT8 ? 127 : 7;
}

/* (16 + k % 16) / 16 * 2^(k / 16 - 127), the scale with the bits k << 19. */
static double scale_of(unsigned k)
{
    return ldexp(16 + k % 16, (int)(k / 16) - 127 - 4);
}

static double draw_of(uint64_t key, unsigned i)
{
    uint32_t z = (uint32_t)(key & 0xffffffff), row = i / 32, column = i % 32;
    z += (uint32_t)(0x9e3779b9ull * (row * 16 + column % 16 + 1));
    z = (uint32_t)((z ^ z / 65536) * 0x7feb352dull);
    z ^= (uint32_t)(key >> 32);
    z = (uint32_t)((z ^ z / 32768) * 0x846ca68bull);
    z ^= z / 65536;
    return ((column < 16 ? z % 65536 : z / 65536) - 32767.5) / 65536;
}

static uint32_t twin(unsigned form, uint8_t *out, float *decoded, float *residual, unsigned n,
                     const ut_quant_rounding *r, ut_quant_told *told)
{
    const unsigned size = form == UT_QUANT_INT4 ? 32 : 64, blocks = (n + size - 1) / size;
    const double levels = levels_of(form);
    unsigned k[N / 32 + 1], largest = 0, exponent = 0;
    memset(told, 0, sizeof *told);
    for (unsigned b = 0; b < blocks; b++) {
        float most = 0;
        for (unsigned i = b * size; i < UT_MIN2(n, (b + 1) * size); i++) {
            volatile float y = x[i] / r->divisor;
            if (residual)
                y = y + residual[i];
            most = isfinite(y) && fabsf(y) > most ? fabsf(y) : most;
        }
        for (k[b] = 16;
             scale_of(k[b]) < (double)(most / (float)levels) && scale_of(k[b] + 1) * levels <= (double)FLT_MAX;)
            k[b]++;
        k[b] = (double)most < 0x1p-100 ? 0 : k[b];
        largest = UT_MAX2(largest, k[b]);
    }
    while (largest > 255 + 16 * exponent)
        exponent++;
    const uint32_t bytes = 2 + blocks + (form == UT_QUANT_INT16 ? 2 * n : form == UT_QUANT_INT8 ? n : (n + 1) / 2);
    memset(out, 0, bytes);
    for (unsigned i = 0; i < n; i++) {
        const unsigned b = i / size, u = k[b] == 0 ? 0 : k[b] <= 16 * exponent ? 1 : k[b] - 16 * exponent;
        const double scale = u ? scale_of(u + 16 * exponent) : 0;
        const float inverse = u ? (float)(1 / scale) : 0;
        volatile float y = x[i] / r->divisor;
        if (residual)
            y = y + residual[i];
        int q;
        if (isfinite(y)) {
            volatile float t = y * inverse;
            if (!r->nearest)
                t = t + (float)draw_of(r->key, i);
            q = (int)fmax(-levels, fmin(levels, rint((double)t)));
            decoded[i] = (float)(q * scale);
            if (residual)
                residual[i] = u ? (float)((double)y - q * scale) : 0;
        } else {
            told->nonfinite++;
            q = -(int)levels - 1;
            decoded[i] = NAN;
        }
        out[2 + b] = (uint8_t)u;
        uint8_t *const codes = out + 2 + blocks;
        if (form == UT_QUANT_INT16)
            memcpy(codes + 2 * i, &(int16_t){(int16_t)q}, 2);
        else if (form == UT_QUANT_INT8)
            memcpy(codes + i, &(int8_t){(int8_t)q}, 1);
        else
            codes[i / 2] = (uint8_t)(codes[i / 2] + (i % 2 ? 16 : 1) * (q < 0 ? q + 16 : q));
        if (i % size == 0)
            told->error += UT_MIN2(size, n - i) * scale * scale;
    }
    out[0] = (uint8_t)(form + (told->nonfinite ? 128 : 0));
    out[1] = (uint8_t)exponent;
    return bytes;
}

/* ---- values ---- */

static float any(unsigned kind)
{
    const float unit = (float)(int64_t)check_random() * 0x1p-63f;
    switch (kind) {
    case 1: /* all magnitudes */
        return ldexpf(unit, (int)check_below(270) - 145);
    case 2: /* subnormal, and around the least that is kept */
        return ldexpf(unit, (int)check_below(12) - (check_below(2) ? 106 : 152));
    case 3: /* the largest */
        return check_below(3) ? unit * FLT_MAX : FLT_MAX;
    case 4: /* some are not finite */
        return check_below(40) ? unit : check_below(2) ? NAN : check_below(2) ? INFINITY : -INFINITY;
    case 5:
        return check_below(8) ? 0 : check_below(2) ? -0.0f : unit;
    case 6: /* halves of a code: ties, if the largest of a block is L */
        return (float)((int)check_below(255) - 127) * 0.5f;
    case 7: /* blocks far apart */
        return ldexpf(unit, -(int)check_below(2) * 30);
    case 8:
        return check_below(20) ? 0x1p-140f : 1;
    default:
        return unit;
    }
}

static void fill(unsigned n, unsigned kind)
{
    for (unsigned i = 0; i < n; i++) {
        x[i] = any(kind);
        before[i] = any(check_below(3) ? 0 : kind) * (kind == 3 ? 1 : ldexpf(1, -6));
    }
}

static bool same(float a, float b)
{
    return ut_float_bits(a) == ut_float_bits(b) || (isnan(a) && isnan(b));
}

static bool same_all(const float *a, const float *b, unsigned n, unsigned *at)
{
    for (*at = 0; *at < n; ++*at)
        if (!same(a[*at], b[*at]))
            return false;
    return true;
}

/* ---- tests ---- */

static void ut_quant_elements__the_most_in_eights(void)
{
    static const struct {
        unsigned form;
        uint32_t payload, elements, bytes;
    } rows[] = {
        {UT_QUANT_INT16, 1440, 712, 1438}, {UT_QUANT_INT16, 1424, 704, 1421}, {UT_QUANT_INT8, 1440, 1408, 1432},
        {UT_QUANT_INT8, 1424, 1400, 1424}, {UT_QUANT_INT4, 1440, 2704, 1439}, {UT_QUANT_INT4, 1424, 2672, 1422},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_EQ(ut_quant_elements(rows[i].form, rows[i].payload), rows[i].elements);
        CHECK_EQ(ut_quant_bytes(rows[i].form, rows[i].elements), rows[i].bytes);
    }
    FOR_EACH_FORM(form)
    for (uint32_t payload = 0; payload <= UT_PACKET_MAX; payload++) {
        const uint32_t n = ut_quant_elements(form, payload);
        CHECK_MSG(n % 8 == 0 && (n == 0 || ut_quant_bytes(form, n) <= payload) && ut_quant_bytes(form, n + 8) > payload,
                  "%s in %u bytes: %u elements", FORM_NAMES[form], payload, n);
    }
}

/* Computed by a few lines of Python from the definition. */
static void ut_quant_key__known_answers(void)
{
    CHECK_HEX(ut_quant_key(0, 0, 0, 0, 0), UINT64_C(0x76de93a60dc63ab3));
    CHECK_HEX(ut_quant_key(123456789, 1, 63, 255, 4000000000u), UINT64_C(0xca1d10a766fa94db));
}

/* Of one slot each, worked out on paper: the scale of int8 is 17/16 * 2^-7, for 1/127 lies below that. */
static void ut_quant_encode__by_hand(void)
{
    static const struct {
        unsigned form;
        uint32_t bytes;
        uint8_t slot[11];
    } rows[] = {
        {UT_QUANT_INT16, 11, {4, 0x61, 0xf1, 0x78, 0x78, 0xc4, 0xc3, 0x1e, 0x1e, 0, 0}},
        {UT_QUANT_INT8, 7, {5, 0x69, 0xf1, 0x78, 0xc4, 0x1e, 0}},
        {UT_QUANT_INT4, 5, {6, 0x6d, 0xf3, 0xd7, 0x02}},
    };
    static const float values[] = {1, -0.5f, 0.25f, -0.0f};
    const ut_quant_rounding nearest = {0, true, 1};
    FOR_EACH_ISA(isa)
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        CHECK_EQ(ut_quant_encode(rows[row].form, slot, values, NULL, 4, &nearest, NULL), rows[row].bytes);
        CHECK_BYTES(slot, rows[row].slot, rows[row].bytes);
    }
}

static void one_case(unsigned isa, unsigned form, unsigned n, unsigned kind, unsigned how)
{
    const bool feedback = how & 2;
    const ut_quant_rounding r = {check_random(), how & 1, kind % 3 ? 1 : (float)(1 + check_below(64))};
    ut_quant_told told, want;
    unsigned at;
    memcpy(want_after, before, n * sizeof *before);
    memcpy(after, before, n * sizeof *before);
    memset(slot_room, 0xa5, sizeof slot_room);
    const uint32_t bytes = twin(form, want_slot, want_out, feedback ? want_after : NULL, n, &r, &want);
    const uint32_t got = ut_quant_encode(form, slot, x, feedback ? after : NULL, n, &r, &told);
    uint32_t wrong = 0;
    while (wrong < bytes && slot[wrong] == want_slot[wrong])
        wrong++;
    CHECK_MSG(got == bytes && wrong == bytes, "%s, %s, n %u, kind %u, how %u: %u bytes, want %u; byte %u",
              ISA_NAMES[isa], FORM_NAMES[form], n, kind, how, got, bytes, wrong);
    for (unsigned i = 0; i < FENCE; i++)
        CHECK(slot_room[i] == 0xa5 && slot[bytes + i] == 0xa5);
    CHECK_EQ(told.nonfinite, want.nonfinite);
    CHECK(fabs(told.error - want.error) <= 1e-12 * want.error);
    CHECK_DOUBLE(ut_quant_error(form, slot, n), told.error);
    CHECK_MSG(same_all(after, want_after, n, &at), "%s, %s, n %u, kind %u, how %u: residual %u: %a, want %a",
              ISA_NAMES[isa], FORM_NAMES[form], n, kind, how, at, (double)after[at], (double)want_after[at]);
    CHECK(ut_quant_takes(form, slot, bytes, n));
    told_out[n] = x[n] = 12345;
    ut_quant_decode(form, told_out, slot, n);
    CHECK_MSG(same_all(told_out, want_out, n, &at), "%s, %s, n %u, kind %u: decoded %u: %a, want %a", ISA_NAMES[isa],
              FORM_NAMES[form], n, kind, at, (double)told_out[at], (double)want_out[at]);
    for (unsigned i = 0; i < n; i++) {
        volatile const float sum = x[i] + want_out[i];
        want_out[i] = sum;
        told_out[i] = x[i];
    }
    ut_quant_add(form, told_out, slot, n);
    CHECK_MSG(same_all(told_out, want_out, n, &at), "%s, %s, n %u, kind %u: added %u: %a, want %a", ISA_NAMES[isa],
              FORM_NAMES[form], n, kind, at, (double)told_out[at], (double)want_out[at]);
    CHECK(same(told_out[n], 12345));
}

/* Every length to 130 and then some, of every kind of values. */
static void ut_quant__what_the_twin_makes(void)
{
    FOR_EACH_FORM(form)
    for (unsigned n = 0; n <= N; n += n < 130 ? 1 : 1 + (unsigned)check_below(300))
        for (unsigned round = 0; round < 3; round++) {
            const unsigned kind = (n + 3 * round) % KINDS, how = (unsigned)check_below(4);
            fill(n, kind);
            FOR_EACH_ISA(isa)
            one_case(isa, form, n, kind, how);
        }
}

/* y - decoded is exact where its size is at most half a scale, which rounding to nearest gives. */
static void ut_quant__nothing_is_lost_to_nearest(void)
{
    const ut_quant_rounding nearest = {0, true, 1};
    FOR_EACH_ISA(isa)
    FOR_EACH_FORM(form)
    for (unsigned round = 0; round < 4; round++) {
        const unsigned n = 1 + (unsigned)check_below(N);
        fill(n, 0);
        memcpy(after, before, n * sizeof *before);
        (void)ut_quant_encode(form, slot, x, after, n, &nearest, NULL);
        ut_quant_decode(form, told_out, slot, n);
        for (unsigned i = 0; i < n; i++) {
            volatile const float y = x[i] + before[i];
            CHECK_MSG((double)y == (double)told_out[i] + (double)after[i], "%s, %s: element %u of %u", ISA_NAMES[isa],
                      FORM_NAMES[form], i, n);
        }
    }
}

/* Without the limit, a residual of a dead block halves until 1 / scale is infinite, and 0 times that is NaN. */
static void ut_quant__dead_blocks_end_at_zero(void)
{
    const ut_quant_rounding nearest = {0, true, 1};
    FOR_EACH_ISA(isa)
    FOR_EACH_FORM(form)
    {
        for (unsigned i = 0; i < 100; i++) {
            x[i] = i == 70 ? NAN : 0;
            after[i] = i == 70 ? 0.5f : ldexpf(1.9f, i < 32 ? -101 : -127);
        }
        CHECK_EQ(ut_quant_encode(form, slot, x, after, 100, &nearest, NULL), ut_quant_bytes(form, 100));
        for (unsigned i = 0; i < 100; i++)
            CHECK_HEX(ut_float_bits(after[i]), i == 70 ? ut_float_bits(0.5f) : 0);
        ut_quant_decode(form, told_out, slot, 100);
        for (unsigned i = 0; i < 100; i++)
            CHECK(i == 70 ? isnan(told_out[i]) : ut_float_bits(told_out[i]) == 0);
        after[0] = 0x1p-100f; /* the least that is kept; one code of it holds all of int4's block */
        x[70] = after[70] = 0;
        (void)ut_quant_encode(form, slot, x, after, 100, &nearest, NULL);
        ut_quant_decode(form, told_out, slot, 100);
        CHECK(told_out[0] > 0x1.fp-101f && told_out[0] < 0x1.1p-100f);
    }
}

/* What was decoded is coded as the same again, whatever is drawn: of int8 and int4, whose codes leave room for it. */
static void ut_quant__the_grid_stays(void)
{
    FOR_EACH_ISA(isa)
    for (unsigned form = UT_QUANT_INT8; form <= UT_QUANT_INT4; form++) {
        const ut_quant_rounding first = {check_random(), false, 1}, second = {check_random(), false, 1};
        fill(N, 0);
        for (unsigned i = 0; i < N; i++) /* every block's largest, and so its scale, is that of a power of two */
            x[i] = i % 32 ? x[i] / 2 : form == UT_QUANT_INT8 ? 0x7fp-7f : 0x7p-3f;
        (void)ut_quant_encode(form, slot, x, NULL, N, &first, NULL);
        ut_quant_decode(form, told_out, slot, N);
        (void)ut_quant_encode(form, slot, told_out, NULL, N, &second, NULL);
        ut_quant_decode(form, want_out, slot, N);
        CHECK_BYTES(told_out, want_out, N * sizeof *told_out);
    }
}

/* The mean of 64 draws of independent errors has 1/64 of the square error of one; a bias would stay. */
static void ut_quant__at_random_is_unbiased(void)
{
    enum { DRAWS = 64 };
    static double mean[N];
    FOR_EACH_FORM(form)
    {
        double one = 0, all = 0;
        fill(N, 0);
        memset(mean, 0, sizeof mean);
        for (unsigned draw = 0; draw < DRAWS; draw++) {
            const ut_quant_rounding r = {ut_quant_key(draw, 0, 3, 1, 7), false, 1};
            (void)ut_quant_encode(form, slot, x, NULL, N, &r, NULL);
            ut_quant_decode(form, told_out, slot, N);
            for (unsigned i = 0; i < N; i++) {
                const double off = (double)told_out[i] - (double)x[i];
                mean[i] += off / DRAWS;
                one += off * off / DRAWS;
            }
        }
        for (unsigned i = 0; i < N; i++)
            all += mean[i] * mean[i];
        CHECK_MSG(all * 50 < one && all * 80 > one, "%s: 1/%.1f of one draw's", FORM_NAMES[form], one / all);
    }
}

/* Sums of hosts whose scales are near each other are exact, so each order gives the same bits. */
static void ut_quant_add__the_order_changes_nothing(void)
{
    enum { HOSTS = 64, M = 512 };
    static uint8_t slots[HOSTS][2 * M + 64];
    FOR_EACH_FORM(form)
    {
        for (unsigned host = 0; host < HOSTS; host++) {
            const ut_quant_rounding r = {ut_quant_key(5, 0, host, 0, 0), false, 1};
            fill(M, 0);
            (void)ut_quant_encode(form, slots[host], x, NULL, M, &r, NULL);
        }
        for (unsigned order = 0; order < 4; order++) {
            memset(told_out, 0, sizeof told_out);
            for (unsigned i = 0; i < HOSTS; i++) /* odd steps run through all of 64 */
                ut_quant_add(form, told_out, slots[(i * (2 * order + 1) + 9 * order) % HOSTS], M);
            if (order == 0)
                memcpy(want_out, told_out, sizeof told_out);
            /* Sixteen bits of code, five of scale and six of hosts are more than a float has: of int16 the sums are
             * near. */
            unsigned differ = 0;
            for (unsigned i = 0; i < M; i++)
                differ += !same(told_out[i], want_out[i]);
            CHECK_MSG(form == UT_QUANT_INT16 || differ == 0, "%s, order %u: %u sums differ", FORM_NAMES[form], order,
                      differ);
        }
    }
}

static void ut_quant_takes__refuses_what_no_encoder_writes(void)
{
    const ut_quant_rounding nearest = {0, true, 1};
    FOR_EACH_FORM(form)
    {
        fill(100, 0);
        const uint32_t bytes = ut_quant_encode(form, slot, x, NULL, 100, &nearest, NULL);
        memset(slot + bytes, 0, 8);
        CHECK(ut_quant_takes(form, slot, bytes, 100) && ut_quant_takes(form, slot, bytes + 8, 100));
        CHECK(!ut_quant_takes(form, slot, bytes - 1, 100) && !ut_quant_takes(form, slot, 0, 0));
        FOR_EACH_FORM(other)
        CHECK_EQ(ut_quant_takes(other, slot, bytes + 8, 100), other == form);
        CHECK(!ut_quant_takes(0, slot, bytes, 100) && !ut_quant_takes(7, slot, bytes, 100));
        CHECK(!ut_quant_takes(form, slot, UINT32_MAX, UT_QUANT_ELEMENTS_MAX + 1));
        for (unsigned bit = 4; bit < 8; bit++) {
            slot[0] ^= (uint8_t)(1u << bit);
            CHECK_EQ(ut_quant_takes(form, slot, bytes, 100), bit == 7);
            slot[0] ^= (uint8_t)(1u << bit);
        }
        slot[bytes + 7] = 1;
        CHECK(!ut_quant_takes(form, slot, bytes + 8, 100));
        slot[1] = UT_QUANT_EXPONENT_MAX;
        CHECK(ut_quant_takes(form, slot, bytes, 100));
        slot[1]++;
        CHECK(!ut_quant_takes(form, slot, bytes, 100));
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_quant_elements__the_most_in_eights);
    RUN(ut_quant_key__known_answers);
    RUN(ut_quant_encode__by_hand);
    RUN(ut_quant__what_the_twin_makes);
    RUN(ut_quant__nothing_is_lost_to_nearest);
    RUN(ut_quant__dead_blocks_end_at_zero);
    RUN(ut_quant__the_grid_stays);
    RUN(ut_quant__at_random_is_unbiased);
    RUN(ut_quant_add__the_order_changes_nothing);
    RUN(ut_quant_takes__refuses_what_no_encoder_writes);
    return check_end();
}
