/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of sparse tensors: which elements of a range are not zero, and their values, in the bytes of one packet. A
 * block decodes alone, and says which range it covers, so that a lost packet loses its own range and nothing else.
 *
 * An *index* names a *unit* of |group| elements (rows of an embedding), or one element. A *granule* is the least range:
 * as few whole units as have 16 elements or more, which are 64 bytes of float32. A chunk is cut into granules from its
 * start, and the last one may be shorter.
 *
 *   0  1  low nibble: how indices are told (enum ut_block_index); high nibble: form of the values (enum ut_value_form)
 *   1  1  bit 0: the last block of its chunk; bit 1: it says who is in it; high nibble: low bits of an Elias-Fano index
 *   2  2  entries, little-endian as all numbers here; 0 in a dense block
 *   4  4  first granule, counted from the chunk's start
 *   8  4  granules
 *  12     float8: its scale (float32); then who is in it; then the index; then the values; of int8 a quantised slot
 *
 * Who is in it, of results that not all hosts are in: u16 runs, then for each u16 granules and u64 the hosts that are
 * in all of them, a bit each. The runs cover the range. A block without them has all hosts in it.
 *
 * Index: nothing (dense), a bit for each unit of the range (bitmap), or Elias-Fano: the low bits of every entry's index
 * (counted from the range's start), lowest bit first, in whole bytes; then entry i's high bits h as a one at bit h + i.
 * What follows the values is padding, and is not looked at.
 */
#ifndef UT_BLOCK_H
#define UT_BLOCK_H

#include "core/base/ut.h"

enum ut_block_index { UT_INDEX_DENSE, UT_INDEX_BITMAP, UT_INDEX_ELIAS_FANO, UT_INDEXES_END };
/* float8 is e4m3 (OCP 8-bit floating point 1.0: 448 at most, no infinity), times a power of two. These are the forms
 * of what ranks give. */
enum ut_value_form { UT_VALUE_FLOAT32, UT_VALUE_FLOAT16, UT_VALUE_BFLOAT16, UT_VALUE_FLOAT8, UT_VALUE_FORMS_END };
/* Answers may travel as int8, too: all values of a block are then one slot of kernels/quant.h, rounded at random by the
 * shape's key. */
enum { UT_VALUE_INT8 = 5, UT_VALUE_ALL_END };
enum {
    UT_BLOCK_HEADER = 12,
    UT_BLOCK_LAST = 1,
    UT_BLOCK_WHO = 2,
    UT_BLOCK_RUN = 10, /* bytes */
    UT_BLOCK_RUN_GRANULES = UINT16_MAX,
    UT_BLOCK_ELEMENTS_MAX = 1 << 20, /* of a dense chunk: no turn looks at more, which takes about a millisecond */
    UT_BLOCK_GROUP_MAX = 256,
    UT_BLOCK_VALUES_MAX = UT_PACKET_MAX, /* of a byte each */
    UT_GRANULE_ELEMENTS = 16,            /* the least */
    UT_ANSWER_VALUE_BYTES = 1,           /* the least that a value has in the forms in which results travel */
    /* Runs of one granule each that fit into a block beside their values. */
    UT_BLOCK_RUNS_MAX = UT_PACKET_MAX / (UT_GRANULE_ELEMENTS * UT_ANSWER_VALUE_BYTES + UT_BLOCK_RUN),
};

/* A chunk. */
typedef struct ut_block_shape {
    uint32_t units;
    uint32_t group; /* elements of a unit, 1 to UT_BLOCK_GROUP_MAX */
    uint8_t form;   /* enum ut_value_form, or UT_VALUE_INT8 */
    uint64_t key;   /* of the draws with which int8 values are encoded: ut_quant_key of the block's slot */
} ut_block_shape;

/* Which hosts are in the granules of a range, run by run. None: all hosts are in all of it. */
typedef struct ut_block_run {
    uint32_t granules; /* 1 to UT_BLOCK_RUN_GRANULES */
    uint64_t hosts;
} ut_block_run;
typedef struct ut_block_who {
    uint32_t runs;
    ut_block_run run[UT_BLOCK_RUNS_MAX];
} ut_block_who;

/* A block that was checked. */
typedef struct ut_block {
    uint32_t first, granules;
    uint32_t base, units; /* the range: units from the chunk's start on */
    uint32_t entries;     /* of a dense block all units */
    uint8_t index;        /* enum ut_block_index */
    bool last;
    float scale;
    uint32_t runs;                    /* 0: all hosts are in it */
    const uint8_t *who, *values;      /* in the packet */
    uint32_t at[UT_BLOCK_VALUES_MAX]; /* per entry: its unit, from the range's start on; not of a dense block */
} ut_block;

size_t ut_value_bytes(unsigned form);
/* Bytes of |n| values in one block. */
size_t ut_values_bytes(unsigned form, size_t n);
/* Units of a granule, granules of a chunk, and the most bytes that a block of one granule takes that says who is in it.
 */
uint32_t ut_granule_units(uint32_t group);
uint32_t ut_block_granules(const ut_block_shape *s);
size_t ut_block_least(uint32_t group, unsigned form);
/* The granules that fit into a block of |payload| bytes (at least ut_block_least) whatever is in them, and the most
 * blocks that a chunk takes. */
uint32_t ut_block_fit(uint32_t group, unsigned form, size_t payload);
uint32_t ut_block_count_most(const ut_block_shape *s, size_t payload);

/* The scale of float8 values of which |most| is the largest finite magnitude: the least power of two, at least 2^-117,
 * at which 448 stands for |most| or more. */
float ut_float8_scale(float most);
float ut_largest_finite(const float *x, size_t n);
/* |x| as it arrives when it travels as |form|. |scale| counts for float8 alone. */
float ut_value_rounded(float x, unsigned form, float scale);

/* Entries as a trainer gives them: |n| indices of 32 bits, ascending, and a group of float32 for each; of no alignment,
 * and they may change while they are read, so that what was checked holds for the copy alone: an index is read by
 * ut_entries_index and nowhere else. Functions go on at entry |next|, whose index must be |more| or higher. */
typedef struct ut_entries {
    const uint8_t *names, *values;
    uint32_t n, next, more;
} ut_entries;
/* The index of entry |i|, read once; UINT32_MAX if it is not in [|least|, |end|). Without `volatile` a compiler might
 * read it a second time after it was checked. */
static inline uint32_t ut_entries_index(const ut_entries *e, uint32_t i, uint32_t least, uint32_t end)
{
    typedef struct {
        uint32_t index;
    } __attribute__((packed, may_alias)) entry;
    uint32_t index = ((const volatile entry *)(const void *)e->names)[i].index;
    return index >= least && index < end ? index : UINT32_MAX;
}
/* Passes over entries, at most |most|, whose indices ascend and are below |end|. Returns how many. */
uint32_t ut_entries_skip(ut_entries *e, uint32_t end, uint32_t most);
/* Adds entries, at most |most|, rounded to |s|->form, to |out|, whose first unit has the index |base|. Stops at an
 * index that is not above those before, or not of |out|. Returns how many it added. */
uint32_t ut_entries_add(ut_entries *e, float *out, const ut_block_shape *s, uint32_t base, uint32_t most, float scale);

/* Makes what is sent of |n| results: each divided by |divisor|, rounded once to |form|, and 0 where it was -0. Returns
 * those that are NaN or infinite. */
size_t ut_sparse_finish(float *x, size_t n, uint32_t divisor, unsigned form);

/* Encodes the chunk from granule |first| on, which is below its end, into at most |room| bytes (at least
 * ut_block_least), and UT_BLOCK_ELEMENTS_MAX elements; those that are zero need no entry. Returns the bytes, and the
 * granules that they cover. */
size_t ut_block_encode(uint8_t *out, size_t room, const float *chunk, const ut_block_shape *s, uint32_t first,
                       float scale, uint32_t *ret_granules);
/* The same of results that not all hosts are in: |who| tells of the granules from |first| on, of which none but those
 * are taken. If it has more runs than one, it tells of ut_block_fit granules at most but for its last run. */
size_t ut_block_encode_who(uint8_t *out, size_t room, const float *chunk, const ut_block_shape *s, uint32_t first,
                           const ut_block_who *who, uint32_t *ret_granules);
/* The same block from the entries of the chunk, whose first unit has the index |base|; |e| stands at the first entry of
 * granule |first|, and goes on behind the last one that is in the block. Granules without an entry cost nothing. */
size_t ut_block_encode_entries(uint8_t *out, size_t room, ut_entries *e, const ut_block_shape *s, uint32_t base,
                               uint32_t first, float scale, uint32_t *ret_granules);
/* Checks a block of a chunk |s|. UT_ERR_MALFORMED for all that ut_block_encode cannot have made of one. */
int ut_block_open(ut_block *ret, const uint8_t *in, size_t len, const ut_block_shape *s);
/* Run |i| of those that say who is in it. */
ut_block_run ut_block_run_at(const ut_block *b, uint32_t i);
/* Of forms in which ranks give. */
void ut_block_add(const ut_block *b, const ut_block_shape *s, float *chunk);
/* Puts the block in the place of its range. Returns the NaN and Inf elements of it; adds its digest, as below, to
 * |digest|: the chunk's first element has the number |start|. */
size_t ut_block_place(const ut_block *b, const ut_block_shape *s, float *chunk, uint64_t start, uint64_t *digest);
/* The digest of a tensor is the sum of one number for each element that is not zero, so that it does not depend on how
 * it was cut into blocks. This is that of |n| elements, of which the first has the number |first|. */
uint64_t ut_sparse_digest(const float *x, size_t n, uint64_t first);
/* What rounding did to the values of an int8 block, as ut_quant_told.error has it; 0 of other forms. */
double ut_block_error(const ut_block *b, const ut_block_shape *s);

#endif
