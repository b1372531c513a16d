/* SPDX-License-Identifier: Apache-2.0 */
#include "core/face/lanes.h"

#include "core/account/join.h"
#include "core/base/portion.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

static size_t receipt_bytes(uint32_t hosts)
{
    return offsetof(ut_receipt, peer) + hosts * sizeof(ut_receipt_peer);
}

_Static_assert(offsetof(ut_receipt, peer) % sizeof(uint64_t) == 0, "receipts of any number of rows lie behind another");
_Static_assert(sizeof(ut_receipt_peer) % sizeof(uint64_t) == 0, "receipts of any number of rows lie behind another");

size_t ut_lanes_bytes(uint32_t portions, uint32_t hosts)
{
    const size_t kept = portions > 1 ? (size_t)UT_RING_ENTRIES * portions : 0;
    return sizeof(ut_lanes) + kept * receipt_bytes(hosts);
}

ut_lanes *ut_lanes_init(void *memory, uint32_t lanes, uint32_t portions, uint32_t hosts, uint64_t first)
{
    assert(lanes >= 1 && lanes <= UT_LANES_MAX && (portions == 1 || portions == lanes) && hosts <= UT_HOSTS_MAX);
    ut_lanes *l = memory;
    memset(l, 0, sizeof *l);
    l->lanes = lanes;
    l->portions = portions;
    l->hosts = hosts;
    l->next = first;
    return l;
}

void ut_lanes_ring(ut_lanes *l, uint32_t lane, ut_submission_ring *submissions, const ut_completion_ring *completions)
{
    assert(lane < l->lanes);
    l->lane[lane] = (ut_lane){submissions, completions, 0};
}

uint32_t ut_lanes_portions(const ut_lanes *l, unsigned collective, uint64_t bytes)
{
    const uint64_t hosts = (uint64_t)l->hosts * UT_PORTION_BURST;
    const uint64_t least = hosts > UT_PORTION_BYTES ? hosts : UT_PORTION_BYTES;
    return (collective == UT_ALLREDUCE || collective == UT_ALLREDUCE_QUANT) && bytes >= l->portions * least
               ? l->portions
               : 1;
}

bool ut_lanes_room(const ut_lanes *l, uint64_t op_seq, uint32_t portions)
{
    for (uint32_t i = 0; i < portions; i++)
        if (__atomic_load_n(&l->lane[(op_seq + i) % l->lanes].outstanding, __ATOMIC_RELAXED) >= UT_RING_ENTRIES)
            return false;
    return true;
}

/* Others may read it meanwhile. */
static void count(ut_lane *lane, int by)
{
    __atomic_store_n(&lane->outstanding, lane->outstanding + (uint32_t)by, __ATOMIC_RELAXED);
}

/* Puts an op with the job's number into its lane; returns the lane's bit, or 0 if its ring is full. */
static uint32_t put(ut_lanes *l, ut_submission *op)
{
    const uint32_t at = (uint32_t)(op->op_seq % l->lanes);
    ut_lane *lane = &l->lane[at];
    op->op_seq = ut_lane_seq(op->op_seq, at, l->lanes);
    if (ut_ring_submit(lane->submissions, lane->completions, op))
        return 0;
    count(lane, 1);
    return 1u << at;
}

/* The |at|-th of |portions| portions of a call. Portions but for the last are equal, and whole steps. */
static ut_submission portion_of(const ut_submission *call, uint32_t at, uint32_t portions)
{
    const uint64_t width = ut_dtype_bytes(call->dtype), step = (uint64_t)portions * UT_PORTION_STEP;
    const uint64_t each = (call->count / step + (call->count % step != 0)) * UT_PORTION_STEP;
    const uint64_t first = at * each < call->count ? at * each : call->count, rest = call->count - first;
    ut_submission op = *call;
    op.op_seq += at;
    op.src += first * width;
    op.dst += first * width;
    if (op.collective == UT_ALLREDUCE_QUANT && ut_submission_residual(&op))
        op.residual += first * width;
    op.count = rest < each ? rest : each;
    op.portion = ut_portion(at, portions);
    return op;
}

uint32_t ut_lanes_submit(ut_lanes *l, const ut_submission *call)
{
    const uint32_t portions = ut_portions_of(call->portion);
    const uint64_t free_before = call->op_seq - l->next;
    assert(portions == 1 || (portions == l->lanes && call->op_seq % portions == 0 && free_before < portions));
    uint32_t woken = 0;
    for (uint32_t at = 0; at < portions; at++) {
        ut_submission op = portions > 1 ? portion_of(call, at, portions) : *call;
        if (portions > 1) /* they end just before it: in the last lanes */
            op.skipped = at + free_before >= portions;
        const uint32_t bit = put(l, &op);
        if (!bit)
            return 0;
        woken |= bit;
    }
    l->next = call->op_seq + portions;
    return woken;
}

/* The next receipt of any lane, lane by lane in turn; which lane, or |lanes| if there is none. */
static uint32_t take_next(ut_lanes *l, ut_receipt *ret)
{
    for (uint32_t i = 0; i < l->lanes; i++) {
        const uint32_t at = l->turn;
        l->turn = (at + 1) % l->lanes;
        if (ut_ring_take_completion(l->lane[at].submissions, l->lane[at].completions, ret)) {
            ut_receipt_of_job(ret, at, l->lanes);
            return at;
        }
    }
    return l->lanes;
}

static void ended(ut_lane *lane)
{
    if (lane->outstanding)
        count(lane, -1);
}

static ut_receipt *kept(ut_lanes *l, const ut_joining *s, uint32_t at)
{
    const size_t number = (size_t)(s - l->joining) * l->portions + at;
    return (ut_receipt *)((unsigned char *)l->receipts + number * receipt_bytes(l->hosts));
}

/* Where the portions of a call are kept; NULL if there is no place, which no engine of this release makes happen. */
static ut_joining *joining_of(ut_lanes *l, uint64_t op_seq)
{
    ut_joining *empty = NULL;
    for (ut_joining *s = l->joining; s < l->joining + UT_RING_ENTRIES; s++) {
        if (s->ended && s->op_seq == op_seq)
            return s;
        if (!s->ended && !empty)
            empty = s;
    }
    if (empty)
        empty->op_seq = op_seq;
    return empty;
}

/* Puts the receipt of a portion aside; with the last of them, makes one of all. */
static enum ut_lanes_found join(ut_lanes *l, ut_receipt *r)
{
    const uint32_t at = ut_portion_at(r->portion);
    ut_joining *s = joining_of(l, r->op_seq - at);
    if (!s)
        return UT_LANES_WHOLE;
    r->hosts = (uint16_t)(r->hosts < l->hosts ? r->hosts : l->hosts);
    memcpy(kept(l, s, at), r, receipt_bytes(r->hosts));
    s->ended |= 1u << at;
    if (s->ended + 1 != 1u << l->portions) {
        r->op_seq -= at;
        return r->error == UT_ERR_DESYNC ? UT_LANES_EARLY : UT_LANES_NOTHING;
    }
    s->ended = 0;
    const ut_receipt *all[UT_LANES_MAX];
    for (uint32_t i = 0; i < l->portions; i++) {
        all[i] = kept(l, s, i);
        ended(&l->lane[i]);
    }
    ut_receipt_join(r, all, l->portions);
    return UT_LANES_WHOLE;
}

int ut_lanes_take(ut_lanes *l, ut_receipt *ret)
{
    for (uint32_t at; (at = take_next(l, ret)) < l->lanes;) {
        if (l->portions > 1 && ret->portion && ut_portion_valid(ret->portion) &&
            ut_portions_of(ret->portion) == l->portions) {
            const enum ut_lanes_found found = join(l, ret);
            if (found != UT_LANES_NOTHING)
                return found;
        } else {
            ended(&l->lane[at]);
            return UT_LANES_WHOLE;
        }
    }
    return UT_LANES_NOTHING;
}
