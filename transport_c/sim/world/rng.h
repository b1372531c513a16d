/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers of the simulator. Integers only: a seed must draw the same world at every optimisation level, so
 * probabilities are parts per million and no floating point takes part in a decision.
 */
#ifndef SIM_RNG_H
#define SIM_RNG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/mix.h"

typedef struct sim_rng {
    uint64_t state;
} sim_rng;

static inline uint64_t sim_mix(uint64_t x)
{
    return ut_mix(x + UT_MIX_STEP);
}

static inline uint64_t sim_next(sim_rng *rng)
{
    return ut_mix_next(&rng->state);
}

/* A stream of its own for one purpose, so that one more draw for the network does not move the trainers. */
static inline sim_rng sim_rng_for(uint64_t seed, uint64_t purpose)
{
    return (sim_rng){sim_mix(seed) ^ sim_mix(purpose * 0xd1342543de82ef95u + 1)};
}

/* 0 .. n - 1; 0 if n is 0. The bias of 2^-32 does not matter here. */
static inline uint64_t sim_below(sim_rng *rng, uint64_t n)
{
    if (n == 0)
        return 0;
    if (n <= UINT32_MAX)
        return ((sim_next(rng) >> 32) * n) >> 32;
    return sim_next(rng) % n;
}

static inline uint64_t sim_between(sim_rng *rng, uint64_t low, uint64_t high)
{
    return low + sim_below(rng, high - low + 1);
}

static inline bool sim_chance(sim_rng *rng, uint32_t ppm)
{
    return ppm != 0 && sim_below(rng, 1000000) < ppm;
}

/* Some of |n|, as a mask: at least one. */
static inline uint64_t sim_draw_set(sim_rng *rng, uint32_t n)
{
    return 1 + sim_below(rng, n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX);
}

/* |low| .. |high|, every octave alike: small and large values are tried equally often. |low| >= 1. */
static inline uint64_t sim_octaves(sim_rng *rng, uint64_t low, uint64_t high)
{
    unsigned octaves = 0;
    while (octaves < 62 && (low << (octaves + 1)) <= high && (low << octaves) < (UINT64_MAX >> 2))
        octaves++;
    uint64_t base = low << sim_below(rng, octaves + 1);
    uint64_t x = base + sim_below(rng, base);
    return x > high ? high : x;
}

#endif
