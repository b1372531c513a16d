/* SPDX-License-Identifier: Apache-2.0
 *
 * One word of a lie from a peer, or in its name, with the right connection id and checksum: whatever it says, the host
 * that hears it lives, tells the daemon where no honest peer can have said it, and is whole again with a new path.
 */
#include "engines.h"

#include "core/wire/packets.h"

enum { HOSTS = 3, LIAR = 1, OPS = 6 };

static const struct lie *told; /* what host LIAR says to host 0 next; NULL: the truth */
static unsigned lies;

static struct lie {
    const char *what;
    uint32_t port;
    void (*feedback)(ut_feedback *f);
    void (*data)(ut_data *h);
    bool violation; /* no honest peer can have said it */
} rows[];

static void number_far(ut_feedback *f)
{
    f->number += (1u << 31) - 2;
}
static void number_near(ut_feedback *f)
{
    f->number += 5000;
}
static void grant_all(ut_feedback *f)
{
    f->grant = UINT64_MAX;
}
static void grant_much(ut_feedback *f)
{
    f->grant = 1ull << 40;
}
static void acks_unsent(ut_feedback *f)
{
    f->highest_pn += 100000;
    f->ack_words = f->ack_words ? f->ack_words : 1;
    memset(f->ack, 0xff, sizeof f->ack);
}
static void rx_floor_far(ut_feedback *f)
{
    f->rx_floor = UINT64_MAX;
}
static void tx_floor_far(ut_feedback *f)
{
    f->tx_floor = 1ull << 63;
}
static void record_far(ut_feedback *f)
{
    f->records = 1;
    f->record[0] = (ut_record){.op_seq = 1ull << 63, .dtype = UT_FLOAT32, .redop = UT_SUM, .mode = UT_BOUNDED};
}
static void record_ahead(ut_feedback *f) /* it would block every fourth op until the job had come there */
{
    f->records = 1;
    f->record[0] = (ut_record){.op_seq = 2 + 40 * UT_OPS_MAX, .dtype = UT_FLOAT32, .redop = UT_SUM, .mode = UT_BOUNDED};
}
static void losses_of_all(ut_feedback *f)
{
    f->loss = UINT16_MAX;
}
static void epoch_of_none(ut_feedback *f) /* of an op that runs */
{
    for (unsigned i = 0; i < f->records; i++)
        f->record[i].epoch ^= 1ull << 40;
}
static void held_for_ever(ut_feedback *f)
{
    f->hold_us = UINT32_MAX;
}
static void marked_for_ever(ut_feedback *f)
{
    f->ce_packets = f->kernel_drops = UINT32_MAX;
}
static void number_of_packet(ut_data *h)
{
    h->pn += 1u << 31;
}
static void number_of_packet_near(ut_data *h)
{
    h->pn += UT_PACKET_JUMP_MAX;
}
static void op_far(ut_data *h)
{
    h->op_seq += (1u << 31) - 2;
}
static void op_near(ut_data *h)
{
    h->op_seq += UT_EARLY_MAX;
}
static void ranks_of_all(ut_data *h)
{
    h->coverage = HOSTS;
}
static void ranks_of_nobody(ut_data *h)
{
    h->coverage = UT_COVERAGE_MAX;
}
static void offset_far(ut_data *h)
{
    h->ultima.offset = UINT32_MAX - 3;
}

static struct lie rows[] = {
    {"a feedback number nearly half of all numbers on", UT_PORT_FEEDBACK, number_far, NULL, true},
    {"a feedback number some thousands on", UT_PORT_FEEDBACK, number_near, NULL, false},
    {"the largest grant", UT_PORT_FEEDBACK, grant_all, NULL, true},
    {"a grant of a terabyte", UT_PORT_FEEDBACK, grant_much, NULL, true},
    {"packets acknowledged that were never sent", UT_PORT_FEEDBACK, acks_unsent, NULL, true},
    {"nothing wanted of any op", UT_PORT_FEEDBACK, rx_floor_far, NULL, true},
    {"nothing more sent of half of all ops", UT_PORT_FEEDBACK, tx_floor_far, NULL, true},
    {"a record of op 2^63", UT_PORT_FEEDBACK, record_far, NULL, true},
    {"a record some ops ahead", UT_PORT_FEEDBACK, record_ahead, NULL, false},
    {"that it misses more than all", UT_PORT_FEEDBACK, losses_of_all, NULL, false},
    {"records of an epoch that is none", UT_PORT_FEEDBACK, epoch_of_none, NULL, false},
    {"a feedback held for an hour", UT_PORT_FEEDBACK, held_for_ever, NULL, false},
    {"all packets marked and dropped", UT_PORT_FEEDBACK, marked_for_ever, NULL, false},
    {"a packet number half of all numbers on", UT_PORT_DATA, NULL, number_of_packet, true},
    {"a packet number just beyond what can be", UT_PORT_DATA, NULL, number_of_packet_near, true},
    {"data of an op half of all ops on", UT_PORT_DATA, NULL, op_far, false},
    {"data to be kept for a far op", UT_PORT_DATA, NULL, op_near, false},
    {"a contribution of all ranks", UT_PORT_DATA, NULL, ranks_of_all, false},
    {"a contribution of more ranks than there are", UT_PORT_DATA, NULL, ranks_of_nobody, false},
    {"data at the end of all buckets", UT_PORT_DATA, NULL, offset_far, false},
};

/* Once, on the way from LIAR to host 0. What does not fit into the datagram's length is told with the next one. */
static void tell(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    if (!told || from != LIAR || to != 0 || port != told->port)
        return;
    if (port == UT_PORT_FEEDBACK) {
        static ut_feedback f;
        static uint8_t lie[UT_FEEDBACK_MAX];
        CHECK_EQ(ut_feedback_decode(&f, packet, len, UT_CHECK_SUM), UT_OK);
        uint8_t records = f.records;
        told->feedback(&f);
        if (f.records != records && records == 0)
            return;
        f.records = records;
        if (ut_feedback_encode(lie, &f) != len)
            return;
        memcpy(packet, lie, len);
    } else {
        ut_data h;
        CHECK_EQ(ut_data_decode(&h, packet, len, UT_CHECK_SUM), UT_OK);
        told->data(&h);
        ut_data_encode(packet, &h, h.payload_len);
    }
    told = NULL;
    lies++;
}

static void call(uint64_t op)
{
    for (uint32_t h = 0; h < n; h++) {
        float *a = (float *)hosts[h].arena;
        for (unsigned i = 0; i < ELEMENTS; i++)
            a[i] = (float)(1u << h);
        ut_submission s = {.op_seq = op,
                           .count = ELEMENTS,
                           .deadline_ns = now + 300 * UT_MS,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED};
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
    }
    run(now + 400 * UT_MS);
}

/* What the daemons do when one of them hears of a violation. */
static void make_new_path(uint32_t a, uint32_t b)
{
    ut_engine_peer_absent(hosts[a].engine, 0, b, now);
    ut_engine_peer_absent(hosts[b].engine, 0, a, now);
    new_path(a, b);
}

static unsigned violations(uint32_t h, uint32_t of)
{
    unsigned count = 0;
    for (ut_event e; ut_engine_poll_event(hosts[h].engine, &e);)
        count += e.kind == UT_EVENT_VIOLATION && e.host == of;
    return count;
}

static bool is_whole(uint32_t h)
{
    ut_receipt r = receipt(h);
    return r.status == UT_COMPLETE && ((float *)hosts[h].arena)[ELEMENTS - 1] == 7;
}

/* Every honest result is the sum of honest contributions; two ops after the lie all are whole. */
static void one_lie(const struct lie *row)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR, UT_TAR};
    n = HOSTS;
    begin(tar);
    change = tell;
    lies = 0;
    for (uint64_t op = 0; op < 2; op++) {
        call(op);
        for (uint32_t h = 0; h < n; h++)
            CHECK_MSG(is_whole(h), "%s: op %" PRIu64 " before it, host %u", row->what, op, h);
    }
    told = row;
    call(2);
    for (uint32_t h = 0; h < n; h++)
        (void)receipt(h);
    CHECK_MSG(lies == 1, "%s: never told", row->what);
    told = NULL;
    /* Who hears it, or whom it makes acknowledge what was never sent: the path ends on one side and begins anew. */
    unsigned found = violations(0, LIAR) + violations(LIAR, 0);
    CHECK_MSG(!row->violation || found, "%s: nobody minds", row->what);
    CHECK_MSG(found <= 2, "%s: %u violations", row->what, found);
    if (found)
        make_new_path(0, LIAR);
    CHECK_MSG(ut_engine_next_op_seq(hosts[0].engine, 0) < 3 + UT_LAG_MAX, "%s: op %" PRIu64 " comes next", row->what,
              ut_engine_next_op_seq(hosts[0].engine, 0));
    unsigned whole = 0;
    for (uint64_t op = 3; op < 3 + OPS; op++) {
        call(op);
        unsigned hosts_whole = 0;
        for (uint32_t h = 0; h < n; h++)
            hosts_whole += is_whole(h);
        whole = hosts_whole == n ? whole + 1 : 0;
        if (violations(0, LIAR) + violations(LIAR, 0))
            make_new_path(0, LIAR);
    }
    CHECK_MSG(whole >= OPS - 2, "%s: only the last %u of %u ops were whole", row->what, whole, OPS);
    end();
}

static void peer__one_lie_is_not_for_good(void)
{
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        one_lie(&rows[i]);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(peer__one_lie_is_not_for_good);
    return check_end();
}
