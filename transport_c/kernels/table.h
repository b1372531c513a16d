/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of one instruction set as a table, so that a call costs one look-up and one indirect jump. Everything
 * that does not change within a call (dtype, operation, what |a| holds, whether the result is written) is an index of
 * the table; only the divisor is an argument. Every function here takes any n, 0 included, and pointers of any
 * alignment.
 */
#ifndef UT_KERNELS_TABLE_H
#define UT_KERNELS_TABLE_H

#include "hadamard.h"
#include "kernels.h"
#include "quant.h"
#include "sparse.h"

typedef size_t ut_fold_fn(void *out, const void *a, const void *in, size_t n, uint32_t divisor);
typedef size_t ut_finish_fn(void *dst, const void *a, size_t n, uint32_t divisor);
typedef size_t ut_place_fn(void *dst, const void *src, size_t n);

typedef struct ut_crc32c_kernels {
    uint32_t (*of)(uint32_t crc, const void *data, size_t len);
    uint32_t (*copy)(void *dst, const void *src, size_t len);
    /* a * b * x^33 mod P (the CRC's polynomial), all three bit-reversed: the product as the CPU's instructions give it.
     */
    uint32_t (*times)(uint32_t a, uint32_t b);
    uint32_t (*times_header)(const uint64_t header[4], uint32_t b); /* the same, of the CRC32C of four words */
} ut_crc32c_kernels;

typedef struct ut_kernels {
    ut_fold_fn *fold[UT_DTYPES_END][UT_REDOPS_END][4]; /* last index: ut_fold_how */
    ut_finish_fn *finish[UT_DTYPES_END][2][2];         /* [dtype][the reduction is AVG][UT_A_IS_INPUT] */
    ut_place_fn *place[UT_DTYPES_END];
} ut_kernels;

typedef struct ut_weigh_kernels { /* [dtype]; ut_weigh_out's without the count of what is not finite */
    void (*weigh[UT_BFLOAT16 + 1])(void *dst, const void *const *src, const double *weight, unsigned k, size_t n,
                                   double divisor);
    void (*in[UT_BFLOAT16 + 1])(void *acc, const void *in, double weight, bool first, size_t n);
    void (*out[UT_BFLOAT16 + 1])(void *dst, const void *acc, double sum, size_t n);
} ut_weigh_kernels;

typedef size_t ut_hadamard_fn(void *dst, const void *src, const ut_hadamard_block *b, const uint64_t *present);
typedef struct ut_hadamard_kernels {
    ut_hadamard_fn *encode, *decode;
} ut_hadamard_kernels;

typedef struct ut_sparse_kernels {
    size_t (*keep)(float *kept, const float *add, size_t n, const ut_selection *s);
    void (*blend)(float *kept, float *velocity, const float *add, float momentum, size_t n); /* without taking out */
    uint64_t (*nonzero)(const float *x, size_t n);
    size_t (*bloom_members)(const uint8_t *bits, uint32_t m, uint32_t k, uint64_t end, uint32_t *out, size_t room);
    void (*qsgd_encode)(float *norms, uint32_t *codes, const float *values, size_t n, size_t bucket, unsigned bits,
                        uint32_t seed);
    void (*qsgd_decode)(float *values, const float *norms, const uint32_t *codes, size_t n, size_t bucket,
                        unsigned bits);
} ut_sparse_kernels;

typedef struct ut_quant_kernels {
    uint32_t (*encode)(unsigned form, uint8_t *out, const float *x, float *residual, uint32_t n,
                       const ut_quant_rounding *r, ut_quant_told *told);
    void (*decode)(unsigned form, float *out, const uint8_t *slot, uint32_t n, bool add);
} ut_quant_kernels;

extern const ut_kernels ut_kernels_plain;
extern const ut_hadamard_kernels ut_hadamard_plain;
extern const ut_sparse_kernels ut_sparse_plain;
extern const ut_quant_kernels ut_quant_plain;
extern const ut_weigh_kernels ut_weigh_plain;
extern const ut_crc32c_kernels ut_crc32c_plain;

/* These may only be called where the CPU has the instructions; dispatch.c checks that. (-DUT_KERNELS_PORTABLE leaves
 * them out, as a build for another CPU does.) */
#if defined(__x86_64__) && !defined(UT_KERNELS_PORTABLE)
#define UT_KERNELS_X86 1
extern const ut_kernels ut_kernels_avx2;   /* AVX2, F16C, FMA */
extern const ut_kernels ut_kernels_avx512; /* AVX-512 F, BW, DQ, VL */
extern const ut_hadamard_kernels ut_hadamard_avx2;
extern const ut_hadamard_kernels ut_hadamard_avx512;
extern const ut_sparse_kernels ut_sparse_avx2;   /* AVX2 */
extern const ut_sparse_kernels ut_sparse_avx512; /* AVX-512 F, BW, DQ, VL */
extern const ut_quant_kernels ut_quant_avx2;
extern const ut_weigh_kernels ut_weigh_avx2;
extern const ut_quant_kernels ut_quant_avx512;
extern const ut_weigh_kernels ut_weigh_avx512;
extern const ut_crc32c_kernels ut_crc32c_sse42;  /* SSE4.2, PCLMULQDQ */
extern const ut_crc32c_kernels ut_crc32c_avx512; /* those and AVX-512 F, BW, VL, VBMI, VPCLMULQDQ */
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && !defined(UT_KERNELS_PORTABLE)
#define UT_KERNELS_ARM 1
extern const ut_kernels ut_kernels_neon; /* NEON, which all of these CPUs have */
extern const ut_hadamard_kernels ut_hadamard_neon;
extern const ut_sparse_kernels ut_sparse_neon;
extern const ut_quant_kernels ut_quant_neon;
extern const ut_weigh_kernels ut_weigh_neon;
extern const ut_crc32c_kernels ut_crc32c_arm;   /* CRC32 */
extern const ut_crc32c_kernels ut_crc32c_pmull; /* CRC32, PMULL */
#endif

#endif
