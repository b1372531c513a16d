/* SPDX-License-Identifier: Apache-2.0
 *
 * Feedback that comes behind data, at the data port: it is taken as at its own port, after what came before it, and
 * the feedback port takes no data. The engines of engines.h get half of all feedback that way, in every other test.
 */
#include "engines.h"

enum { OP = 0, HELD = UT_DATA_HEADER + 1440 };

static ut_feedback last;     /* from host 1 to host 0 */
static uint8_t kept[HELD];   /* a packet of host 1's result, the newest of its number */
static uint32_t kept_offset; /* in the bucket; UINT32_MAX: none yet */

/* Host 0 never gets one slot of the result. */
static void hold_back(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    ut_data h;
    if (from != 1 || to != 0)
        return;
    if (port == UT_PORT_FEEDBACK && ut_wire_kind(packet, len) == UT_KIND_GRANT)
        return;
    if (port == UT_PORT_FEEDBACK) {
        CHECK_EQ(ut_feedback_decode(&last, packet, len, UT_CHECK_SUM), UT_OK);
        return;
    }
    CHECK_EQ(ut_data_decode(&h, packet, len, UT_CHECK_SUM), UT_OK);
    if (h.stage != 2 || len != HELD || (kept_offset != UINT32_MAX && h.ultima.offset != kept_offset))
        return;
    kept_offset = h.ultima.offset;
    memcpy(kept, packet, len);
    packet[len - 1] ^= 1;
}

static void call(void)
{
    for (uint32_t h = 0; h < n; h++) {
        for (unsigned i = 0; i < ELEMENTS; i++)
            ((float *)(void *)hosts[h].arena)[i] = (float)((1u << h) + i);
        ut_submission s = {.op_seq = OP,
                           .count = ELEMENTS,
                           .deadline_ns = now + 5 * UT_SECOND,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED};
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
    }
}

static void begin_held(void)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR};
    n = 2;
    kept_offset = UINT32_MAX;
    begin(tar);
    change = hold_back;
    call();
    run(now + 100 * UT_MS);
    CHECK(kept_offset != UINT32_MAX);
}

/* The data of an aggregate is taken before the feedback at its end, which may say that no more of it is to come. */
static void beside__data_before_it_counts(void)
{
    uint8_t aggregate[HELD + HELD];
    ut_receipt r = {0};
    begin_held();
    CHECK_EQ(ut_ring_take_completion(&hosts[0].submissions, &hosts[0].completions, &r), 0);
    ut_feedback f = last;
    f.number++;
    f.tx_floor = OP + 1; /* host 1 sends nothing more of the op */
    f.records = 0;
    memcpy(aggregate, kept, HELD);
    size_t len = HELD + ut_feedback_encode(aggregate + HELD, &f);
    CHECK_LE(len, sizeof aggregate);
    ut_engine_input(hosts[0].engine, UT_PORT_DATA, aggregate, len, HELD, false, now);
    run(now + UT_MS);
    r = receipt(0);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.bytes_missing, 0);
    for (unsigned i = 0; i < ELEMENTS; i++)
        CHECK_EQ(((float *)(void *)hosts[0].arena)[i], 3 + 2 * i);
    end();
}

/* The other port is for short packets that must not wait behind data. */
static void beside__data_is_refused_at_the_feedback_port(void)
{
    ut_stats was, is;
    begin_held();
    ut_engine_stats(hosts[0].engine, &was);
    ut_engine_input(hosts[0].engine, UT_PORT_FEEDBACK, kept, HELD, 0, false, now);
    ut_engine_stats(hosts[0].engine, &is);
    CHECK_EQ(is.malformed - was.malformed, 1);
    CHECK_EQ(is.data_used, was.data_used);
    ut_engine_input(hosts[0].engine, UT_PORT_DATA, kept, HELD, 0, false, now);
    ut_engine_stats(hosts[0].engine, &is);
    CHECK_EQ(is.data_used - was.data_used, 1);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(beside__data_before_it_counts);
    RUN(beside__data_is_refused_at_the_feedback_port);
    return check_end();
}
