/* SPDX-License-Identifier: Apache-2.0
 *
 * What a job knows across its ops: how far it has got, and how to reach its fellow hosts.
 */
#include "core/op/ext.h"
#include "core/op/op_epoch.h"
#include "core/wire/pieces.h"

/* ---- memory ---- */

size_t ut_job_slots(const ut_job_config *config)
{
    uint32_t payload = ut_wire_payload(config->packet_bytes, ut_seal_overhead(config->cipher));
    return (size_t)(config->bucket_bytes_max / payload + config->hosts + 1);
}

/* What one op of a job has room for. What cannot be touched is not asked for, for all of it is in somebody's budget. */
typedef struct room {
    size_t slots, words;      /* of the bucket; of the bitmaps of all transfers */
    uint64_t encoded, orders; /* bytes of what is encoded; of contributions that are kept to be added in order */
    bool apart, encodes, combines, keeps;
} room;

/* A host that is alone in its job folds nothing that comes and keeps nothing for others. Only TAR's ops are encoded,
 * in jobs that keep those alone that are of a variant. Only ops of jobs that keep go on without the trainer whose
 * buffer they began with (ut_inbox_gone). */
static room room_of(const ut_job_config *config, const ut_gathering *gathering, uint32_t payload)
{
    uint64_t shard = config->bucket_bytes_max / config->hosts + 16;
    /* The one chunk of a parameter server or a tree is the whole bucket; in TAR a shard is, when all others are gone.
     * What is not touched costs addresses alone. */
    unsigned algorithm = ut_options_algorithm(&config->options);
    bool whole = algorithm == UT_TAR || algorithm == UT_PS || algorithm == UT_TREE;
    uint64_t of_variant = 0;
    for (unsigned v = 0; v < UT_VARIANTS; v++)
        if (ut_extensions_linked.variant[v])
            of_variant = UT_MAX2(of_variant, ut_extensions_linked.variant[v]->encoded(config, payload));
    room r = {.encoded = UT_MAX2(config->bucket_bytes_max, of_variant),
              .orders = ut_ordered_bytes(config),
              .apart = config->hosts > 1,
              .encodes = config->hosts > 1 && (of_variant || (gathering->encodes && algorithm == UT_TAR)),
              .combines = config->local_ranks > 1 || gathering->keeps,
              .keeps = gathering->keeps};
    r.slots = r.encodes ? (size_t)(r.encoded / payload + config->hosts + 1) : ut_job_slots(config);
    size_t shard_words = (size_t)(shard / payload + 1 + 63) / 64, bucket_words = (r.slots + 63) / 64;
    r.words = whole ? 3 * config->hosts * (bucket_words + 1) : 6 * shard_words * UT_MAX2(config->hosts - 1, 1);
    return r;
}

/* |op| and |ordered| are NULL while |c| only counts; |ordered| is also where sums are made as they come. */
static void lay_out_op(ut_carver *c, const ut_job_config *config, const room *r, ut_op *op, ut_ordered *ordered)
{
    const uint64_t most = config->bucket_bytes_max;
    uint8_t *slot_state = ut_carve(c, r->slots);
    uint16_t *slot_weight = ut_carve(c, r->slots * 2);
    uint32_t *slot_crc = ut_carve(c, r->slots * 4);
    uint64_t *bitmaps = ut_carve(c, r->words * 8);
    uint8_t *held = r->apart ? ut_carve(c, most * 2) : NULL;        /* floats of the halves are larger */
    uint8_t *encoded = r->encodes ? ut_carve(c, r->encoded) : NULL; /* blocks may take most */
    void *of_variant[UT_VARIANTS] = {NULL};
    for (unsigned v = 0; v < UT_VARIANTS; v++)
        if (ut_extensions_linked.variant[v])
            of_variant[v] = ut_extensions_linked.variant[v]->lay_out(c, config);
    uint8_t *orphan = r->apart && r->keeps ? ut_carve(c, most) : NULL;
    uint8_t *bucket = r->combines ? ut_carve(c, most) : NULL;
    uint8_t *contributions = r->orders ? ut_carve(c, r->orders) : NULL;
    if (!op)
        return;
    op->fold.state = slot_state;
    op->fold.weight = slot_weight;
    op->fold.crc = slot_crc;
    op->plan.bitmaps = bitmaps;
    op->plan.bitmap_words = r->words;
    memcpy(op->of_variant, of_variant, sizeof of_variant);
    op->memory.held = held;
    op->memory.bucket = bucket;
    op->memory.encoded = encoded;
    op->memory.orphan = orphan;
    if (ordered) {
        *ordered = (ut_ordered){.kept = contributions, .room = r->orders};
        op->fold.rule_memory = ordered;
    }
}

ut_job *ut_job_lay_out(ut_carver *c, const ut_job_config *config, uint64_t early, const ut_gathering *gathering)
{
    bool at = c->at != NULL;
    ut_job *j = ut_carve(c, sizeof *j);
    ut_conn *conn = ut_carve(c, sizeof *conn * config->hosts);
    ut_claims *claims = ut_carve(c, sizeof *claims * config->hosts);
    ut_receipt *kept = ut_carve(c, sizeof *kept * UT_RECEIPTS_KEPT);
    ut_frame frame = {config->packet_bytes, ut_seal_overhead(config->cipher)};
    uint32_t payload = ut_wire_payload(frame.packet_bytes, frame.overhead);
    room r = room_of(config, gathering, payload);
    ut_ordered *ordered = r.orders ? ut_carve(c, sizeof *ordered * UT_OPS_MAX) : NULL;
    if (at) {
        j->gathering = gathering;
        j->ordered = ordered;
        j->conn = conn;
        ut_ledger_init(&j->ledger, claims, config->hosts, config->self);
        j->frame = frame;
        j->payload = payload;
        j->account.kept = kept;
    }
    for (uint32_t h = 0; h < config->hosts; h++) {
        uint8_t *stash = ut_carve(c, ut_conn_stash_bytes(early));
        uint8_t *pieces = ut_carve(c, ut_pieces_memory(&frame));
        const uint32_t flying = ut_conn_sent_room(config->hosts - 1);
        ut_sent *sent = ut_carve(c, sizeof *sent * flying);
        const uint32_t kept = config->hosts > 1 ? ut_parity_room(payload, config->hosts - 1) : 0;
        ut_parity_kept *what = ut_carve(c, sizeof *what * kept);
        uint8_t *payloads = ut_carve(c, (size_t)kept * payload);
        uint8_t *sums = ut_carve(c, (size_t)UT_PARITY_GROUPS * ut_parity_most(payload) * payload);
        if (!at)
            continue;
        ut_conn_init(&conn[h], stash, ut_conn_stash_bytes(early), sent, flying);
        ut_parity_init(&conn[h].parity, payload, kept, what, payloads, sums);
        conn[h].pieces = pieces;
        conn[h].seal.cipher = config->cipher;
    }
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        lay_out_op(c, config, &r, at ? &j->op[k] : NULL, at && ordered ? &ordered[k] : NULL);
    return j;
}

void ut_job_init(ut_job *j, uint32_t number, const ut_job_config *config, const ut_host *host)
{
    assert(host && number < UT_JOBS_MAX);
    assert(config->hosts >= 1 && config->hosts <= UT_HOSTS_MAX && config->self < config->hosts);
    j->number = number;
    j->host = host;
    j->config = *config;
    j->world = ut_world_of(config);
    ut_timing_init(&j->timing, config->hosts, config->self);
    ut_tokens_init(&j->tokens, config->rate_bytes_per_s);
    j->next_open = j->rx_floor = config->first_op_seq;
    j->codec = &ut_codec_hadamard;
    ut_job_epochs_init(j);
    ut_job_incast_init(j);
    j->account.host = host;
    j->account.conn = j->conn;
    j->account.job = number;
    j->account.hosts = config->hosts;
    j->account.self = config->self;
    j->account.payload = j->payload;
    j->account.world = j->world;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        op->seq = UINT64_MAX;
        ut_account_init(&op->account, &j->account, &op->what, &op->plan, &op->fold);
        ut_fold_init(&op->fold, &op->what, &op->plan, &op->memory, host->turn,
                     &(ut_fold_job){j->payload, j->world, config->hosts, config->self});
    }
}

/* ---- hosts, and how far the job has got ---- */

uint32_t ut_job_ranks_of(const ut_job *j, uint32_t host)
{
    assert(host < j->config.hosts);
    const ut_job_config *c = &j->config;
    if (c->ranks_of[c->self])
        return c->ranks_of[host];
    if (host == c->self)
        return c->local_ranks;
    uint32_t others = c->hosts - 1, rest = j->world - UT_MIN2(j->world, c->local_ranks);
    uint32_t place = host - (host > c->self);
    return rest / others + (place < rest % others);
}

uint64_t ut_job_up(const ut_job *j)
{
    uint64_t up = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h))
            up |= ut_bit(h);
    return up;
}

uint64_t ut_job_lost(const ut_job *j)
{
    uint64_t lost = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        lost |= j->conn[h].state == UT_CONN_ABSENT ? ut_bit(h) : 0;
    return lost;
}

void ut_job_speak(ut_job *j, ut_ns at)
{
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h))
            ut_conn_speak_at(&j->conn[h], at);
}

/* To the first op that is open, or to the next one. A partial job may leave out any number of ops. */
void ut_job_raise_rx_floor(ut_job *j)
{
    uint64_t floor = j->next_open;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        const ut_op *op = &j->op[k];
        if (op->state != UT_OP_FREE && op->state != UT_OP_LINGERING && op->seq >= j->rx_floor)
            floor = UT_MIN2(floor, op->seq);
    }
    j->rx_floor = UT_MAX2(j->rx_floor, floor);
    assert(j->rx_floor <= j->next_open);
}

uint64_t ut_job_tx_floor(const ut_job *j)
{
    uint64_t floor = j->next_open;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if (j->op[k].state != UT_OP_FREE)
            floor = UT_MIN2(floor, j->op[k].seq);
    return floor;
}

uint64_t ut_job_next_op(const ut_job *j)
{
    const uint64_t own = UT_MAX2(j->next_open, j->ledger.row[j->config.self].spoken);
    const uint64_t all = ut_bits_below(j->config.hosts);
    if (j->ledger.lag <= UT_LAG_MAX)
        return ut_ledger_believe(&j->ledger, UT_FACT_SPOKEN, all, own, UT_EARLY_MAX);
    /* Hosts may leap, and ranks say where to. What one host alone has said, in a life that is over perhaps, would take
     * whoever begins by this number to where nobody is. */
    return UT_MAX2(own, ut_ledger_confirmed(&j->ledger, UT_FACT_SPOKEN, all, false, own + UT_EARLY_MAX));
}

ut_op *ut_job_op_after(ut_job *j, const ut_op *before)
{
    ut_op *next = NULL;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        if (op->state != UT_OP_FREE && (!before || op->seq > before->seq) && (!next || op->seq < next->seq))
            next = op;
    }
    return next;
}

bool ut_job_is_calm(const ut_job *j, ut_ns now)
{
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (now < j->conn[h].tx.hurry_to)
            return false;
    return true;
}
