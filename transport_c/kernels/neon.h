/* SPDX-License-Identifier: Apache-2.0
 *
 * What the NEON files share. The first n bytes of a vector go through a buffer in steps of powers of two: NEON has
 * neither masks nor loads of a part.
 */
#ifndef UT_KERNELS_NEON_H
#define UT_KERNELS_NEON_H

#include <stdint.h>
#include <string.h>

#define NEON static inline __attribute__((always_inline))

/* |bytes| is below 64 and even. */
NEON void neon_copy_part(uint8_t *to, const uint8_t *from, size_t bytes)
{
#define NEON_STEP(size)                                                                                                \
    if (bytes & (size)) {                                                                                              \
        memcpy(to, from, (size));                                                                                      \
        to += (size);                                                                                                  \
        from += (size);                                                                                                \
    }
    NEON_STEP(32)
    NEON_STEP(16)
    NEON_STEP(8)
    NEON_STEP(4)
    NEON_STEP(2)
#undef NEON_STEP
}

#endif
