/* SPDX-License-Identifier: Apache-2.0
 *
 * Bloom filters over indices: the hash, building a filter, and DeepReduce's policy P2. Who is in a filter is asked of
 * all elements of a tensor, so that loop is chosen for the CPU (sparse_lanes.h).
 */
#include "core/base/mix.h"
#include "murmur3.h"
#include "sparse.h"

uint32_t ut_murmur3(uint32_t x, uint32_t seed)
{
    return ut_murmur3_of(x, seed);
}

void ut_bloom_insert(uint8_t *bits, uint32_t m, uint32_t k, const uint32_t *x, size_t n)
{
    assert(m > 0 && k > 0 && k <= UT_BLOOM_HASHES_MAX);
    for (size_t j = 0; j < n; j++) {
        const uint32_t block = ut_murmur3_block(x[j]);
        for (uint32_t i = 0; i < k; i++) {
            const uint32_t bit = ut_murmur3_end(block, i) % m;
            bits[bit >> 3] |= (uint8_t)(1u << (bit & 7));
        }
    }
}

/* A conflict set per bit: the members that set it. Their lists lie one behind the other in |items|. */
typedef struct ut_conflicts {
    uint32_t *start, *length, *order, *items;
    uint32_t sets; /* in |order|: those that are not empty, the smallest first, equal ones by their bit */
} ut_conflicts;

size_t ut_bloom_choose_words(size_t n, uint32_t m, uint32_t k)
{
    return 3 * (size_t)m + n * k + n + 2;
}

static ut_conflicts conflicts_of(const uint32_t *p, size_t n, uint32_t m, uint32_t k, uint32_t *scratch)
{
    ut_conflicts c = {scratch, scratch + m, scratch + 2 * (size_t)m, scratch + 3 * (size_t)m, 0};
    uint32_t *const by_size = c.items + n * k; /* n + 2 words: a set has 0 to n members */
    memset(c.start, 0, m * sizeof *c.start);
    memset(c.length, 0, m * sizeof *c.length);
    memset(by_size, 0, (n + 2) * sizeof *by_size);
    for (size_t at = 0; at < n; at++)
        for (uint32_t i = 0, block = ut_murmur3_block(p[at]); i < k; i++)
            c.start[ut_murmur3_end(block, i) % m]++;
    for (uint32_t j = 0, sum = 0; j < m; j++) {
        const uint32_t room = c.start[j];
        c.start[j] = sum;
        sum += room;
    }
    for (uint32_t at = 0; at < n; at++)
        for (uint32_t i = 0, block = ut_murmur3_block(p[at]); i < k; i++) {
            const uint32_t j = ut_murmur3_end(block, i) % m, end = c.start[j] + c.length[j];
            if (c.length[j] > 0 && c.items[end - 1] == at)
                continue; /* two of its hashes meet here */
            c.items[end] = at;
            c.length[j]++;
        }
    for (uint32_t j = 0; j < m; j++)
        by_size[c.length[j] + 1]++;
    const uint32_t empty = by_size[1];
    for (size_t size = 1; size <= n + 1; size++)
        by_size[size] += by_size[size - 1];
    for (uint32_t j = 0; j < m; j++)
        if (c.length[j] > 0)
            c.order[by_size[c.length[j]]++ - empty] = j;
    c.sets = m - empty;
    return c;
}

/* One member of set |j| that was not chosen before, at random; false if none is left. Each member is looked at once in
 * all, whatever the sets look like. */
static bool choose_one(const ut_conflicts *c, uint32_t j, uint8_t *chosen, uint64_t *random)
{
    uint32_t *const items = c->items + c->start[j];
    while (c->length[j] > 0) {
        const uint32_t pick = (uint32_t)((ut_mix_next(random) >> 32) * c->length[j] >> 32);
        const uint32_t at = items[pick];
        items[pick] = items[--c->length[j]];
        if (!chosen[at]) {
            chosen[at] = 1;
            return true;
        }
    }
    return false;
}

void ut_bloom_choose(uint8_t *chosen, const uint32_t *p, size_t n, uint32_t m, uint32_t k, size_t r, uint64_t seed,
                     uint32_t *scratch)
{
    assert(m > 0 && k > 0 && k <= UT_BLOOM_HASHES_MAX && r <= n && n <= UINT32_MAX / k);
    memset(chosen, 0, n);
    if (r == 0)
        return;
    ut_conflicts c = conflicts_of(p, n, m, k, scratch);
    uint64_t random = seed;
    for (size_t left = r; c.sets > 0;) {
        uint32_t kept = 0; /* sets with members left go on to the next pass, in their order */
        for (uint32_t s = 0; s < c.sets; s++) {
            const uint32_t j = c.order[s];
            if (choose_one(&c, j, chosen, &random) && --left == 0)
                return;
            if (c.length[j] > 0)
                c.order[kept++] = j;
        }
        c.sets = kept;
    }
}
