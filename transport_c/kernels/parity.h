/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic of parity packets: bytes are elements of GF(2^8), by the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d).
 */
#ifndef UT_PARITY_KERNEL_H
#define UT_PARITY_KERNEL_H

#include <stddef.h>
#include <stdint.h>

uint8_t ut_gf_mul(uint8_t a, uint8_t b);
/* The one with which |a| makes 1. |a| is not 0. */
uint8_t ut_gf_inverse(uint8_t a);
/* Adds |factor| times each of |len| bytes of |from| to those of |to|: to ^= factor * from. Factor 1 is plain XOR. */
void ut_gf_add(uint8_t *to, const uint8_t *from, size_t len, uint8_t factor);

#endif
