/* SPDX-License-Identifier: Apache-2.0
 *
 * Sparse tensors: a list of ascending u32 indices and as many values. Four groups of kernels: choosing the entries of a
 * gradient that are sent (and keeping the rest), packing their indices, Bloom filters over indices, and QSGD, which
 * packs values into few bits. What the containers of client/sparse/ are made of. The Bloom filter, QSGD and the
 * selection are chosen at run time for the CPU; all instruction sets give the same bits.
 *
 * No function allocates. Decoders read hostile bytes: they read nothing outside of |in|, write nothing outside of the
 * room that they were given, and return UT_ERR_MALFORMED for what no encoder writes.
 */
#ifndef UT_KERNELS_SPARSE_H
#define UT_KERNELS_SPARSE_H

#include "core/base/ut.h"

#define UT_INDICES_MAX (1ULL << 32) /* elements of a tensor */

/* ---- choosing what is sent (sparse_keep.c) ---- */

/* What ut_keep takes out: entries whose magnitude is above |above|, and the first |ties| of those that equal it. A
 * magnitude is a float's bits without the sign, so NaN is above all else. At most |room| entries are taken. */
typedef struct ut_selection {
    uint32_t above;
    size_t ties;
    uint32_t *indices; /* room for |room| of each */
    float *values;
    size_t room;
} ut_selection;

/* kept[i] += add[i] for |n| <= 2^32 elements (|add| may be NULL: nothing is added), then takes out what |s| selects:
 * its index and value are written in ascending order, and its place in |kept| becomes 0. What no room was left for
 * stays in |kept|. Returns how many were taken. */
size_t ut_keep(float *kept, const float *add, size_t n, const ut_selection *s);
/* The same with momentum correction (Deep Gradient Compression, Lin et al. 2018): velocity[i] = |momentum| *
 * velocity[i]
 * + add[i], kept[i] += velocity[i]; what is taken out becomes 0 in both. |momentum| * velocity is exact, the sum is
 * rounded to float64 and then to float32. */
size_t ut_keep_momentum(float *kept, float *velocity, const float *add, float momentum, size_t n,
                        const ut_selection *s);
/* counts[b] += the number of elements whose magnitude is |prefix| above the lowest |shift| + |bits| bits, and b in the
 * next |bits| (at most 11) bits. Three calls narrow down the k-th largest magnitude exactly. */
void ut_magnitudes(const float *p, size_t n, uint32_t prefix, unsigned shift, unsigned bits, uint64_t *counts);
/* out[x[i]] += v[i]. Stops at an index that is not below |end|; returns how many were added. */
size_t ut_scatter_add(float *out, size_t end, const uint32_t *x, const float *v, size_t n);

/* Which of |n| <= 64 elements are not zero (of either sign), a bit each. */
uint64_t ut_nonzero(const float *x, size_t n);

/* ---- packing indices (sparse_index.c) ---- */

/* The first i for which x[i] is not above x[i - 1], or not below |end|; |n| if there is none. */
size_t ut_ascending(const uint32_t *x, size_t n, uint64_t end);
/* A bit per element, least significant first: |out| has (end + 7) / 8 bytes, all zero. Indices are below its end. */
void ut_bitmap_encode(uint8_t *out, const uint32_t *x, size_t n);
/* UT_OK, or UT_ERR_MALFORMED if not exactly |n| of the first |end| bits are set, or a bit beyond them. */
int ut_bitmap_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in);
/* Gaps: each index as its distance to the one before, less one, seven bits to a byte, lowest first (LEB128). |out| has
 * room for 5 * n bytes. Returns the number of bytes written. */
size_t ut_gaps_encode(uint8_t *out, const uint32_t *x, size_t n);
int ut_gaps_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in, size_t len);
/* Runs: the bitmap's first bit as a byte, then the lengths of its runs in LEB128, which add up to |end|. |out| has room
 * for 10 * n + 11 bytes. Returns the number of bytes written; 0 if |end| is 0. */
size_t ut_runs_encode(uint8_t *out, const uint32_t *x, size_t n, uint64_t end);
int ut_runs_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in, size_t len);
/* Values of |width| (0 to 32) bits each, lowest bit first, in (n * width + 7) / 8 bytes. */
void ut_bits_pack(uint8_t *out, const uint32_t *values, size_t n, unsigned width);
void ut_bits_unpack(uint32_t *values, size_t n, unsigned width, const uint8_t *in);
/* A prefix code over bytes, highest bit first: codes[b] is b's length in bits (1 to 16) above its 16 bits of code; 0
 * where b has none (then UT_ERR_ARGUMENT). Returns the number of bytes written to |out|, which has room for 2 * n + 8.
 */
int64_t ut_prefix_encode(uint8_t *out, const uint32_t *codes, const uint8_t *in, size_t n);
/* table[next |bits| bits] is a symbol below its length shifted left by 8; 0 where no code begins so. |bits| is 1 to 16.
 * All of |in| must be used, but for zero bits in the last byte. */
int ut_prefix_decode(uint8_t *out, size_t n, const uint16_t *table, unsigned bits, const uint8_t *in, size_t len);

/* ---- Bloom filters (sparse_bloom.c) ---- */

/* MurmurHash3_x86_32 of the four bytes of |x|, little-endian. */
uint32_t ut_murmur3(uint32_t x, uint32_t seed);
enum { UT_BLOOM_HASHES_MAX = 24 };
/* A filter of |m| > 0 bits (least significant first) and |k| hashes, 1 to UT_BLOOM_HASHES_MAX: the i-th is
 * ut_murmur3(x, i) mod m. Its memory is (m + 31) / 32 words. */
void ut_bloom_insert(uint8_t *bits, uint32_t m, uint32_t k, const uint32_t *x, size_t n);
/* The numbers below |end| that the filter may hold, ascending. Returns how many there are; the first |room| of them are
 * written. */
size_t ut_bloom_members(const uint8_t *bits, uint32_t m, uint32_t k, uint64_t end, uint32_t *out, size_t room);
/* DeepReduce's policy P2 (algorithm 1 of its appendix): chosen[i] = 1 for |r| <= n of the |n| members p[i], others 0.
 * Members that set a bit alone are taken first, for they are certainly not false. |scratch| has
 * ut_bloom_choose_words(n, m, k) words. The same arguments choose the same members everywhere. */
void ut_bloom_choose(uint8_t *chosen, const uint32_t *p, size_t n, uint32_t m, uint32_t k, size_t r, uint64_t seed,
                     uint32_t *scratch);
size_t ut_bloom_choose_words(size_t n, uint32_t m, uint32_t k);

/* ---- QSGD (Alistarh et al. 2017) ---- */

/* |n| finite values in buckets of |bucket| elements. norms[b] is the bucket's Euclidean norm, a code a sign bit above
 * |bits| - 1 bits (2 <= bits <= 16) of floor(s |v| / norm + u), where s = 2^(bits - 1) - 1 and u in [0, 1) is
 * ut_murmur3(i, seed) / 2^32, i counted over all of |values| (modulo 2^32), and cut to 24 bits. */
void ut_qsgd_encode(float *norms, uint32_t *codes, const float *values, size_t n, size_t bucket, unsigned bits,
                    uint32_t seed);
/* values[i] = level * (norm / s), with the code's sign. */
void ut_qsgd_decode(float *values, const float *norms, const uint32_t *codes, size_t n, size_t bucket, unsigned bits);

#endif
