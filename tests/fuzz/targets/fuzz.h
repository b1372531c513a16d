/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzz targets share: input that is used up from the front, and a word for what must hold.
 */
#ifndef UT_FUZZ_H
#define UT_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MUST(holds) ((holds) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds), abort()))

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

/* The next |n| bytes, zeros where the input has ended. */
static inline void take(input *in, void *out, size_t n)
{
    size_t some = n < in->left ? n : in->left;
    memset(out, 0, n);
    if (some)
        memcpy(out, in->at, some);
    in->at += some;
    in->left -= some;
}

static inline uint8_t take8(input *in)
{
    uint8_t x;
    take(in, &x, 1);
    return x;
}

static inline uint16_t take16(input *in)
{
    uint16_t x;
    take(in, &x, 2);
    return x;
}

/* A block of its own, so that the sanitizer sees a byte too many. */
static inline uint8_t *copy_of(const uint8_t *bytes, size_t n)
{
    uint8_t *own = malloc(n ? n : 1);
    if (n)
        memcpy(own, bytes, n);
    return own;
}

/* Zeroed memory that is touched lazily and is the same for every run: |which| of four blocks, |n| bytes of it. */
static inline void *lazy(unsigned which, size_t n)
{
    enum { MOST = 64 << 20 };
    static void *block[4];
    MUST(which < 4 && n <= MOST);
    if (!block[which])
        block[which] = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(block[which] != MAP_FAILED && madvise(block[which], MOST, MADV_DONTNEED) == 0);
    return block[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
