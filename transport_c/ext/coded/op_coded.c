/* SPDX-License-Identifier: Apache-2.0
 *
 * An op of a coded job: when there is enough, when there never will be, how a rank joins that is late, and what the
 * receipt says. coded_send.c has what is sent. In a tree the root alone decides whether the op fails.
 */
#include "core/base/bits.h"
#include "ext/coded/coded.h"

static const ut_coded_sums *sums_of(const ut_job *j)
{
    return &ut_coded_of(j)->sums;
}

static bool is_root(const ut_job *j, uint32_t host)
{
    return sums_of(j)->children && host == 0;
}

static void announce(ut_job *j, ut_op *op, ut_ns now)
{
    ut_coded_begin_sends(j, op, now);
    ut_gathering_partial.announce(j, op, now);
}

static void held(ut_job *j, ut_op *op, ut_ns now)
{
    ut_coded_release(j, op, now);
    op->time.hold_until = now < op->time.hold_until ? op->time.hold_until : UT_NEVER;
}

/* ---- what comes ---- */

/* The rank of |host| may still give: it has a trainer, as far as is known. */
static bool may_give(const ut_job *j, uint32_t host)
{
    if (host == j->config.self)
        return ut_gifts_present(j);
    return ut_job_host_is_up(j, host) && (ut_ledger_attached(&j->ledger, host) & ut_job_places_of(j, host));
}

/* What the rank of |host| gives may still come to |op|, or to a later one for NULL. */
static bool rank_may_come(const ut_job *j, const ut_op *op, uint32_t host)
{
    if (host == j->config.self || !op)
        return may_give(j, host);
    return ut_bits_have(op->epoch.members, host) && ut_job_host_is_up(j, host) &&
           (op->partial->said[host].weight || may_give(j, host));
}

static bool sum_may_come(const ut_job *j, const ut_op *op, uint32_t host);

/* In a tree: enough of what is below |host| may still come. */
static bool below_may_come(const ut_job *j, const ut_op *op, uint32_t host)
{
    const ut_coded_sums *c = sums_of(j);
    uint32_t below = ut_tree_below(host, UT_MAX2(c->children, 1u));
    uint64_t groups = 0;
    for (uint32_t k = 0; k < c->children && below < j->config.hosts; k++)
        groups |= sum_may_come(j, op, below + k) ? ut_bit(k / c->replicas) : 0;
    return !ut_coded_has_below(j, host) || (uint32_t)__builtin_popcountll(groups) >= c->need;
}

static bool sum_may_come(const ut_job *j, const ut_op *op, uint32_t host)
{
    return rank_may_come(j, op, host) && below_may_come(j, op, host);
}

bool ut_coded_can_be_had(const ut_job *j)
{
    const ut_coded_sums *c = sums_of(j);
    uint64_t groups = 0;
    if (c->children)
        return (j->config.self == 0 || ut_job_host_is_up(j, 0)) && below_may_come(j, NULL, 0);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        groups |= may_give(j, h) ? ut_bit(ut_coded_place(c, h) / c->replicas) : 0;
    return (uint32_t)__builtin_popcountll(groups) >= c->need;
}

/* Something that this host lacks may still come from |host|. */
static bool may_come(const ut_job *j, const ut_op *op, uint32_t host)
{
    uint32_t i = op->plan.rx_of[0][host];
    if (host == j->config.self)
        return rank_may_come(j, op, host);
    return i != UINT32_MAX && !ut_transfer_over(&op->plan.transfer[i]) && sum_may_come(j, op, host);
}

/* The group of what |host| sends here; none of a host that sends nothing here. */
static uint64_t group_from(const ut_job *j, uint32_t host)
{
    const ut_coded_sums *c = sums_of(j);
    if (c->children && (host == 0 || ut_tree_parent(host, c->children) != j->config.self))
        return 0;
    return ut_bit(ut_coded_place(c, host) / c->replicas);
}

static uint64_t hosts_of(const ut_job *j, uint64_t groups)
{
    uint64_t hosts = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        hosts |= groups & group_from(j, h) ? ut_bit(h) : 0;
    return hosts;
}

/* Groups of which nothing more can come. */
static uint64_t hopeless(const ut_job *j, const ut_op *op)
{
    uint64_t groups = sums_of(j)->all;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (may_come(j, op, h))
            groups &= ~group_from(j, h);
    return groups;
}

/* Of |hosts|, from which a sum is missing, those that are to blame: in a tree, of all below them, who can give no more,
 * or else who has not given. */
static uint64_t to_blame(const ut_job *j, const ut_op *op, uint64_t hosts)
{
    uint32_t children = sums_of(j)->children;
    uint64_t gone = 0, late = 0;
    for (uint32_t h = 1; h < j->config.hosts && children; h++) {
        uint32_t above = h;
        while (above && !(hosts & ut_bit(above)))
            above = ut_tree_parent(above, children);
        gone |= above && !rank_may_come(j, op, h) ? ut_bit(h) : 0;
        late |= above && !op->partial->said[h].weight ? ut_bit(h) : 0;
    }
    return gone ? gone : late ? late : hosts;
}

/* The op ends without a result, for want of time or else for want of hosts that still bring something of it: what it
 * did not need is not missing, and peers are told whom to blame. */
static int give_up(const ut_job *j, ut_op *op, uint64_t groups, enum ut_sum_over over)
{
    uint64_t lacking = hosts_of(j, groups), blamed = to_blame(j, op, lacking), gone = 0;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        ut_transfer *t = &op->plan.transfer[i];
        if (s->kind != UT_STEP_RECEIVE || s->stage != 1 || ut_transfer_complete(t))
            continue;
        if (!(lacking & ut_bit(s->peer)))
            t->why = UT_MISSING_NOTHING;
        else if (!t->closed)
            t->why = t->done ? UT_MISSING_LOST : UT_MISSING_SILENT;
        t->closed = 1;
    }
    for (uint32_t h = 0; h < j->config.hosts; h++)
        gone |= !may_give(j, h) && !op->partial->said[h].weight ? ut_bit(h) : 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        gone |= h != j->config.self && !ut_job_host_is_up(j, h) ? ut_bit(h) : 0;
    op->peers.full_mask = op->peers.any_mask = ut_bits_below(j->config.hosts) & ~blamed;
    op->peers.complete_masks = 1;
    return over == UT_SUM_IS_CUT && (blamed & ~gone) ? UT_ERR_TIMEOUT : UT_ERR_ABSENT;
}

static int lacks(const ut_job *j, ut_op *op, enum ut_sum_over over)
{
    if (ut_fold_own_done(&op->fold))
        return 0;
    bool owner = op->plan.schedule.own != UT_CHUNK_NONE;
    if (!owner && ut_transfer_over(&op->plan.transfer[op->fold.down[op->fold.summing]]))
        return UT_ERR_ABSENT; /* no result comes to whom it sums up for */
    uint64_t never = !owner ? 0 : over == UT_SUM_IS_CUT ? UINT64_MAX : hopeless(j, op);
    uint64_t lacking = never ? ut_coded_lacking(&op->fold, never) : 0;
    if (ut_coded_was_over(j, op))
        return UT_ERR_ABSENT;
    if (!ut_coded_of(j)->exact) {
        op->fold.forced = over == UT_SUM_IS_CUT || (over == UT_SUM_ALL_CAME && lacking);
        if (op->fold.forced)
            op->work.unsettled = !ut_fold_settle(&op->fold, false);
        return over == UT_SUM_ALL_CAME && !op->fold.forced ? 1 : 0;
    }
    if (lacking)
        return give_up(j, op, lacking, over);
    return over == UT_SUM_ALL_CAME ? 1 : 0;
}

static void record(ut_job *j, ut_op *op, uint32_t host, const ut_record *r, ut_ns now)
{
    ut_part *part = &op->partial->said[host];
    ut_coded *c = ut_coded_of(j);
    uint16_t fresh = r->fresh & ut_job_places_of(j, host);
    if (!part->heard || (part->weight == 0 && fresh))
        *part = (ut_part){.heard = true,
                          .weight = UT_MIN2(r->weight, (uint16_t)__builtin_popcount(fresh)),
                          .fresh = fresh,
                          .oldest_step = op->what.step};
    if ((r->submitted & UT_RECORD_ENOUGH) && !(c->enough & ut_bit(host))) {
        c->enough |= ut_bit(host);
        for (uint32_t i = op->plan.tx_of[0][host]; i != UINT32_MAX; i = op->plan.peer_next[i])
            op->plan.transfer[i].closed = 1;
    }
    ut_coded_release(j, op, now);
}

/* All that this host adds up is there: nothing of stage 1 need be sent to it any more. */
static bool has_enough(const ut_op *op)
{
    return ut_fold_own_done(&op->fold);
}

static void tell(const ut_job *j, const ut_op *op, ut_record *r)
{
    ut_gathering_partial.tell(j, op, r);
    if (ut_op_sends(op) && op->plan.schedule.steps && has_enough(op))
        r->submitted |= UT_RECORD_ENOUGH;
}

/* ---- the rank of this host ---- */

/* The rank gives to the op that runs. */
static void join(ut_job *j, ut_op *op, ut_ns now)
{
    const ut_submission *other = ut_inboxes_take(j, op);
    if (!op->partial->said[j->config.self].weight)
        return;
    if (other && !ut_op_agrees_here(j, op, other, now))
        return;
    const void *from[UT_LOCAL_MAX];
    (void)ut_gifts_sources(j, from);
    op->memory.src = op->memory.own = from[0];
    op->local.weight = 1;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        uint64_t no_more = op->peers.rx_done | ut_coded_of(j)->enough;
        if (s->kind == UT_STEP_SEND && s->stage == 1 && ut_job_host_is_up(j, s->peer) && !(no_more & ut_bit(s->peer)))
            op->plan.transfer[i].closed = 0;
    }
    ut_fold_join(&op->fold, 1);
    ut_coded_release(j, op, now);
    ut_job_speak(j, now);
}

/* The shard of this host is summed, and its peers may have their results by now. A gift of another size or type would
 * fail the op here alone; so it waits, and its call is refused when the op has ended. */
static bool comes_too_late(const ut_op *op, const ut_submission *x)
{
    bool differs = x->count != op->what.count || x->dtype != op->what.dtype;
    return differs && op->plan.schedule.own != UT_CHUNK_NONE && ut_fold_own_done(&op->fold);
}

void ut_coded_look(ut_job *j, ut_ns now)
{
    ut_op *op = ut_coded_running(j);
    const ut_gift *g = &j->partial->rank[0].waiting;
    if (op && op->state == UT_OP_RUNNING) {
        bool its = op->local.weight == 0 && g->there && g->said.oldest_step == op->what.step;
        if (its && !comes_too_late(op, &g->said))
            join(j, op, now);
        if (op->state == UT_OP_RUNNING)
            ut_coded_release(j, op, now);
        ut_op_check(j, op, now);
    }
    ut_coded_answer_behind(j, now);
}

/* ---- the rest of the table ---- */

static uint32_t whole(const ut_job *j, const ut_op *op)
{
    (void)op;
    return j->world;
}

static uint64_t contributors(const ut_job *j, const ut_op *op)
{
    uint64_t hosts;
    ut_op_announced(j, op, &hosts);
    return hosts;
}

static void account(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    const ut_coded_sums *c = sums_of(j);
    ut_gathering_partial.account(j, op, r);
    r->eta = 0;
    r->step = op->what.step;
    r->exact = op->account.failed ? UT_EXACT_NO : UT_EXACT_YES;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        bool gave = op->partial->said[h].weight;
        bool other = c->children ? op->plan.rx_of[0][h] != UINT32_MAX : !ut_coded_same_group(j, h, j->config.self);
        r->late_mask |= !gave && !is_root(j, h) && may_give(j, h) ? ut_bit(h) : 0;
        r->unused_mask |= gave && other && !(c->used & ut_bit(h)) && op->plan.schedule.own_bytes ? ut_bit(h) : 0;
    }
    unsigned all = (unsigned)__builtin_popcountll(c->all), present = op->fold.result.weight_min / c->replicas;
    if (present >= all || op->fold.result.weight_min >= j->world || op->account.failed)
        return;
    r->exact = UT_EXACT_NO;
    double over = present ? (double)all / present - 1 : 0;
    r->residual_squared = c->replicas * (present * over * over + (all - present));
}

/* For whom it failed: hosts that are out of the epoch owe nothing, so what is missing does not say it. In a tree only
 * the root knows; it tells in its record. In a star each host knows of its own sum, until that is made. */
static uint64_t blames(const ut_job *j, const ut_op *op)
{
    const uint64_t own = op->peers.complete_masks ? ~op->peers.any_mask & ut_bits_below(j->config.hosts) : 0;
    const ut_record *r = ut_op_record_of(j, op, 0);
    if (!op->account.failed)
        return 0;
    if (!sums_of(j)->children)
        return op->time.stage_end[0] == UT_END_NONE ? own : 0;
    if (is_root(j, j->config.self))
        return own;
    bool told = r && (r->flags & UT_RECORD_FAILED) && (r->flags & UT_RECORD_RESULT) && r->field == UT_FIELD_NONE;
    return told ? ~r->any_mask & ut_bits_below(j->config.hosts) : 0;
}

static void count_redundant(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    uint64_t folded = UT_MIN2(sums_of(j)->redundant, r->bytes_used);
    r->bytes_redundant = folded + op->fold.moot;
    r->bytes_expected += op->fold.moot;
    r->bytes_used -= folded;
}

static bool ended(ut_job *j, const ut_op *op, const ut_receipt *r, ut_ns now)
{
    ut_coded_ended(j, op, r, now);
    return true;
}

static unsigned sources(const ut_job *j, const ut_op *op, const void **ret)
{
    (void)op;
    return ut_gifts_sources(j, ret);
}

static void place(ut_job *j, ut_op *op)
{
    ut_gathering_partial.place(j, op);
}

static void recount(const ut_job *j, ut_op *op)
{
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (op->fold.result.least_of[h] < j->world)
            op->fold.result.short_hosts |= ut_bit(h);
}

static void gone(ut_job *j, uint32_t session, ut_ns now)
{
    ut_inbox_gone(j, session, now);
    ut_coded_asks_no_more(j);
    ut_coded_look(j, now);
}

const ut_gathering ut_gathering_coded = {.keeps = true,
                                         .record_flags = UT_RECORD_ACTIVE,
                                         .starts_together = true,
                                         .early = UT_STEP_NUMBERS + 1,
                                         .rule = &ut_fold_coded,
                                         .sources = sources,
                                         .place = place,
                                         .announce = announce,
                                         .held = held,
                                         .lacks = lacks,
                                         .record = record,
                                         .whole = whole,
                                         .recount = recount,
                                         .contributors = contributors,
                                         .account = account,
                                         .blames = blames,
                                         .count = count_redundant,
                                         .ended = ended,
                                         .tell = tell,
                                         .readiness = ut_partial_readiness,
                                         .hear = ut_partial_hear,
                                         .heard = ut_partial_look,
                                         .gone = gone};
