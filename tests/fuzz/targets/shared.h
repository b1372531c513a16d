/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that somebody else writes while it is read. What is under test is compiled with a call before each of its
 * loads
 * (-fsanitize-coverage=trace-loads); here that call changes what is about to be loaded, as the fuzzer's input says. So
 * two loads of one word differ as they do in a race, without a thread, and a run is the same whenever it is repeated.
 */
#ifndef UT_FUZZ_SHARED_H
#define UT_FUZZ_SHARED_H

#include "fuzz.h"

enum { SHARED_REGIONS = 4 };

static struct {
    struct region {
        uint8_t *at;
        size_t bytes;
    } region[SHARED_REGIONS];
    unsigned regions;
    input script, rest; /* how it changes, from the start again when it ends */
    uint8_t calm;       /* loads until the next change */
    uint8_t *flipped;   /* what changed for one load, and what was there */
    uint32_t was;
    uint8_t len;
} shared;

/* From now on the |bytes| at |at| change. */
static inline void share(void *at, size_t bytes)
{
    MUST(shared.regions < SHARED_REGIONS);
    shared.region[shared.regions++] = (struct region){at, bytes};
}

static void change(uint8_t *at, uint8_t len)
{
    static const uint32_t edges[] = {0, 1, 0x7f800000, 0x7fffffff, 0x80000000, UINT32_MAX - 1, UINT32_MAX, 16};
    uint8_t how = take8(&shared.rest);
    uint32_t word;
    memcpy(&word, at, len);
    if (how & 1) { /* for this load alone */
        shared.flipped = at;
        shared.was = word;
        shared.len = len;
    }
    if (!(how & 6))
        take(&shared.rest, &word, len);
    else if (how & 2)
        word = edges[how >> 3 & 7];
    else
        word += (uint32_t)(how >> 3) - 16;
    memcpy(at, &word, len);
}

/* Before a load of |n| bytes. Most loads find what is there, so that what is read makes sense for a while. */
static void before_load(const void *where, size_t n)
{
    const uint8_t *at = where;
    for (unsigned i = 0; i < shared.regions; i++) {
        const struct region *r = &shared.region[i];
        if ((size_t)(at - r->at) >= r->bytes || n > r->bytes - (size_t)(at - r->at) || !shared.script.left)
            continue;
        if (shared.flipped)
            memcpy(shared.flipped, &shared.was, shared.len);
        shared.flipped = NULL;
        if (shared.calm) {
            shared.calm--;
            continue;
        }
        if (!shared.rest.left)
            shared.rest = shared.script;
        shared.calm = take8(&shared.rest);
        change(r->at + (at - r->at), (uint8_t)(n < 4 ? n : 4));
    }
}

void __sanitizer_cov_load1(uint8_t *at);
void __sanitizer_cov_load2(uint16_t *at);
void __sanitizer_cov_load4(uint32_t *at);
void __sanitizer_cov_load8(uint64_t *at);
void __sanitizer_cov_load16(void *at);
void __sanitizer_cov_load1(uint8_t *at)
{
    before_load(at, 1);
}
void __sanitizer_cov_load2(uint16_t *at)
{
    before_load(at, 2);
}
void __sanitizer_cov_load4(uint32_t *at)
{
    before_load(at, 4);
}
void __sanitizer_cov_load8(uint64_t *at)
{
    before_load(at, 8);
}
void __sanitizer_cov_load16(void *at)
{
    before_load(at, 16);
}

#endif
