/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire/burst.h"

#include "kernels/kernels.h"

void ut_burst_begin(ut_burst *b, const ut_addr *to, unsigned port, const ut_seal *seal, uint64_t number)
{
    assert(port <= UT_PORT_FEEDBACK && (!seal || seal->cipher));
    b->to = *to;
    b->port = port;
    b->segment_bytes = b->segments = b->bytes = 0;
    b->seal = seal;
    b->number = number;
}

void ut_data_append(ut_burst *b, ut_data_form *form, const uint8_t *payload, size_t len, const uint32_t *crc)
{
    assert(b->segments < UT_SEGMENTS_MAX);
    assert(b->bytes + ut_wire_packet((uint32_t)len, ut_burst_overhead(b)) <= UT_BURST_BYTES);
    uint8_t *packet = b->memory + b->bytes;
    const uint32_t copied = crc ? *crc : ut_crc32c_copy(packet + UT_DATA_HEADER, payload, len);
    if (crc)
        memcpy(packet + UT_DATA_HEADER, payload, len);
    ut_data_form_encode(packet, form, copied, len);
    b->segments++;
    b->bytes += ut_wire_packet((uint32_t)len, ut_burst_overhead(b));
}

static void only_segment(ut_burst *b, size_t len)
{
    assert(b->segments == 0 && len + ut_burst_overhead(b) <= UT_BURST_BYTES);
    b->segments = 1;
    b->bytes = b->segment_bytes = (uint32_t)len + ut_burst_overhead(b);
}

void ut_grant_append(ut_burst *b, const ut_grant *g)
{
    ut_grant_encode(b->memory, g);
    only_segment(b, UT_GRANT_BYTES);
}

void ut_feedback_append(ut_burst *b, const ut_feedback *f)
{
    only_segment(b, ut_feedback_encode(b->memory, f));
}

void ut_path_append(ut_burst *b, const ut_path *p)
{
    ut_path_encode(b->memory, p);
    only_segment(b, UT_PATH_BYTES);
}
