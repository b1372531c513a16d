/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of ascending indices as bytes, and back. Each step depends on the one before, so plain C serves all CPUs.
 */
#include "sparse.h"

size_t ut_ascending(const uint32_t *x, size_t n, uint64_t end)
{
    if (n == 0)
        return 0;
    if (x[0] >= end)
        return 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] <= x[i - 1] || x[i] >= end)
            return i;
    return n;
}

void ut_bitmap_encode(uint8_t *out, const uint32_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[x[i] >> 3] |= (uint8_t)(1u << (x[i] & 7));
}

int ut_bitmap_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in)
{
    size_t found = 0;
    const uint64_t len = (end + 7) / 8;
    for (uint64_t at = 0; at < len; at += 8) {
        uint64_t word = 0;
        memcpy(&word, in + at, UT_MIN2(len - at, (uint64_t)8));
        for (; word; word &= word - 1) {
            const uint64_t index = at * 8 + (unsigned)__builtin_ctzll(word);
            if (found == n || index >= end)
                return UT_ERR_MALFORMED;
            x[found++] = (uint32_t)index;
        }
    }
    return found == n ? UT_OK : UT_ERR_MALFORMED;
}

static uint8_t *put(uint8_t *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

/* The number at *in, which moves behind it; UINT64_MAX if it does not end before |end| or has more than 35 bits. */
static uint64_t get(const uint8_t **in, const uint8_t *end)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 35 && *in < end; shift += 7) {
        const uint8_t byte = *(*in)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    return UINT64_MAX;
}

size_t ut_gaps_encode(uint8_t *out, const uint32_t *x, size_t n)
{
    uint8_t *p = out;
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        p = put(p, x[i] - next);
        next = x[i] + 1;
    }
    return (size_t)(p - out);
}

int ut_gaps_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in, size_t len)
{
    const uint8_t *const stop = in + len;
    uint64_t next = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t gap = get(&in, stop);
        if (gap >= end || next + gap >= end)
            return UT_ERR_MALFORMED;
        x[i] = (uint32_t)(next + gap);
        next += gap + 1;
    }
    return in == stop ? UT_OK : UT_ERR_MALFORMED;
}

size_t ut_runs_encode(uint8_t *out, const uint32_t *x, size_t n, uint64_t end)
{
    if (end == 0)
        return 0;
    uint8_t *p = out;
    uint64_t done = 0; /* elements that are told */
    *p++ = n > 0 && x[0] == 0;
    for (size_t i = 0; i < n;) {
        if (x[i] > done)
            p = put(p, x[i] - done);
        const size_t first = i;
        for (i++; i < n && x[i] == x[i - 1] + 1; i++)
            continue;
        p = put(p, i - first);
        done = (uint64_t)x[i - 1] + 1;
    }
    if (done < end)
        p = put(p, end - done);
    return (size_t)(p - out);
}

int ut_runs_decode(uint32_t *x, size_t n, uint64_t end, const uint8_t *in, size_t len)
{
    const uint8_t *const stop = in + len;
    uint64_t done = 0;
    size_t found = 0;
    if (end == 0)
        return len == 0 && n == 0 ? UT_OK : UT_ERR_MALFORMED;
    if (len == 0 || in[0] > 1)
        return UT_ERR_MALFORMED;
    for (bool set = *in++; done < end; set = !set) {
        const uint64_t run = get(&in, stop);
        if (run == 0 || run > end - done || (set && run > n - found))
            return UT_ERR_MALFORMED;
        for (uint64_t i = 0; set && i < run; i++)
            x[found++] = (uint32_t)(done + i);
        done += run;
    }
    return in == stop && found == n ? UT_OK : UT_ERR_MALFORMED;
}

void ut_bits_pack(uint8_t *out, const uint32_t *values, size_t n, unsigned width)
{
    uint64_t held = 0;
    unsigned bits = 0;
    assert(width <= 32);
    for (size_t i = 0; i < n; i++) {
        held |= (uint64_t)values[i] << bits;
        bits += width;
        for (; bits >= 8; bits -= 8, held >>= 8)
            *out++ = (uint8_t)held;
    }
    if (bits > 0)
        *out = (uint8_t)held;
}

void ut_bits_unpack(uint32_t *values, size_t n, unsigned width, const uint8_t *in)
{
    uint64_t held = 0;
    unsigned bits = 0;
    const uint32_t mask = (uint32_t)((1ULL << width) - 1);
    assert(width <= 32);
    for (size_t i = 0; i < n; i++) {
        for (; bits < width; bits += 8)
            held |= (uint64_t)*in++ << bits;
        values[i] = (uint32_t)held & mask;
        held >>= width;
        bits -= width;
    }
}

int64_t ut_prefix_encode(uint8_t *out, const uint32_t *codes, const uint8_t *in, size_t n)
{
    uint8_t *p = out;
    uint64_t held = 0; /* its lowest |bits| bits are not written yet */
    unsigned bits = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t length = codes[in[i]] >> 16;
        if (length == 0 || length > 16)
            return UT_ERR_ARGUMENT;
        held = held << length | (codes[in[i]] & 0xffff);
        bits += length;
        for (; bits >= 8; bits -= 8)
            *p++ = (uint8_t)(held >> (bits - 8));
    }
    if (bits > 0)
        *p++ = (uint8_t)(held << (8 - bits));
    return p - out;
}

int ut_prefix_decode(uint8_t *out, size_t n, const uint16_t *table, unsigned bits, const uint8_t *in, size_t len)
{
    const uint8_t *const stop = in + len;
    uint64_t held = 0;
    unsigned have = 0;    /* bits of |held| that count */
    unsigned padding = 0; /* of them, those that were put behind the end */
    assert(bits > 0 && bits <= 16);
    for (size_t i = 0; i < n; i++) {
        for (; have < bits; have += 8) {
            held = held << 8 | (in < stop ? *in : 0);
            padding += in < stop ? 0 : 8;
            in += in < stop;
        }
        const uint16_t found = table[held >> (have - bits) & ((1u << bits) - 1)];
        const unsigned length = found >> 8;
        if (length == 0 || length > bits || length + padding > have)
            return UT_ERR_MALFORMED;
        out[i] = (uint8_t)found;
        have -= length;
    }
    /* Less than a byte of real bits is left, and those are zero. */
    const unsigned real = have - padding;
    return in == stop && real < 8 && (held >> padding & ((1u << real) - 1)) == 0 ? UT_OK : UT_ERR_MALFORMED;
}
