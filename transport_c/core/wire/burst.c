/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire/burst.h"

void ut_burst_begin(ut_burst *b, const ut_addr *to, unsigned port, const ut_seal *seal, uint64_t number)
{
    b->to = *to;
    b->port = port;
    b->segment_bytes = b->segments = b->bytes = b->iovs = 0;
    b->seal = seal;
    b->number = number;
}

static uint32_t overhead_of(const ut_burst *b)
{
    return ut_seal_overhead(b->seal ? b->seal->cipher : NULL);
}

void ut_data_append(ut_burst *b, const ut_data *h, const uint8_t *payload, size_t len)
{
    uint8_t *header = b->headers + (size_t)b->segments * UT_DATA_HEADER;
    ut_data_encode(header, h, len);
    b->iov[b->iovs++] = (ut_iov){header, UT_DATA_HEADER};
    b->iov[b->iovs++] = (ut_iov){payload, len};
    b->segments++;
    b->bytes += ut_wire_packet((uint32_t)len, overhead_of(b));
}

void ut_grant_append(ut_burst *b, const ut_grant *g)
{
    ut_grant_encode(b->packet, g);
    b->iov[0] = (ut_iov){b->packet, UT_GRANT_BYTES};
    b->iovs = b->segments = 1;
    b->bytes = b->segment_bytes = UT_GRANT_BYTES + overhead_of(b);
}

void ut_feedback_append(ut_burst *b, const ut_feedback *f)
{
    size_t len = ut_feedback_encode(b->packet, f);
    b->iov[0] = (ut_iov){b->packet, len};
    b->iovs = b->segments = 1;
    b->bytes = b->segment_bytes = (uint32_t)len + overhead_of(b);
}
