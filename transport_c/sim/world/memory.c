/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is lent to the core, between guards. The canary bytes show a stray write in any build; under ASan the
 * guards are poisoned as well, so that a stray read stops the run at the guilty line.
 */
#include "sim/sim.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#define CANARY 0xc5

void *sim_alloc(size_t bytes)
{
    void *mem = calloc(1, bytes ? bytes : 1);
    if (!mem) {
        fprintf(stderr, "sim: out of memory for %zu bytes\n", bytes);
        exit(2);
    }
    return mem;
}

uint64_t sim_digest(const void *bytes, size_t count)
{
    enum { LANES = 8 }; /* beside each other, as each step of one waits for the step before */
    const uint8_t *at = bytes;
    uint64_t x[LANES], lane[LANES] = {0}, digest = count;
    for (; count >= sizeof x; at += sizeof x, count -= sizeof x) {
        memcpy(x, at, sizeof x);
        for (unsigned i = 0; i < LANES; i++) { /* one product a word: a sixth of a simulation was spent here */
            lane[i] = (lane[i] ^ x[i]) * UINT64_C(0x9e3779b97f4a7c15);
            lane[i] ^= lane[i] >> 29;
        }
    }
    for (unsigned i = 0; i < LANES; i++)
        digest = sim_mix(digest ^ lane[i]);
    for (; count > 0; count--)
        digest = sim_mix(digest ^ *at++);
    return digest;
}

bool sim_all_bytes(const uint8_t *at, size_t count, uint8_t byte)
{
    return count == 0 || (at[0] == byte && memcmp(at, at + 1, count - 1) == 0);
}

void *sim_room(size_t bytes)
{
    void *mem = malloc(bytes ? bytes : 1);
    if (!mem) {
        fprintf(stderr, "sim: out of memory for %zu bytes\n", bytes);
        exit(2);
    }
    return mem;
}

/* The core asks for zeroed memory at 64 bytes; calloc gives fresh pages that cost nothing until they are touched. */
void sim_guarded_make(sim_world *w, sim_guarded *g, size_t bytes)
{
    (void)w;
    g->bytes = bytes;
    g->whole = sim_alloc(bytes + 2 * SIM_GUARD + 64);
    g->mem = g->whole + SIM_GUARD + (64 - (uintptr_t)(g->whole + SIM_GUARD) % 64) % 64;
    memset(g->mem - SIM_GUARD, CANARY, SIM_GUARD);
    memset(g->mem + bytes, CANARY, SIM_GUARD);
    ASAN_POISON_MEMORY_REGION(g->mem - SIM_GUARD, SIM_GUARD);
    ASAN_POISON_MEMORY_REGION(g->mem + bytes, SIM_GUARD);
}

static void unpoison(const sim_guarded *g)
{
    ASAN_UNPOISON_MEMORY_REGION(g->mem - SIM_GUARD, SIM_GUARD);
    ASAN_UNPOISON_MEMORY_REGION(g->mem + g->bytes, SIM_GUARD);
}

/* Oracle O5. */
void sim_guarded_check(sim_world *w, const sim_guarded *g, uint32_t host, const char *what)
{
    unpoison(g);
    for (size_t i = 0; i < SIM_GUARD; i++) {
        if (g->mem[-1 - (ptrdiff_t)i] != CANARY)
            sim_fail(w, "O5 bounded memory", host, "%s: byte %zu before its %zu bytes was written", what, i + 1,
                     g->bytes);
        if (g->mem[g->bytes + i] != CANARY)
            sim_fail(w, "O5 bounded memory", host, "%s: byte %zu behind its %zu bytes was written", what, i, g->bytes);
    }
    ASAN_POISON_MEMORY_REGION(g->mem - SIM_GUARD, SIM_GUARD);
    ASAN_POISON_MEMORY_REGION(g->mem + g->bytes, SIM_GUARD);
}

void sim_guarded_free(sim_guarded *g)
{
    if (!g->whole)
        return;
    unpoison(g);
    free(g->whole);
    *g = (sim_guarded){0};
}
