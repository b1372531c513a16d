/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of an instruction set, and the public calls that go through it. Until ut_kernels_init the plain code
 * answers, so there is no wrong moment to call anything.
 */
#include "table.h"

#include <stdatomic.h>
#if UT_KERNELS_ARM
#include <sys/auxv.h>
#endif

/* The choice as one block: a call loads one pointer. Atomic, for a second init from another thread chooses the same
 * again. */
struct choice {
    const ut_kernels *kernels;
    const ut_hadamard_kernels *hadamard;
    const ut_sparse_kernels *sparse;
    const ut_quant_kernels *quant;
    const ut_weigh_kernels *weigh;
    const ut_crc32c_kernels *crc32c;
    enum ut_isa isa;
};
static const struct choice choice_plain = {&ut_kernels_plain, &ut_hadamard_plain, &ut_sparse_plain, &ut_quant_plain,
                                           &ut_weigh_plain,   &ut_crc32c_plain,   UT_ISA_PLAIN};
static _Atomic(const struct choice *) chosen = &choice_plain;

#if UT_KERNELS_X86
static const struct choice choice_avx2 = {&ut_kernels_avx2, &ut_hadamard_avx2, &ut_sparse_avx2, &ut_quant_avx2,
                                          &ut_weigh_avx2,   &ut_crc32c_sse42,  UT_ISA_AVX2};
static const struct choice choice_avx512 = {&ut_kernels_avx512, &ut_hadamard_avx512, &ut_sparse_avx512,
                                            &ut_quant_avx512,   &ut_weigh_avx512,    &ut_crc32c_sse42,
                                            UT_ISA_AVX512}; /* the first Xeons */
static const struct choice choice_avx512_clmul = {&ut_kernels_avx512, &ut_hadamard_avx512, &ut_sparse_avx512,
                                                  &ut_quant_avx512,   &ut_weigh_avx512,    &ut_crc32c_avx512,
                                                  UT_ISA_AVX512};

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/* The builtins also look whether the kernel saves the wide registers. */
static const struct choice *best(enum ut_isa most)
{
    __builtin_cpu_init();
    if (most < UT_ISA_AVX2 || !has_avx2())
        return &choice_plain;
    if (most < UT_ISA_AVX512 || !has_avx512())
        return &choice_avx2;
    return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512vbmi") ? &choice_avx512_clmul
                                                                                        : &choice_avx512;
}
#elif UT_KERNELS_ARM
static const struct choice choice_neon = {&ut_kernels_neon, &ut_hadamard_neon, &ut_sparse_neon, &ut_quant_neon,
                                          &ut_weigh_neon,   &ut_crc32c_plain,  UT_ISA_NEON}; /* the first ARMv8.0 */
static const struct choice choice_neon_crc = {
    &ut_kernels_neon, &ut_hadamard_neon, &ut_sparse_neon, &ut_quant_neon,
    &ut_weigh_neon,   &ut_crc32c_arm,    UT_ISA_NEON}; /* no cryptography: a Raspberry Pi 4 */
static const struct choice choice_neon_pmull = {&ut_kernels_neon, &ut_hadamard_neon, &ut_sparse_neon, &ut_quant_neon,
                                                &ut_weigh_neon,   &ut_crc32c_pmull,  UT_ISA_NEON};

static const struct choice *best(enum ut_isa most)
{
    enum { PMULL = 1 << 4, CRC32 = 1 << 7 }; /* of Linux's AT_HWCAP */
    const unsigned long has = getauxval(AT_HWCAP);
    if (most < UT_ISA_NEON)
        return &choice_plain;
    if (!(has & CRC32))
        return &choice_neon;
    return has & PMULL ? &choice_neon_pmull : &choice_neon_crc;
}
#else
static const struct choice *best(enum ut_isa most)
{
    (void)most;
    return &choice_plain;
}
#endif

static const struct choice *now(void)
{
    return atomic_load_explicit(&chosen, memory_order_relaxed);
}

enum ut_isa ut_kernels_init(enum ut_isa most)
{
    atomic_store_explicit(&chosen, best(most), memory_order_relaxed);
    return now()->isa;
}

enum ut_isa ut_kernels_isa(void)
{
    return now()->isa;
}

static void assert_dtype(unsigned dtype)
{
    assert(dtype > 0 && dtype < UT_DTYPES_END);
}

static void assert_dtype_redop(unsigned dtype, unsigned redop)
{
    assert_dtype(dtype);
    assert(redop > 0 && redop < UT_REDOPS_END);
}

size_t ut_fold(unsigned dtype, unsigned redop, unsigned how, void *out, const void *a, const void *in, size_t n,
               uint32_t divisor)
{
    assert_dtype_redop(dtype, redop);
    assert(how <= (UT_A_IS_INPUT | UT_OUT_IS_RESULT));
    return now()->kernels->fold[dtype][redop][how](out, a, in, n, divisor);
}

size_t ut_finish(unsigned dtype, unsigned redop, unsigned how, void *dst, const void *a, size_t n, uint32_t divisor)
{
    assert_dtype_redop(dtype, redop);
    return now()->kernels->finish[dtype][redop == UT_AVG][how & UT_A_IS_INPUT](dst, a, n, divisor);
}

size_t ut_place(unsigned dtype, void *dst, const void *src, size_t n)
{
    if (dtype == UT_BYTES) {
        memmove(dst, src, n);
        return 0;
    }
    assert_dtype(dtype);
    return now()->kernels->place[dtype](dst, src, n);
}

/* A chain of folds, in blocks that stay in L1 for more than two sources. All of a block but its last source is read
 * before any of it is written, and the last fold goes element by element: that lets dst be a source. */
size_t ut_combine(unsigned dtype, unsigned redop, void *dst, const void *const *src, unsigned k, size_t n,
                  uint32_t divisor)
{
    enum { BLOCK = 512 };
    assert_dtype_redop(dtype, redop);
    assert(k > 0);
    ut_fold_fn *const *const fold = now()->kernels->fold[dtype][redop == UT_AVG && !divisor ? UT_SUM : redop];
    if (k == 1 && divisor > 1)
        return ut_finish(dtype, redop, UT_A_IS_INPUT, dst, src[0], n, divisor);
    if (k == 1)
        return now()->kernels->place[dtype](dst, src[0], n);
    if (k == 2)
        return fold[UT_A_IS_INPUT | UT_OUT_IS_RESULT](dst, src[0], src[1], n, divisor);
    size_t bad = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        uint64_t acc[BLOCK] __attribute__((aligned(64))); /* of any dtype's accumulators */
        const size_t m = UT_MIN2(n - i, (size_t)BLOCK), at = i * ut_dtype_bytes(dtype);
        (void)fold[UT_A_IS_INPUT](acc, (const uint8_t *)src[0] + at, (const uint8_t *)src[1] + at, m, 1);
        for (unsigned j = 2; j < k - 1; j++)
            (void)fold[0](acc, acc, (const uint8_t *)src[j] + at, m, 1);
        bad += fold[UT_OUT_IS_RESULT]((uint8_t *)dst + at, acc, (const uint8_t *)src[k - 1] + at, m, divisor);
    }
    return bad;
}

static void assert_floats(unsigned dtype)
{
    assert(dtype > 0 && dtype <= UT_BFLOAT16);
}

void ut_weigh(unsigned dtype, void *dst, const void *const *src, const double *weight, unsigned k, size_t n,
              double divisor)
{
    assert_floats(dtype);
    now()->weigh->weigh[dtype](dst, src, weight, k, n, divisor);
}

void ut_weigh_in(unsigned dtype, void *acc, const void *in, double weight, bool first, size_t n)
{
    assert_floats(dtype);
    now()->weigh->in[dtype](acc, in, weight, first, n);
}

size_t ut_weigh_out(unsigned dtype, void *dst, const void *acc, double sum, size_t n)
{
    assert_floats(dtype);
    now()->weigh->out[dtype](dst, acc, sum, n);
    return ut_place(dtype, dst, dst, n);
}

static void assert_block(const ut_hadamard_block *b)
{
    assert(b->rows > 0 && b->rows <= UT_HADAMARD_ROWS_MAX && (b->rows & (b->rows - 1)) == 0);
}

void ut_hadamard_encode(void *dst, const void *src, const ut_hadamard_block *b)
{
    assert_block(b);
    (void)now()->hadamard->encode(dst, src, b, NULL);
}

size_t ut_hadamard_decode(void *dst, const void *src, const ut_hadamard_block *b, const uint64_t *present)
{
    assert_block(b);
    return now()->hadamard->decode(dst, src, b, present);
}

uint32_t ut_crc32c(uint32_t crc, const void *data, size_t len)
{
    return now()->crc32c->of(crc, data, len);
}

uint32_t ut_crc32c_copy(void *dst, const void *src, size_t len)
{
    return now()->crc32c->copy(dst, src, len);
}

/* x^(8 * len - 33) mod P, by squaring x^(8 - 33): what moves a checksum over |len| bytes in one `times`. */
static uint32_t over_bytes(const ut_crc32c_kernels *kernels, size_t len)
{
    uint32_t over = 0xa9cdda0d, square = 0xbf818109; /* x^-33 and x^-25 */
    for (; len > 0; len >>= 1, square = kernels->times(square, square))
        if (len & 1)
            over = kernels->times(over, square);
    return over;
}

/* The same. Nearly all packets have one length: its constant is kept. The two halves travel in one word. */
static inline uint32_t over_packet(const ut_crc32c_kernels *kernels, size_t len)
{
    static _Atomic uint64_t last;
    const uint64_t kept = atomic_load_explicit(&last, memory_order_relaxed);
    if (kept >> 32 == len && kept != 0)
        return (uint32_t)kept;
    const uint32_t over = over_bytes(kernels, len);
    if (len <= UINT32_MAX)
        atomic_store_explicit(&last, (uint64_t)len << 32 | over, memory_order_relaxed);
    return over;
}

uint32_t ut_crc32c_headed(const uint64_t header[4], uint32_t crc, size_t len)
{
    const ut_crc32c_kernels *const kernels = now()->crc32c;
    return kernels->times_header(header, over_packet(kernels, len)) ^ crc;
}

size_t ut_keep(float *kept, const float *add, size_t n, const ut_selection *s)
{
    assert((uint64_t)n <= UT_INDICES_MAX);
    return now()->sparse->keep(kept, add, n, s);
}

/* In blocks that stay in L1: what was blended is selected before it leaves. */
size_t ut_keep_momentum(float *kept, float *velocity, const float *add, float momentum, size_t n, const ut_selection *s)
{
    enum { BLOCK = 1024 };
    assert((uint64_t)n <= UT_INDICES_MAX);
    const ut_sparse_kernels *const sparse = now()->sparse;
    ut_selection rest = *s;
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t count = UT_MIN2(n - i, (size_t)BLOCK);
        sparse->blend(kept + i, velocity + i, add + i, momentum, count);
        const size_t taken = sparse->keep(kept + i, NULL, count, &rest);
        for (size_t j = 0; j < taken; j++) {
            uint32_t value;
            memcpy(&value, rest.values + j, sizeof value);
            rest.ties -= (value & 0x7fffffff) == rest.above;
            velocity[i + rest.indices[j]] = 0;
            rest.indices[j] += (uint32_t)i;
        }
        rest.indices += taken;
        rest.values += taken;
        rest.room -= taken;
    }
    return s->room - rest.room;
}

uint64_t ut_nonzero(const float *x, size_t n)
{
    assert(n <= 64);
    return now()->sparse->nonzero(x, n);
}

static void assert_bloom(uint32_t m, uint32_t k, uint64_t end)
{
    assert(m > 0 && k > 0 && k <= UT_BLOOM_HASHES_MAX && end <= UT_INDICES_MAX);
}

size_t ut_bloom_members(const uint8_t *bits, uint32_t m, uint32_t k, uint64_t end, uint32_t *out, size_t room)
{
    assert_bloom(m, k, end);
    return now()->sparse->bloom_members(bits, m, k, end, out, room);
}

void ut_qsgd_encode(float *norms, uint32_t *codes, const float *values, size_t n, size_t bucket, unsigned bits,
                    uint32_t seed)
{
    assert(bucket > 0 && bits >= 2 && bits <= 16);
    now()->sparse->qsgd_encode(norms, codes, values, n, bucket, bits, seed);
}

void ut_qsgd_decode(float *values, const float *norms, const uint32_t *codes, size_t n, size_t bucket, unsigned bits)
{
    assert(bucket > 0 && bits >= 2 && bits <= 16);
    now()->sparse->qsgd_decode(values, norms, codes, n, bucket, bits);
}

uint32_t ut_quant_encode(unsigned form, uint8_t *out, const float *x, float *residual, uint32_t n,
                         const ut_quant_rounding *r, ut_quant_told *told)
{
    ut_quant_told unread;
    assert(ut_quant_is_form(form) && n <= UT_QUANT_ELEMENTS_MAX && r->divisor > 0);
    return now()->quant->encode(form, out, x, residual, n, r, told ? told : &unread);
}

void ut_quant_decode(unsigned form, float *out, const uint8_t *slot, uint32_t n)
{
    assert(ut_quant_is_form(form));
    now()->quant->decode(form, out, slot, n, false);
}

void ut_quant_add(unsigned form, float *out, const uint8_t *slot, uint32_t n)
{
    assert(ut_quant_is_form(form));
    now()->quant->decode(form, out, slot, n, true);
}
