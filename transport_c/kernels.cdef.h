/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of the kernels (kernels/kernels.h, kernels/outer.h, kernels/quant.h, kernels/sparse.h), as
 * engine.cdef.h is for the engine.
 */

#define UT_BLOOM_HASHES_MAX ...
int ut_kernels_init(int most);
uint32_t ut_crc32c(uint32_t crc, const void *data, size_t len);
typedef struct ut_selection {
    uint32_t above;
    size_t ties;
    uint32_t *indices;
    float *values;
    size_t room;
} ut_selection;
size_t ut_keep(float *kept, const float *add, size_t n, const ut_selection *s);
size_t ut_keep_momentum(float *kept, float *velocity, const float *add, float momentum, size_t n,
                        const ut_selection *s);
void ut_magnitudes(const float *p, size_t n, uint32_t prefix, unsigned shift, unsigned bits, uint64_t *counts);
size_t ut_scatter_add(float *out, size_t end, const uint32_t *x, const float *v, size_t n);
size_t ut_ascending(const uint32_t *x, size_t n, uint64_t end);
void ut_bitmap_encode(uint8_t *out, const uint32_t *x, size_t n);
int ut_bitmap_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in);
size_t ut_gaps_encode(uint8_t *out, const uint32_t *x, size_t n);
int ut_gaps_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in, size_t len);
size_t ut_runs_encode(uint8_t *out, const uint32_t *x, size_t n, uint64_t end);
int ut_runs_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in, size_t len);
void ut_bits_pack(uint8_t *out, const uint32_t *values, size_t n, unsigned width);
void ut_bits_unpack(uint32_t *values, size_t n, unsigned width, const uint8_t *in);
int64_t ut_prefix_encode(uint8_t *out, const uint32_t *codes, const uint8_t *in, size_t n);
int ut_prefix_decode(uint8_t *out, size_t n, const uint16_t *table, unsigned bits, const uint8_t *in, size_t len);
uint32_t ut_murmur3(uint32_t x, uint32_t seed);
void ut_bloom_insert(uint8_t *bits, uint32_t m, uint32_t k, const uint32_t *x, size_t n);
size_t ut_bloom_members(const uint8_t *bits, uint32_t m, uint32_t k, uint64_t end, uint32_t *out, size_t room);
void ut_bloom_choose(uint8_t *chosen, const uint32_t *p, size_t n, uint32_t m, uint32_t k, size_t r, uint64_t seed,
                     uint32_t *scratch);
size_t ut_bloom_choose_words(size_t n, uint32_t m, uint32_t k);
void ut_qsgd_encode(float *norms, uint32_t *codes, const float *values, size_t n, size_t bucket, unsigned bits,
                    uint32_t seed);
void ut_qsgd_decode(float *values, const float *norms, const uint32_t *codes, size_t n, size_t bucket, unsigned bits);

typedef struct ut_outer_rows {
    float *data;
    size_t range, row;
    size_t n;
} ut_outer_rows;
typedef struct ut_outer_bounds {
    const float *bounds;
    size_t near;
    float most;
} ut_outer_bounds;
void ut_outer_give(const ut_outer_rows *r, const float *theta, float *sent, float weight, const ut_outer_bounds *b);
typedef struct ut_outer_rule {
    float divisor, lr, momentum;
    size_t plain_from;
} ut_outer_rule;
void ut_outer_step(const ut_outer_rows *r, float *theta, float *momentum, const ut_outer_rule *rule);
void ut_outer_follow(float *local, const float *sent, const float *before, const float *theta, size_t n, size_t range,
                     size_t from, const bool *mine, float keep);
void ut_outer_squares(const float *x, size_t n, size_t range, double *squares);
size_t ut_outer_nonfinite(const float *x, size_t n);

#define UT_QUANT_ELEMENTS_MAX ...
uint32_t ut_quant_elements(unsigned form, uint32_t payload);
uint32_t ut_quant_bytes(unsigned form, uint32_t elements);
uint64_t ut_quant_key(uint64_t op_seq, unsigned stage, unsigned host, unsigned chunk, uint32_t slot);
typedef struct ut_quant_rounding {
    uint64_t key;
    bool nearest;
    float divisor;
} ut_quant_rounding;
typedef struct ut_quant_told {
    uint32_t nonfinite;
    double error;
} ut_quant_told;
uint32_t ut_quant_encode(unsigned form, uint8_t *out, const float *x, float *residual, uint32_t n,
                         const ut_quant_rounding *r, ut_quant_told *told);
bool ut_quant_takes(unsigned form, const uint8_t *slot, uint32_t length, uint32_t n);
void ut_quant_decode(unsigned form, float *out, const uint8_t *slot, uint32_t n);
