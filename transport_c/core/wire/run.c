/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire/run.h"

#include "core/wire/words.h"
#include "kernels/kernels.h"

void ut_run_begin(ut_data_run *r, const ut_data *h, const uint8_t *packet, size_t stride)
{
    assert(h->payload == packet + UT_DATA_HEADER);
    r->first = *h;
    r->packet = packet;
    r->stride = stride;
    r->packets = 1;
    r->payload_crc[0] = h->payload_crc;
}

bool ut_run_goes_on(const ut_data_run *r, const uint8_t *packet, size_t len)
{
    assert(r->packets >= 1 && r->packets <= UT_RUN_MOST);
    if (r->packets == UT_RUN_MOST || len != UT_DATA_HEADER + r->first.payload_len ||
        packet != r->packet + r->packets * r->stride)
        return false;
    const uint8_t *before = packet - r->stride;
    return ut_word_at(packet, UT_WORD_KIND) == ut_word_at(before, UT_WORD_KIND) &&
           ut_word_at(packet, UT_WORD_OP) == ut_word_at(before, UT_WORD_OP) &&
           (ut_word_at(packet, UT_WORD_NUMBER) & UT_NO_CHECKSUM) ==
               ut_next_number(ut_word_at(before, UT_WORD_NUMBER) & UT_NO_CHECKSUM) &&
           ut_word_at(packet, UT_WORD_ULTIMA) ==
               ut_next_ultima(ut_word_at(before, UT_WORD_ULTIMA), r->first.payload_len);
}

int ut_run_add(ut_data_run *r, enum ut_check check)
{
    assert(r->packets >= 1 && r->packets < UT_RUN_MOST);
    const uint8_t *packet = r->packet + r->packets * r->stride;
    const size_t len = r->first.payload_len;
    const uint32_t crc = ut_crc32c(0, packet + UT_DATA_HEADER, len);
    const ut_data_form f = ut_form_at(packet);
    if (ut_is_spoilt(packet, ut_crc32c_headed(f.word, crc, len), check))
        return UT_ERR_CHECKSUM;
    r->payload_crc[r->packets++] = crc;
    return UT_OK;
}

ut_data ut_run_packet(const ut_data_run *r, uint32_t i)
{
    assert(i < r->packets);
    ut_data h = r->first;
    h.pn += i;
    h.ultima.offset += i * (uint32_t)h.payload_len;
    h.payload += i * r->stride;
    h.payload_crc = r->payload_crc[i];
    return h;
}
