/* SPDX-License-Identifier: Apache-2.0
 *
 * What test_kernels.c and test_half.c share: buffers, random elements, and the comparison with the model.
 */
#ifndef UT_KERNELS_CHECK_H
#define UT_KERNELS_CHECK_H

#include "isas.h"
#include "kernels_model.h"

enum { N_MAX = 4200, ROOM = N_MAX * 8 + 256, FENCE = 64 };
static uint8_t room_a[ROOM] __attribute__((aligned(64))), room_in[ROOM] __attribute__((aligned(64)));
static uint8_t room_out[ROOM] __attribute__((aligned(64)));
static element want[N_MAX];

static const char *const DTYPE_NAMES[] = {"", "float32", "float64", "float16", "bfloat16", "int32", "int64"};
static const char *const REDOP_NAMES[] = {"", "sum", "avg", "min", "max", "prod"};
static const uint32_t DIVISORS[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 63, 64, 100, 1000, 1023, 1024, (1 << 24) - 1, 1 << 24};
#define FOR_EACH_DTYPE(dtype) for (unsigned dtype = UT_FLOAT32; dtype < UT_DTYPES_END; dtype++)
#define FOR_EACH_REDOP(redop) for (unsigned redop = UT_SUM; redop < UT_REDOPS_END; redop++)

static inline uint32_t random_divisor(void)
{
    return DIVISORS[check_below(sizeof DIVISORS / sizeof *DIVISORS)];
}

/* Every length to 200, then a few of packet size and beyond. */
static inline size_t next_n(size_t n)
{
    static const size_t LONG[] = {255, 256, 257, 360, 361, 511, 513, 720, 1025, 4111};
    if (n < 200)
        return n + 1;
    for (size_t i = 0; i < sizeof LONG / sizeof *LONG; i++)
        if (LONG[i] > n)
            return LONG[i];
    return SIZE_MAX;
}

/* The edges of each float format, without the sign; the first is a zero. */
static inline element edge_element(unsigned dtype)
{
    enum { EDGES = 10 };
    static const uint64_t F64[EDGES] = {
        0x0000000000000000, 0x0000000000000001, 0x000fffffffffffff, 0x0010000000000000, 0x7fefffffffffffff,
        0x7ff0000000000000, 0x7ff8000000000000, 0x7ff0000000000001, 0x3ff0000000000000, 0x3ca0000000000000,
    };
    static const uint32_t F32[EDGES] = {
        0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff,
        0x7f800000, 0x7fc00000, 0x7f800001, 0x3f800000, 0x33800000,
    };
    static const uint16_t F16[EDGES] = {0, 1, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0x7e00, 0x7c01, 0x3c00, 0x1400};
    static const uint16_t BF16[EDGES] = {0, 1, 0x007f, 0x0080, 0x7f7f, 0x7f80, 0x7fc0, 0x7f81, 0x3f80, 0x4380};
    const size_t at = check_below(EDGES);
    return dtype == UT_FLOAT64 ? F64[at] : dtype == UT_FLOAT32 ? F32[at] : dtype == UT_FLOAT16 ? F16[at] : BF16[at];
}

/* Near 1, so that sums mean something. */
static inline element ordinary_element(unsigned dtype)
{
    const int64_t random = (int64_t)check_random();
    switch (dtype) {
    case UT_FLOAT64:
        return bits_of_double((double)random * 0x1p-60);
    case UT_FLOAT32:
        return ut_float_bits((float)random * 0x1p-60f);
    case UT_FLOAT16:
        return 0x2c00 + ((uint64_t)random >> 8) % 0x1800;
    default:
        return 0x3d00 + ((uint64_t)random >> 8) % 0x0400;
    }
}

static inline element random_integer(unsigned dtype)
{
    const uint64_t mask = dtype == UT_INT32 ? UINT32_MAX : UINT64_MAX, top = mask ^ mask >> 1;
    switch (check_below(16)) {
    case 0:
        return top; /* INT_MIN */
    case 1:
        return top - 1; /* INT_MAX */
    case 2:
    case 3:
    case 4:
    case 5:
        return check_random() & mask;
    default:
        return (check_below(0x10000) - 0x8000) & mask;
    }
}

/* Ordinary values mostly; else the edges of the format, or any bits at all. */
static inline element random_element(unsigned dtype, bool finite)
{
    if (!is_float(dtype))
        return random_integer(dtype);
    const size_t bits = 8 * ut_dtype_bytes(dtype), pick = check_below(16);
    const element sign = (check_random() & 1) << (bits - 1);
    element it = pick == 0 ? edge_element(dtype) : pick <= 2 ? check_random() >> (64 - bits) : ordinary_element(dtype);
    it ^= sign;
    return finite && model_is_bad(dtype, it) ? 0 : it;
}

/* |n| elements at a random alignment in |room|; returns where. */
static inline uint8_t *random_elements(unsigned dtype, uint8_t *room, size_t n)
{
    uint8_t *const p = room + FENCE + check_below(64);
    const bool finite =
        check_below(2) == 0; /* half of the runs without NaN and Inf: those take another way through the count */
    for (size_t i = 0; i < n; i++)
        element_put(dtype, p, i, random_element(dtype, finite));
    return p;
}

static inline void fence_build(uint8_t *p, size_t bytes)
{
    memset(p - FENCE, 0xa5, FENCE);
    memset(p + bytes, 0xa5, FENCE);
}

static inline bool fence_stands(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < FENCE; i++)
        if (p[-1 - (ptrdiff_t)i] != 0xa5 || p[bytes + i] != 0xa5)
            return false;
    return true;
}

/* |got| against want[], and the fences; says |what| was called. */
static inline void check_elements(const char *what, unsigned isa, unsigned dtype, unsigned redop, unsigned how,
                                  unsigned out_dtype, const uint8_t *got, size_t n, uint32_t divisor)
{
    for (size_t i = 0; i < n; i++) {
        const element bits = element_at(out_dtype, got, i);
        if (!CHECK_MSG(model_same(out_dtype, bits, want[i]),
                       "%s of %s, %s on %s, how %u, divisor %u, element %zu of %zu: %llx, want %llx", what,
                       DTYPE_NAMES[dtype], REDOP_NAMES[redop], ISA_NAMES[isa], how, divisor, i, n,
                       (unsigned long long)bits, (unsigned long long)want[i]))
            return;
    }
    CHECK_MSG(fence_stands(got, n * ut_dtype_bytes(out_dtype)),
              "%s of %s, %s on %s, how %u: %zu elements and bytes around them", what, DTYPE_NAMES[dtype],
              REDOP_NAMES[redop], ISA_NAMES[isa], how, n);
}

#endif
