/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots as shapes: how many elements and bytes they have, what is taken for one, and the key of their draws.
 */
#include "quant.h"

#include "core/base/mix.h"
#include "quant_slot.h"

/* Whole blocks first, then what fits behind one scale more. */
uint32_t ut_quant_elements(unsigned form, uint32_t payload)
{
    assert(ut_quant_is_form(form));
    const uint32_t size = quant_block(form), block = 1 + quant_code_bytes(form, size);
    if (payload < UT_QUANT_HEADER)
        return 0;
    const uint32_t room = payload - UT_QUANT_HEADER, whole = room / block, left = room % block;
    const uint32_t eight = quant_code_bytes(form, 8), rest = left > 1 ? (left - 1) / eight * 8 : 0;
    return UT_MIN2(whole * size + rest, (uint32_t)UT_QUANT_ELEMENTS_MAX);
}

uint32_t ut_quant_bytes(unsigned form, uint32_t elements)
{
    assert(ut_quant_is_form(form));
    return UT_QUANT_HEADER + quant_blocks(form, elements) + quant_code_bytes(form, elements);
}

uint64_t ut_quant_key(uint64_t op_seq, unsigned stage, unsigned host, unsigned chunk, uint32_t slot)
{
    assert(stage < 4 && host < UT_HOSTS_MAX && chunk < 256);
    const uint64_t place = (uint64_t)stage << 62 | (uint64_t)host << 56 | (uint64_t)chunk << 48 | slot;
    return ut_mix(ut_mix(op_seq + 0x7175616e74ULL) ^ place);
}

bool ut_quant_takes(unsigned form, const uint8_t *slot, uint32_t length, uint32_t n)
{
    if (!ut_quant_is_form(form) || n > UT_QUANT_ELEMENTS_MAX || length < ut_quant_bytes(form, n))
        return false;
    if ((slot[0] & ~UT_QUANT_NAN) != form || slot[1] > UT_QUANT_EXPONENT_MAX)
        return false;
    for (uint32_t i = ut_quant_bytes(form, n); i < length; i++)
        if (slot[i])
            return false;
    return true;
}

double ut_quant_error(unsigned form, const uint8_t *slot, uint32_t n)
{
    float scale[QUANT_BLOCKS_MAX];
    for (uint32_t b = 0; b < quant_blocks(form, n); b++)
        scale[b] = quant_scale_at(slot, b);
    return quant_error(form, scale, n);
}
