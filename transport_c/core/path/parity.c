/* SPDX-License-Identifier: Apache-2.0
 *
 * The code is that of Cauchy's matrix, each column divided by its first element: of every choice of rows and as many
 * columns the determinant is not 0, so that any k parity packets bring back any k members, and parity 0 is XOR.
 */
#include "core/path/parity.h"

#include "kernels/parity.h"

uint32_t ut_parity_room(uint32_t payload, uint32_t peers)
{
    const uint32_t bytes = UT_MIN2((uint32_t)UT_PARITY_KEPT, (uint32_t)UT_PARITY_KEPT_ALL / UT_MAX2(peers, 1));
    return UT_MIN2(bytes / payload, (uint32_t)(UT_PARITY_GROUP * 4 / 3));
}

uint32_t ut_parity_most(uint32_t payload)
{
    return UT_MIN2((uint32_t)UT_PARITY_MOST, (uint32_t)UT_PARITY_SUMS / payload);
}

uint8_t ut_parity_factor(uint32_t index, uint32_t member)
{
    assert(index < UT_PARITY_MOST && member < 256 - UT_PARITY_MOST);
    const uint8_t row = (uint8_t)(255 - index), column = (uint8_t)member;
    return ut_gf_mul(ut_gf_inverse(row ^ column), 255 ^ column);
}

/* The chance that more than |k| of |n| packets are lost. */
static double more_than(uint32_t k, uint32_t n, double loss)
{
    double term = 1, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        term *= 1 - loss;
    for (uint32_t i = 0; i <= k && i <= n; i++) {
        sum += term;
        term *= (double)(n - i) / (double)(i + 1) * loss / (1 - loss);
    }
    return sum < 1 ? 1 - sum : 0;
}

uint32_t ut_parity_worth(uint32_t members, uint32_t window, uint32_t ppm, uint32_t most)
{
    const double loss = ppm / 1e6;
    uint32_t k = 0;
    most = UT_MIN2(most, (members + UT_PARITY_PART - 1) / UT_PARITY_PART);
    if (ppm == 0 || ppm >= 500000 || window == 0)
        return 0;
    /* The first of several may save nothing that the others do not have to finish: the best number is sought. */
    double best = more_than(0, members, loss);
    for (uint32_t n = 1; n <= most; n++) {
        const double all = (double)n / window + more_than(n, members + n, loss);
        if (all < best) {
            best = all;
            k = n;
        }
    }
    return k;
}

void ut_parity_init(ut_parity *p, uint32_t payload, uint32_t room, ut_parity_kept *what, uint8_t *bytes, uint8_t *sums)
{
    memset(p, 0, sizeof *p);
    p->payload = payload;
    p->room = room;
    p->what = what;
    p->bytes = bytes;
    p->most = ut_parity_most(payload);
    for (unsigned k = 0; k < UT_PARITY_GROUPS; k++)
        p->sums[k].sum = sums + (size_t)k * p->most * payload;
}

void ut_parity_reset_sending(ut_parity *p)
{
    for (unsigned k = 0; k < UT_PARITY_GROUPS; k++)
        p->sums[k].parities = 0;
    p->window = 0;
    memset(p->lost, 0, sizeof p->lost);
    memset(p->sent, 0, sizeof p->sent);
}

void ut_parity_reset_receiving(ut_parity *p)
{
    p->keeps = false;
    p->kept = p->kept_next = 0;
}

uint32_t ut_parity_losses(ut_parity *p, uint64_t lost, uint64_t sent)
{
    if (sent - p->sent[1] > UT_PARITY_SPAN) {
        p->lost[0] = p->lost[1], p->sent[0] = p->sent[1];
        p->lost[1] = lost, p->sent[1] = sent;
    }
    /* Losses that were taken back may be of a span before. */
    const uint64_t n = sent - p->sent[0], of = lost - UT_MIN2(lost, p->lost[0]);
    return n < UT_PARITY_LEAST ? 0 : (uint32_t)(UT_MIN2(of, n) * 1000000 / n);
}

/* ---- sending ---- */

ut_parity_sums *ut_parity_of(ut_parity *p, ut_parity_name of)
{
    for (unsigned k = 0; k < UT_PARITY_GROUPS; k++) {
        const ut_parity_sums *s = &p->sums[k];
        if (s->parities && s->group.members < s->most && s->group.of.op_seq == of.op_seq && s->group.of.step == of.step)
            return &p->sums[k];
    }
    return NULL;
}

ut_parity_sums *ut_parity_begin(ut_parity *p, const ut_parity_group *g, uint32_t most, uint32_t parities)
{
    assert(parities > 0 && parities <= p->most && most > 0 && most <= UT_PARITY_GROUP);
    ut_parity_sums *s = ut_parity_of(p, g->of);
    for (unsigned k = 0; k < UT_PARITY_GROUPS && !s; k++)
        s = p->sums[k].parities ? NULL : &p->sums[k];
    s = s ? s : &p->sums[p->sums[0].begun > p->sums[1].begun];
    s->group = *g;
    s->group.members = 0;
    s->most = (uint16_t)most;
    s->parities = (uint8_t)parities;
    s->sent = 0;
    s->bytes = 0;
    s->begun = ++p->begun;
    memset(s->sum, 0, (size_t)parities * p->payload);
    return s;
}

void ut_parity_add(ut_parity *p, ut_parity_sums *s, const uint8_t *payload, uint32_t len)
{
    assert(s->group.members < s->most && len <= p->payload);
    for (uint32_t k = 0; k < s->parities; k++)
        ut_gf_add(s->sum + (size_t)k * p->payload, payload, len, ut_parity_factor(k, s->group.members));
    s->group.members++;
    s->bytes = UT_MAX2(s->bytes, len);
}

ut_parity_sums *ut_parity_due(ut_parity *p)
{
    for (unsigned k = 0; k < UT_PARITY_GROUPS; k++)
        if (p->sums[k].parities && p->sums[k].group.members == p->sums[k].most)
            return &p->sums[k];
    return NULL;
}

/* ---- receiving ---- */

static ut_parity_kept *next_kept(ut_parity *p, uint8_t **ret_bytes)
{
    const uint32_t at = p->kept_next;
    p->kept_next = (at + 1) % p->room;
    p->kept = UT_MIN2(p->kept + 1, p->room);
    *ret_bytes = p->bytes + (size_t)at * p->payload;
    return &p->what[at];
}

void ut_parity_keep(ut_parity *p, const ut_parity_group *what, const uint8_t *payload, uint32_t len)
{
    uint8_t *to;
    if (!p->keeps)
        return;
    assert(len <= p->payload);
    *next_kept(p, &to) = (ut_parity_kept){.group = *what, .len = (uint16_t)len};
    memcpy(to, payload, len);
}

bool ut_parity_came(ut_parity *p, const ut_parity_group *g, uint32_t index, const uint8_t *payload, uint32_t len)
{
    uint8_t *to;
    if (p->room == 0 || index >= p->most || g->members == 0 || g->members > UT_PARITY_GROUP || len > p->payload)
        return false;
    p->keeps = true;
    *next_kept(p, &to) = (ut_parity_kept){.group = *g, .len = (uint16_t)len, .index = (uint8_t)index, .parity = true};
    memcpy(to, payload, len);
    return true;
}

static bool is_of(const ut_parity_group *a, const ut_parity_group *b)
{
    return a->of.op_seq == b->of.op_seq && a->of.step == b->of.step;
}

/* What is kept of a group: of each member, and of each parity, where in the ring, or -1. */
typedef struct known {
    int32_t member[UT_PARITY_GROUP], parity[UT_PARITY_MOST];
    uint32_t members, parities;
} known;

static void look(const ut_parity *p, const ut_parity_group *g, uint32_t slots, known *ret)
{
    memset(ret, -1, sizeof *ret);
    ret->members = ret->parities = 0;
    for (uint32_t k = 0; k < p->kept; k++) {
        const ut_parity_kept *e = &p->what[k];
        if (!is_of(&e->group, g))
            continue;
        if (e->parity) {
            const bool same = e->group.first == g->first && e->group.members == g->members &&
                              e->group.coverage == g->coverage && !e->used;
            ret->parities += same && ret->parity[e->index] < 0;
            if (same)
                ret->parity[e->index] = (int32_t)k;
            continue;
        }
        const uint32_t member =
            e->group.first >= g->first ? e->group.first - g->first : e->group.first + slots - g->first;
        if (member >= g->members || e->group.coverage != g->coverage)
            continue; /* of another coverage it may be a later sum than the one that the parity is of */
        ret->members += ret->member[member] < 0;
        ret->member[member] = (int32_t)k;
    }
}

/* Makes |m|, n x n, its own inverse. It has one (see above). */
static void invert(uint8_t m[UT_PARITY_MOST][UT_PARITY_MOST], uint32_t n)
{
    uint8_t r[UT_PARITY_MOST][UT_PARITY_MOST] = {{0}};
    for (uint32_t i = 0; i < n; i++)
        r[i][i] = 1;
    for (uint32_t c = 0; c < n; c++) {
        uint32_t with = c;
        while (with < n && m[with][c] == 0)
            with++;
        assert(with < n);
        for (uint32_t k = 0; k < n; k++) {
            const uint8_t a = m[c][k], b = r[c][k];
            m[c][k] = m[with][k], r[c][k] = r[with][k];
            m[with][k] = a, r[with][k] = b;
        }
        const uint8_t over = ut_gf_inverse(m[c][c]);
        for (uint32_t k = 0; k < n; k++) {
            m[c][k] = ut_gf_mul(m[c][k], over);
            r[c][k] = ut_gf_mul(r[c][k], over);
        }
        for (uint32_t i = 0; i < n; i++) {
            const uint8_t by = m[i][c];
            if (i == c || by == 0)
                continue;
            ut_gf_add(m[i], m[c], n, by);
            ut_gf_add(r[i], r[c], n, by);
        }
    }
    memcpy(m, r, sizeof r);
}

/* Members that are missing, and as many parity packets as they are, where there are so many. */
typedef struct gaps {
    uint32_t lacks[UT_PARITY_MOST], row[UT_PARITY_MOST], n;
} gaps;

static bool find_gaps(const ut_parity_group *g, const known *k, gaps *ret)
{
    uint32_t rows = 0;
    const uint32_t missing = g->members - k->members;
    ret->n = 0;
    if (missing == 0 || missing > k->parities)
        return false;
    for (uint32_t i = 0; i < g->members; i++)
        if (k->member[i] < 0)
            ret->lacks[ret->n++] = i;
    for (uint32_t i = 0; i < UT_PARITY_MOST && rows < ret->n; i++)
        if (k->parity[i] >= 0)
            ret->row[rows++] = i;
    assert(ret->n == missing && rows == ret->n);
    return true;
}

/* Whether the parity packets can be sums of these members: they are equally long, and no member is longer. */
static bool can_be_sums(const ut_parity *p, const ut_parity_group *g, const known *k, const gaps *x)
{
    const uint16_t len = p->what[k->parity[x->row[0]]].len;
    for (uint32_t r = 0; r < x->n; r++)
        if (p->what[k->parity[x->row[r]]].len != len)
            return false;
    for (uint32_t i = 0; i < g->members; i++)
        if (k->member[i] >= 0 && p->what[k->member[i]].len > len)
            return false;
    return true;
}

/* Takes the members that came out of a parity packet: what is left is a sum of those that are missing. */
static void take_out(const ut_parity *p, const ut_parity_group *g, const known *k, uint32_t row, uint8_t *sum)
{
    for (uint32_t i = 0; i < g->members; i++)
        if (k->member[i] >= 0)
            ut_gf_add(sum, p->bytes + (size_t)k->member[i] * p->payload, p->what[k->member[i]].len,
                      ut_parity_factor(row, i));
}

/* Makes |n| sums of |len| bytes the products of |matrix| with them, in place. */
static void multiply(uint8_t matrix[UT_PARITY_MOST][UT_PARITY_MOST], uint8_t *const *sum, uint32_t n, uint32_t len)
{
    uint8_t was[UT_PARITY_MOST];
    for (uint32_t at = 0; at < len; at++) {
        for (uint32_t r = 0; r < n; r++)
            was[r] = sum[r][at];
        for (uint32_t r = 0; r < n; r++) {
            sum[r][at] = 0;
            for (uint32_t c = 0; c < n; c++)
                sum[r][at] ^= ut_gf_mul(matrix[r][c], was[c]);
        }
    }
}

void ut_parity_solve(ut_parity *p, const ut_parity_group *g, uint32_t slots, ut_parity_found *ret)
{
    uint8_t matrix[UT_PARITY_MOST][UT_PARITY_MOST], *sum[UT_PARITY_MOST];
    known k;
    gaps x;
    ret->packets = 0;
    assert(slots > 0 && g->members <= UT_PARITY_GROUP && g->members <= slots);
    look(p, g, slots, &k);
    if (!find_gaps(g, &k, &x) || !can_be_sums(p, g, &k, &x))
        return;
    ret->len = p->what[k.parity[x.row[0]]].len;
    for (uint32_t r = 0; r < x.n; r++) {
        ret->payload[r] = sum[r] = p->bytes + (size_t)k.parity[x.row[r]] * p->payload;
        ret->slot[r] = (g->first + x.lacks[r]) % slots;
        p->what[k.parity[x.row[r]]].used = true;
        take_out(p, g, &k, x.row[r], sum[r]);
        for (uint32_t c = 0; c < x.n; c++)
            matrix[r][c] = ut_parity_factor(x.row[r], x.lacks[c]);
    }
    invert(matrix, x.n);
    multiply(matrix, sum, x.n, ret->len);
    ret->packets = x.n;
}
