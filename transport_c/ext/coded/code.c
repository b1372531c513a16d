/* SPDX-License-Identifier: Apache-2.0 */
#include "ext/coded/code.h"

#include "core/base/bits.h"
#include "core/base/mix.h"

enum { MOST = UT_HOSTS_MAX };
#define HALF_TURN 3.14159265358979323846
static const double EXACT = 1e-9; /* of a B - 1: a larger rest means that the code does not hold */

typedef double row[MOST + 1];

static double size(double x)
{
    return x < 0 ? -x : x;
}

/* Solves m x = right for |columns| unknowns, where the right side is in column |columns|, from |rows| >= |columns|
 * equations that agree. False if they do not tell all unknowns. */
static bool solve(row *m, uint32_t rows, uint32_t columns, double *ret)
{
    for (uint32_t c = 0; c < columns; c++) {
        uint32_t best = c;
        for (uint32_t r = c + 1; r < rows; r++)
            best = size(m[r][c]) > size(m[best][c]) ? r : best;
        if (!(size(m[best][c]) > 1e-12))
            return false;
        for (uint32_t k = c; best != c && k <= columns; k++) {
            double other = m[c][k];
            m[c][k] = m[best][k];
            m[best][k] = other;
        }
        for (uint32_t r = c + 1; r < rows; r++) {
            double factor = m[r][c] / m[c][c];
            for (uint32_t k = c; factor != 0 && k <= columns; k++)
                m[r][k] -= factor * m[c][k];
        }
    }
    for (uint32_t c = columns; c-- > 0;) {
        ret[c] = m[c][columns];
        for (uint32_t k = c + 1; k < columns; k++)
            ret[c] -= m[c][k] * ret[k];
        ret[c] /= m[c][c];
    }
    return true;
}

/* The cosine of |x| from 0 to a quarter of a turn, by its series. */
static double cosine(double x)
{
    double sum = 1, term = 1;
    for (unsigned k = 2; k <= 30; k += 2) {
        term *= -x * x / (k * (k - 1));
        sum += term;
    }
    return sum;
}

/* The cosine of |m| / |n| half turns. */
static double wave(uint64_t m, uint32_t n)
{
    m %= 2 * (uint64_t)n;
    m = m > n ? 2 * (uint64_t)n - m : m;
    return 2 * m > n ? -cosine(HALF_TURN * (double)(n - m) / n) : cosine(HALF_TURN * (double)m / n);
}

/* H: |late| consecutive frequencies of a Fourier matrix. Where the constant vector can be orthogonal to them, they lie
 * around the highest one (|around|), else at the other end. */
static void frequencies(uint32_t n, uint32_t late, bool around, row *ret)
{
    uint32_t single = late % 2;
    for (uint32_t i = 0; i < n; i++) {
        if (single)
            ret[0][i] = around && i % 2 ? -1 : 1;
        for (uint32_t pair = 0; pair < late / 2; pair++) {
            uint32_t away = 1 + single + 2 * pair, twice = around ? n - away : away; /* twice the frequency */
            ret[single + 2 * pair][i] = wave((uint64_t)twice * i, n);
            ret[single + 2 * pair + 1][i] = wave(2 * (uint64_t)twice * i + 3 * (uint64_t)n, 2 * n); /* the sine */
        }
    }
}

/* A vector without zeros that is orthogonal to |h|, as near to alternating signs as such a vector can be: what they are
 * less their part in the space of |h|. */
static void flat(row *h, uint32_t n, uint32_t late, double *ret)
{
    row m[MOST];
    double part[MOST];
    for (uint32_t i = 0; i < n; i++) {
        uint64_t turn = (2 * (uint64_t)(n - 1) * i + !(late % 2)) % (4 * (uint64_t)n);
        ret[i] = turn < n || turn > 3 * (uint64_t)n ? 1 : -1;
    }
    for (uint32_t r = 0; r < late; r++) {
        memset(m[r], 0, sizeof m[r]);
        for (uint32_t i = 0; i < n; i++) {
            m[r][late] += h[r][i] * ret[i];
            for (uint32_t c = 0; c < late; c++)
                m[r][c] += h[r][i] * h[c][i];
        }
    }
    (void)solve(m, late, late, part);
    for (uint32_t r = 0; r < late; r++)
        for (uint32_t i = 0; i < n; i++)
            ret[i] -= part[r] * h[r][i];
}

/* Rows of ones on the diagonal and |late| entries after it, orthogonal to those of |h| (docs/papers.md, section 4.1).
 * */
static void orthogonal(row *h, uint32_t n, uint32_t late, double *ret)
{
    row m[MOST];
    double rest[MOST];
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t r = 0; r < late; r++) {
            for (uint32_t c = 0; c < late; c++)
                m[r][c] = h[r][(i + 1 + c) % n];
            m[r][late] = h[r][i];
        }
        (void)solve(m, late, late, rest);
        ret[i * n + i] = 1;
        for (uint32_t c = 0; c < late; c++)
            ret[i * n + (i + 1 + c) % n] = -rest[c];
    }
}

void ut_code_encoding(uint32_t n, uint32_t late, double *ret)
{
    static const double paper_3_1[] = {0.5, 1, 0, 0, 1, -1, 0.5, 0, 1};
    row h[MOST];
    double v[MOST];
    memset(ret, 0, (size_t)n * n * sizeof *ret);
    if (n == 3 && late == 1) {
        memcpy(ret, paper_3_1, sizeof paper_3_1);
        return;
    }
    bool around = (n + late) % 2;
    frequencies(n, late, around, h);
    orthogonal(h, n, late, ret);
    if (around || late == 0)
        return;
    flat(h, n, late, v);
    for (uint32_t i = 0; i < n * n; i++)
        ret[i] /= v[i % n];
}

/* Sets the coefficients of the children in |came|. Returns the amplification; infinite if these do not decode. */
static double decode(uint32_t n, const double *b, uint64_t came, double *ret)
{
    row m[MOST];
    double a[MOST], worst = 0;
    uint32_t child[MOST], count = 0;
    for (uint32_t i = 0; i < n; i++)
        if (came >> i & 1)
            child[count++] = i;
    for (uint32_t part = 0; part < n; part++) {
        for (uint32_t k = 0; k < count; k++)
            m[part][k] = b[child[k] * n + part];
        m[part][count] = 1;
    }
    if (!solve(m, n, count, a))
        return __builtin_inf();
    memset(ret, 0, n * sizeof *ret);
    for (uint32_t k = 0; k < count; k++)
        ret[child[k]] = a[k];
    for (uint32_t part = 0; part < n; part++) {
        double sum = 0, grown = 0;
        for (uint32_t k = 0; k < count; k++) {
            sum += a[k] * b[child[k] * n + part];
            grown += size(a[k] * b[child[k] * n + part]);
        }
        if (!(size(sum - 1) < EXACT))
            return __builtin_inf();
        worst = grown > worst ? grown : worst;
    }
    return worst;
}

bool ut_code_bears(uint32_t n, uint32_t late)
{
    double b[MOST * MOST], a[MOST];
    uint64_t all = n == 64 ? UINT64_MAX : ut_bits_below(n), run = late ? ut_bits_below(late) : 0;
    ut_code_encoding(n, late, b);
    for (uint32_t first = 0; first < n; first++) {
        uint64_t gone = first ? (run << first | run >> (n - first)) & all : run;
        if (!(decode(n, b, all & ~gone, a) <= UT_CODE_AMPLIFICATION_MAX))
            return false;
    }
    return true;
}

void ut_code_init(ut_linear *c, uint32_t children, uint32_t late, double *encoding, uint64_t *came, double *coefficient)
{
    *c = (ut_linear){children, late, encoding, came, coefficient};
    ut_code_encoding(children, late, encoding);
    memset(came, 0, UT_CODE_CACHED * sizeof *came);
}

const double *ut_code_decoding(ut_linear *c, uint64_t came)
{
    uint64_t at = ut_mix(came) % UT_CODE_CACHED;
    double *a = c->coefficient + at * c->children;
    if (c->came[at] != came) {
        c->came[at] = came;
        if (!(decode(c->children, c->encoding, came, a) <= UT_CODE_AMPLIFICATION_MAX))
            a[0] = __builtin_nan("");
    }
    return a[0] == a[0] ? a : NULL;
}
