/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a data packet as four words of eight bytes, as they lie in memory, for packets.c and run.c alone. It is
 * read and written in these words, one by one: a CPU that reads what was just written in other parts waits until it has
 * reached the cache.
 */
#ifndef UT_WORDS_H
#define UT_WORDS_H

#include "core/wire/packets.h"

enum { UT_WORD_KIND, UT_WORD_NUMBER, UT_WORD_OP, UT_WORD_ULTIMA };
static const uint64_t UT_NO_CHECKSUM = UINT32_MAX; /* of the second one */
_Static_assert(UT_CHECKSUM_AT == 12, "the checksum is the second half of the second word");

/* A word from its first byte as the most significant one, and back. */
static inline uint64_t ut_swapped(uint64_t word)
{
    return __builtin_bswap64(word);
}

static inline uint64_t ut_word_at(const uint8_t *packet, unsigned i)
{
    uint64_t word;
    memcpy(&word, packet + i * sizeof word, sizeof word);
    return word;
}

static inline ut_data_form ut_form_at(const uint8_t *packet)
{
    return (ut_data_form){.word = {ut_word_at(packet, UT_WORD_KIND),
                                   ut_word_at(packet, UT_WORD_NUMBER) & UT_NO_CHECKSUM, ut_word_at(packet, UT_WORD_OP),
                                   ut_word_at(packet, UT_WORD_ULTIMA)}};
}

/* The two words that differ in the packet that follows one with |bytes| of payload: its number, and its offset. */
static inline uint64_t ut_next_number(uint64_t word)
{
    return ut_swapped(ut_swapped(word) + ((uint64_t)1 << 32));
}
static inline uint64_t ut_next_ultima(uint64_t word, size_t bytes)
{
    return ut_swapped(ut_swapped(word) + ((uint64_t)bytes << 24));
}

/* Whether the packet's checksum is to be compared, and is not |crc|. */
static inline bool ut_is_spoilt(const uint8_t *packet, uint32_t crc, enum ut_check check)
{
    uint32_t its;
    memcpy(&its, packet + UT_CHECKSUM_AT, sizeof its);
    return check == UT_CHECK_SUM && crc != __builtin_bswap32(its);
}

#endif
