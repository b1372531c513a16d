/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots: float32 elements as whole numbers of 16, 8 or 4 bits, with a scale of one byte for each block of
 * neighbours. A slot is what one packet of a quantised allreduce carries, and decodes alone. KINDS.md has the same
 * in a table. All of it is little-endian:
 *
 *     0    1    low nibble: the form; bit 7: some codes stand for NaN; bits 4 to 6 are 0
 *     1    1    E, the slot's exponent: 0 to UT_QUANT_EXPONENT_MAX
 *     2    nb   u, the scale of each block; a block is 64 elements, of int4 32, and the last one what is left
 *     ..   ..   codes: of int16 two bytes, of int8 one, two's complement; of int4 element 2j in the low nibble of byte
 * j
 *
 * An element is code * scale, and a scale the float32 with the bits (u + 16 E) << 19, or 0 where u is 0: a number with
 * four bits of mantissa. So code * scale is exact in float32, and so are sums over hosts whose scales of one block are
 * not too far apart: they do not depend on the order in which packets come. Codes are -L to L (32767, 127, 7); the
 * lowest code, -L - 1, stands for NaN if bit 7 says so.
 *
 * Encoding, the same bits on every CPU:
 *   1. m is the largest finite magnitude of a block. Below 2^-100 all of the block is coded as zeros, and its residual
 *      becomes 0: subnormal numbers would take many times as long, and residuals shrink into that range by themselves.
 *      Else w = (bits of m / L + 0x7ffff) >> 19, which rounds up, but at most the largest w at which L * scale is
 * finite.
 *   2. E is the least at which no u = w - 16 E is above 255; what would be below 1 is 1.
 *   3. t = y * (1 / scale). To nearest: q = t rounded, ties to even. At random: q = t + d rounded, where d is a draw of
 * 65536 from -1/2 to 1/2, both ends left out. q is kept within -L to L. What lies on the grid stays (of int16 nearly
 * always). Draws follow from the key and the element's number in the slot alone, so that anybody can foretell every
 * bit.
 *
 * No function allocates. Of a slot that ut_quant_takes accepts, every byte decodes.
 */
#ifndef UT_KERNELS_QUANT_H
#define UT_KERNELS_QUANT_H

#include "core/base/ut.h"

/* Forms as they are told on the wire. 0 to 3 are the forms of sparse values; 7 is kept for two bits. */
enum { UT_QUANT_INT16 = 4, UT_QUANT_INT8 = 5, UT_QUANT_INT4 = 6 };
enum {
    UT_QUANT_HEADER = 2,
    UT_QUANT_NAN = 0x80, /* bit of the first byte */
    UT_QUANT_EXPONENT_MAX = 239,
    UT_QUANT_ELEMENTS_MAX = 2 * UT_PACKET_MAX, /* elements of a slot: those of int4 take half a byte */
};

static inline bool ut_quant_is_form(unsigned form)
{
    return form >= UT_QUANT_INT16 && form <= UT_QUANT_INT4;
}

/* The most elements, in eights, of a slot of |payload| bytes; 0 if not even eight fit. */
uint32_t ut_quant_elements(unsigned form, uint32_t payload);
/* The bytes of a slot of |elements|, without padding. */
uint32_t ut_quant_bytes(unsigned form, uint32_t elements);

/* What the draws of a slot follow from. |stage| is 0 for contributions, 1 for answers; |host| is the one that encodes.
 */
uint64_t ut_quant_key(uint64_t op_seq, unsigned stage, unsigned host, unsigned chunk, uint32_t slot);

typedef struct ut_quant_rounding {
    uint64_t key; /* of draws; of no meaning to nearest */
    bool nearest;
    float divisor; /* 1 for contributions; for answers the ranks, or their weights, in the sum */
} ut_quant_rounding;

typedef struct ut_quant_told {
    uint32_t nonfinite; /* elements that were NaN or infinite: they travel as NaN, each alone */
    double error; /* the sum over blocks of elements * scale^2; rounding takes a twelfth of it, at random a sixth */
} ut_quant_told;

/* Encodes y = x / divisor + residual for |n| <= UT_QUANT_ELEMENTS_MAX elements into |out|, and returns the bytes of the
 * slot. |residual| may be NULL; else it becomes y less what the slot says, but of elements that are not finite it stays
 * as it was. |told| may be NULL. */
uint32_t ut_quant_encode(unsigned form, uint8_t *out, const float *x, float *residual, uint32_t n,
                         const ut_quant_rounding *r, ut_quant_told *told);

/* Whether |length| bytes are a slot of |n| elements of |form|, followed by zeros alone. */
bool ut_quant_takes(unsigned form, const uint8_t *slot, uint32_t length, uint32_t n);
/* out = what the slot says; out += what the slot says. Of slots that were taken. */
void ut_quant_decode(unsigned form, float *out, const uint8_t *slot, uint32_t n);
void ut_quant_add(unsigned form, float *out, const uint8_t *slot, uint32_t n);
/* The error of a slot as ut_quant_told has it. */
double ut_quant_error(unsigned form, const uint8_t *slot, uint32_t n);

#endif
