/* SPDX-License-Identifier: Apache-2.0
 *
 * The hostile host of a world: its engine is honest code, and what leaves it is lied about before it enters the
 * network, with the right connection id and checksum, or sealed by its own keys. In each world it lies about some
 * things only (liar_plan.c), more or less often: one that lies about everything at once is found out at once.
 *
 * What it contributes is zero while it lies. So a sum tells of the honest hosts as ever, wherever it makes the others
 * put its bytes, and however many ranks it says are in them.
 */
#include "sim/world/liar.h"
#include "sim/world/far.h"
#include "sim/world/seal.h"

#include "core/path/parity.h"
#include "kernels/kernels.h"

/* ---- numbers ---- */

static uint64_t absurd(sim_rng *rng, uint64_t was)
{
    static const uint64_t tempting[] = {0,
                                        1,
                                        2,
                                        63,
                                        64,
                                        255,
                                        0xffff,
                                        0x7fffffff,
                                        0x80000000,
                                        UINT32_MAX,
                                        UINT64_C(1) << 32,
                                        UINT64_C(1) << 63,
                                        UINT64_MAX - 1,
                                        UINT64_MAX};
    unsigned shift = (unsigned)sim_below(rng, 64);
    switch (sim_below(rng, 5)) {
    case 0:
        return tempting[sim_below(rng, sizeof tempting / sizeof *tempting)];
    case 1:
        return was + 1 + sim_below(rng, 20);
    case 2:
        return was - 1 - sim_below(rng, 20);
    case 3:
        return was ^ UINT64_C(1) << shift;
    default:
        return sim_next(rng) >> shift;
    }
}

#define LIE(rng, field) ((field) = (__typeof__(field))absurd(rng, (uint64_t)(field)))

/* ---- feedback ---- */

static void lie_of_numbers(sim_rng *rng, ut_feedback *f)
{
    switch (sim_below(rng, 7)) {
    case 0:
        LIE(rng, f->number);
        break;
    case 1:
        LIE(rng, f->grant);
        break;
    case 2:
        LIE(rng, f->received);
        break;
    case 3:
        LIE(rng, f->rx_floor);
        break;
    case 4:
        LIE(rng, f->tx_floor);
        break;
    case 5:
        LIE(rng, f->state);
        break;
    default:
        LIE(rng, f->state_seen);
    }
}

static void lie_of_acks(sim_rng *rng, ut_feedback *f)
{
    switch (sim_below(rng, 8)) {
    case 0:
        LIE(rng, f->highest_pn);
        break;
    case 1:
        LIE(rng, f->ce_packets);
        break;
    case 2:
        LIE(rng, f->kernel_drops);
        break;
    case 3:
        LIE(rng, f->echo_us);
        break;
    case 4:
        LIE(rng, f->hold_us);
        break;
    case 5:
        LIE(rng, f->incast);
        break;
    case 6:
        f->ack_words = (uint8_t)sim_below(rng, UT_ACK_WORDS + 1);
        for (unsigned i = 0; i < f->ack_words; i++)
            f->ack[i] = sim_chance(rng, 500000) ? UINT64_MAX : sim_next(rng);
        break;
    default:
        if (f->ack_words)
            LIE(rng, f->ack[0]);
    }
}

/* Its number stays what it was, a note or a count; what the true collective says for itself goes. */
static void lie_of_collective(sim_rng *rng, ut_record *r)
{
    uint8_t to = (uint8_t)sim_below(rng, 8);
    uint64_t number = r->collective == UT_BARRIER ? r->alike.note : r->count;
    if (to == r->collective)
        return;
    r->collective = to;
    r->count = to == UT_BARRIER ? 0 : number;
    r->alike = (ut_alike){.note = to == UT_BARRIER ? number : 0};
}

/* Only a broadcast says a root. */
static void lie_of_root(sim_rng *rng, ut_record *r)
{
    uint8_t root = r->collective == UT_BROADCAST ? (uint8_t)r->alike.root : 0;
    LIE(rng, root);
    if (r->collective == UT_BROADCAST)
        r->alike.root = root;
}

static void lie_of_which_op(sim_rng *rng, ut_record *r)
{
    switch (sim_below(rng, 9)) {
    case 0:
        LIE(rng, r->op_seq);
        break;
    case 1:
        LIE(rng, *(r->collective == UT_BARRIER ? &r->alike.note : &r->count));
        break;
    case 2:
        LIE(rng, r->dtype);
        break;
    case 3:
        LIE(rng, r->redop);
        break;
    case 4:
        LIE(rng, r->mode);
        break;
    case 5:
        lie_of_collective(rng, r);
        break;
    case 6:
        r->algorithm = (uint8_t)sim_below(rng, 16);
        break;
    case 7:
        r->agree = !r->agree;
        break;
    default:
        lie_of_root(rng, r);
    }
}

static void lie_of_state(sim_rng *rng, ut_record *r)
{
    switch (sim_below(rng, 8)) {
    case 0:
        r->flags ^= (uint8_t)(1u << sim_below(rng, 8));
        break;
    case 1:
        LIE(rng, r->flags);
        break;
    case 2:
        LIE(rng, r->weight);
        break;
    case 3:
        LIE(rng, r->field);
        break;
    case 4:
        LIE(rng, r->full_mask);
        break;
    case 5:
        LIE(rng, r->any_mask);
        break;
    case 6:
        LIE(rng, r->digest);
        break;
    default:
        LIE(rng, r->time_left_us);
    }
}

static void lie_of_partial(sim_rng *rng, ut_record *r)
{
    switch (sim_below(rng, 7)) {
    case 0:
        LIE(rng, r->fresh);
        break;
    case 1:
        LIE(rng, r->stale);
        break;
    case 2:
        LIE(rng, r->oldest_step);
        break;
    case 3:
        LIE(rng, r->initiator);
        break;
    case 4:
        LIE(rng, r->policy);
        break;
    case 5:
        LIE(rng, r->submitted);
        break;
    default:
        LIE(rng, r->attached);
    }
}

static void lie_in_record(sim_rng *rng, uint32_t about, ut_record *r)
{
    if (about >> SIM_ABOUT_WHICH_OP & 1 && sim_chance(rng, 500000))
        lie_of_which_op(rng, r);
    if (about >> SIM_ABOUT_STATE & 1)
        lie_of_state(rng, r);
    if (about >> SIM_ABOUT_PARTIAL & 1)
        lie_of_partial(rng, r);
    if (about >> SIM_ABOUT_EPOCH & 1 && sim_chance(rng, 500000))
        LIE(rng, r->epoch);
    else if (about >> SIM_ABOUT_EPOCH & 1)
        LIE(rng, r->view);
}

static uint32_t lie_in_feedback(sim_rng *rng, uint32_t about, uint8_t *bytes, uint32_t len, enum ut_check check)
{
    ut_feedback f;
    if (ut_feedback_decode(&f, bytes, len, check))
        return len;
    if (about >> SIM_ABOUT_LOSS & 1)
        LIE(rng, f.loss);
    if (about >> SIM_ABOUT_NUMBERS & 1)
        lie_of_numbers(rng, &f);
    if (about >> SIM_ABOUT_ACKS & 1)
        lie_of_acks(rng, &f);
    for (unsigned i = 0; i < f.records; i++)
        lie_in_record(rng, about, &f.record[i]);
    return (uint32_t)ut_feedback_encode(bytes, &f);
}

/* ---- data ---- */

static void lie_of_place(sim_rng *rng, ut_data *h, size_t payload)
{
    switch (sim_below(rng, 6)) {
    case 0:
        LIE(rng, h->op_seq);
        h->op_seq &= UT_OP_SEQ_MAX;
        h->ultima.bucket = (uint16_t)h->op_seq;
        break;
    case 1:
        h->stage = (uint8_t)(3 - h->stage);
        break;
    case 2:
        LIE(rng, h->coverage);
        break;
    case 3:
        LIE(rng, h->ultima.offset);
        break;
    case 4:
        h->ultima.offset += (uint32_t)((sim_below(rng, 9) - 4) * payload); /* another slot, perhaps another's shard */
        break;
    default:
        LIE(rng, h->flags);
    }
    h->coverage = h->coverage & UT_COVERAGE_MAX ? h->coverage & UT_COVERAGE_MAX : 1;
}

static void lie_of_times(sim_rng *rng, ut_data *h)
{
    switch (sim_below(rng, 5)) {
    case 0:
        LIE(rng, h->pn);
        break;
    case 1:
        LIE(rng, h->time_us);
        break;
    case 2:
        LIE(rng, h->ultima.timeout);
        break;
    case 3:
        h->ultima.last = (uint8_t)sim_below(rng, 16);
        break;
    default:
        h->ultima.incast = (uint8_t)sim_below(rng, 16);
    }
}

static void lie_in_data(sim_world *w, bool now, uint8_t *bytes, uint32_t len, enum ut_check check)
{
    const uint32_t about = w->plan.liar.about;
    const bool over = w->now >= w->plan.liar.until;
    sim_rng *rng = &w->rng_liar;
    ut_data h;
    if (ut_data_decode(&h, bytes, len, check))
        return;
    if (over) { /* it may be the sum of packets in which there were zeros, and of others: nobody can use it */
        h.ultima.timeout = ut_parity_place(0, 0);
        h.payload_crc = ut_crc32c(0, h.payload, h.payload_len);
        ut_data_encode(bytes, &h, h.payload_len);
        return;
    }
    if (h.stage == 1)
        memset(bytes + (h.payload - bytes), 0, h.payload_len);
    h.payload_crc = ut_crc32c(0, h.payload, h.payload_len);
    if (now && about >> SIM_ABOUT_PLACE & 1)
        lie_of_place(rng, &h, h.payload_len);
    if (now && about >> SIM_ABOUT_TIMES & 1)
        lie_of_times(rng, &h);
    if (now && about >> SIM_ABOUT_EPOCH & 1 && sim_chance(rng, 300000))
        LIE(rng, h.view);
    if (about >> SIM_ABOUT_PARITY & 1 && h.flags & UT_FLAG_PARITY && sim_chance(rng, 500000))
        sim_lie_of_parity(w, &h, h.payload_len);
    ut_data_encode(bytes, &h, h.payload_len);
}

static void lie_in_piece(sim_rng *rng, uint8_t *bytes, uint32_t len, enum ut_check check)
{
    ut_piece p;
    if (ut_piece_decode(&p, bytes, len, check))
        return;
    switch (sim_below(rng, 3)) {
    case 0:
        LIE(rng, p.index);
        break;
    case 1:
        LIE(rng, p.whole);
        break;
    default:
        LIE(rng, p.pn);
    }
    ut_piece_encode(bytes, &p, p.bytes, p.len);
}

/* ---- the whole ---- */

static sim_packet *copy_of(sim_world *w, const sim_packet *packet, uint32_t len)
{
    sim_packet *copy = sim_packet_make(w, packet->from, packet->to, packet->port, len);
    memcpy(copy->bytes, packet->bytes, UT_MIN2(len, packet->len));
    copy->flags = packet->flags;
    copy->from_place = packet->from_place;
    copy->to_place = packet->to_place;
    return copy;
}

/* One of its old packets, if it has one to this host. */
static void send_again(sim_world *w, const sim_packet *now)
{
    sim_packet **old = &w->lie_before[sim_below(&w->rng_liar, SIM_LIES)];
    if (*old && (*old)->to == now->to && sim_chance(&w->rng_liar, 300000)) {
        sim_packet *again = copy_of(w, *old, (*old)->len);
        again->flags |= SIM_AGAIN | SIM_EVIL;
        sim_net_send(w, again);
    }
    if (*old)
        sim_packet_free(*old);
    *old = copy_of(w, now, now->len);
}

/* Lies in |bytes|, which are not sealed; there is room for more of them. Returns how many there are then. */
static uint32_t lie_in(sim_world *w, const sim_packet *packet, bool lies, uint8_t *bytes, uint32_t len)
{
    const sim_liar *l = &w->plan.liar;
    sim_rng *rng = &w->rng_liar;
    enum ut_check check = sim_cipher(w) ? UT_CHECK_NOTHING : UT_CHECK_SUM;
    bool piece = packet->port == UT_PORT_DATA && ut_wire_kind(bytes, len) == UT_KIND_PIECE;
    if (packet->port == UT_PORT_FEEDBACK && lies) {
        for (uint32_t job = 0; job < w->plan.jobs; job++) /* as it is called in the job; in any of them */
            if (w->job[job].index_of[l->host] != UINT32_MAX && (job == 0 || sim_chance(rng, 500000)))
                len = lie_in_feedback(rng, l->about, bytes, len, check);
    } else if (packet->port == UT_PORT_DATA && !piece) {
        lie_in_data(w, lies, bytes, len, check);
    } else if (piece && lies && l->about >> SIM_ABOUT_PIECES & 1) {
        lie_in_piece(rng, bytes, len, check);
    }
    return len;
}

sim_packet *sim_lie(sim_world *w, sim_packet *packet)
{
    const sim_liar *l = &w->plan.liar;
    if (!sim_is_liar(w, packet->from))
        return packet;
    uint8_t plain[UT_PACKET_MAX + UT_FEEDBACK_MAX], bytes[UT_PACKET_MAX + UT_FEEDBACK_MAX];
    bool sealed = sim_cipher(w) != NULL;
    uint32_t tag = sim_seal_overhead(w), was = packet->len - tag;
    memcpy(plain, packet->bytes, was);
    sim_sealing how = sealed ? sim_seal_truth(w, packet) : (sim_sealing){0};
    const bool over = w->now >= l->until;
    const bool parity = packet->port == UT_PORT_DATA && ut_wire_kind(plain, was) == UT_KIND_PARITY;
    if (!w->faults || (over && !parity))
        return packet;
    memcpy(bytes, plain, was);
    bool lies = !over && sim_chance(&w->rng_liar, l->often);
    if (lies && l->about >> SIM_ABOUT_AGAIN & 1)
        send_again(w, packet);
    uint32_t len = lie_in(w, packet, lies, bytes, was);
    if (packet->port == UT_PORT_DATA && ut_wire_kind(plain, was) == UT_KIND_PIECE)
        packet->flags |= SIM_EVIL; /* with one that lies a true one makes a packet that is refused */
    if (sealed) /* what is encoded anew has a checksum, in the place of which the seal's own bytes come */
        memcpy(bytes + UT_CHECKSUM_AT, plain + UT_CHECKSUM_AT, sizeof(uint32_t));
    if (len == was && memcmp(bytes, plain, len) == 0)
        return packet;
    if (sealed)
        sim_seal_lie(w, packet->from, &how, bytes, len);
    sim_packet *other = packet;
    if (len != was) {
        other = copy_of(w, packet, len + tag);
        sim_packet_free(packet);
    }
    memcpy(other->bytes, bytes, len + tag);
    other->flags |= SIM_EVIL;
    w->cover[w->plan.partial ? SIM_PART_lie : w->plan.sparse ? SIM_SPARSE_lie : SIM_lie]++;
    w->cover[SIM_lie_sealed] += sealed;
    return other;
}
