/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded jobs: what the rank of this host gives to a step, and how its calls for the results of steps are answered.
 */
#include "ext/coded/coded.h"

static ut_inbox *rank_of(const ut_job *j)
{
    return &j->partial->rank[0];
}

ut_op *ut_coded_running(ut_job *j)
{
    ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    bool open = op->state == UT_OP_OPENING || op->state == UT_OP_RUNNING || op->state == UT_OP_ENDING;
    return open && op->seq == j->next_open - 1 ? op : NULL;
}

/* The step below which every step is over: those that ops have passed here, or of which peers say so. That is asked
 * anew each time, so that what a host has told goes with its life. */
static uint64_t first_open(const ut_job *j)
{
    return ut_step_of_op(UT_MAX2(j->next_open, ut_coded_over_elsewhere(j)));
}

static bool is_over(const ut_job *j, uint64_t step)
{
    return step < first_open(j);
}

/* What waits here is for a step that is still to come. */
static bool is_ready(const ut_job *j)
{
    const ut_gift *g = &rank_of(j)->waiting;
    return g->there && !is_over(j, g->said.oldest_step);
}

/* An owner under the epoch of op |seq| is gone, so that a part of that op's result comes to nobody. The next epoch goes
 * without it, as soon as the daemons have agreed. */
static bool lacks_owner(const ut_job *j, uint64_t seq)
{
    const uint64_t here = ut_job_up(j) | ut_bit(j->config.self);
    return ut_epoch_at(&j->epochs, seq)->owners & ~here;
}

uint64_t ut_coded_first_op(const ut_job *j)
{
    if (!is_ready(j))
        return j->next_open;
    /* An attempt that has ended on another host can have no part of that one. */
    const uint64_t step = rank_of(j)->waiting.said.oldest_step, first = ut_step_first_op(step);
    uint64_t next = UT_MAX2(j->next_open, first);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h) && ut_step_of_op(j->ledger.row[h].rx_floor) == step)
            next = UT_MAX2(next, j->ledger.row[h].rx_floor);
    /* Nor can one under an epoch that lacks an owner. */
    const uint64_t newer = j->epochs.kept->from;
    if (lacks_owner(j, next) && ut_step_of_op(newer) == step && !lacks_owner(j, newer))
        next = UT_MAX2(next, newer);
    return first + (next - first + UT_OPS_MAX - 1) / UT_OPS_MAX * UT_OPS_MAX;
}

bool ut_coded_joins(const ut_job *j, uint32_t host, uint64_t seq)
{
    uint64_t step = ut_step_of_op(seq);
    if (step > UINT32_MAX || (seq - ut_step_first_op(step)) % UT_OPS_MAX)
        return false;
    if (is_ready(j))
        return rank_of(j)->waiting.said.oldest_step >= step;
    return ut_coded_reaches(j, host, seq);
}

/* The job is new here, and there are hosts that this one has not met yet: without them a step that they could have
 * saved would fail. */
static bool has_strangers(const ut_job *j)
{
    for (uint32_t h = 0; h < j->config.hosts && j->partial->results == 0; h++)
        if (h != j->config.self && j->conn[h].state == UT_CONN_NEW)
            return true;
    return false;
}

/* The root of a tree has an attempt at the step of |seq| under way whose number is used up here. That op gets its sum
 * without this host, or fails; and a host that began the next attempt would be an op ahead for ever. In a star the
 * others cannot do without this host's shard, and so come to it. */
static bool is_under_way_at_root(const ut_job *j, uint64_t seq)
{
    const ut_claims *root = &j->ledger.row[0];
    const ut_record *r = &root->record[seq % UT_OPS_MAX];
    if (!ut_coded_of(j)->sums.children || j->config.self == 0 || !ut_job_host_is_up(j, 0))
        return false;
    return root->seen[seq % UT_OPS_MAX] && (r->flags & UT_RECORD_ACTIVE) && r->op_seq >= root->rx_floor &&
           r->op_seq < j->next_open && ut_step_of_op(r->op_seq) == ut_step_of_op(seq);
}

/* The step of |seq| leaves out others, and nobody else has come so far. A host that began it alone would be out of the
 * reach of all others, whose steps have no result without its shard. Of hosts that leave out the same steps the lowest
 * goes first, and the others follow. */
static bool goes_ahead(const ut_job *j, uint64_t seq)
{
    const uint64_t step = ut_step_of_op(seq);
    bool lower = false;
    if (j->partial->results == 0 || step <= ut_coded_of(j)->at)
        return false;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        if (h == j->config.self || !ut_job_host_is_up(j, h))
            continue;
        if (j->ledger.row[h].spoken > ut_step_first_op(step))
            return false;
        lower = lower || h < j->config.self;
    }
    return lower;
}

/* The place of op |seq| holds a result that a peer still gets from here. Without steps left out that one is four steps
 * behind, and cannot be; where they are left out it may be that of the step before. */
static bool is_place_needed(const ut_job *j, uint64_t seq)
{
    const ut_op *op = &j->op[seq % UT_OPS_MAX];
    return op->state == UT_OP_LINGERING && op->seq < seq && !op->account.failed && ut_op_still_needed(j, op);
}

/* Attempts fail one after the other as long as their cause lasts, so there is ever more time between them. */
static ut_ns pause(const ut_job *j)
{
    const uint32_t tried = ut_coded_of(j)->tried;
    return tried > 1 ? UT_MS << UT_MIN2(tried - 2, 6u) : 0;
}

/* A peer runs op |seq|: the attempt is made, whether this host is in it or not. */
static bool is_made(const ut_job *j, uint64_t seq)
{
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_record *r = h != j->config.self ? ut_ledger_record(&j->ledger, h, seq) : NULL;
        if (r && ut_job_host_is_up(j, h) && (r->flags & (UT_RECORD_ACTIVE | UT_RECORD_RX_DONE)) == UT_RECORD_ACTIVE)
            return true;
    }
    return false;
}

/* When op |seq|, which is due since |since|, may begin here: the numbers of a step must last, see UT_STEP_PACE. They
 * tell how many attempts all hosts have made, and each is due anew when another host's has failed. Who has not failed
 * at this step yet may be what it lacked. */
static ut_ns paced(const ut_job *j, uint64_t seq, ut_ns since)
{
    const uint64_t step = ut_step_of_op(seq);
    const uint32_t doublings = (uint32_t)(seq - ut_step_first_op(step)) / UT_OPS_MAX / UT_STEP_PACE;
    if (!doublings || ut_coded_of(j)->failing != step + 1 || is_made(j, seq))
        return since;
    return since + (64 * UT_MS << UT_MIN2(doublings - 1, (uint32_t)UT_STEP_ATTEMPTS / UT_STEP_PACE));
}

ut_ns ut_coded_waits_until(const ut_job *j, uint64_t seq, ut_ns since, ut_ns end)
{
    const ut_step_result *r = &ut_coded_of(j)->result[seq % UT_OPS_MAX];
    bool is_owed = r->there && !r->had && rank_of(j)->session != UINT32_MAX;
    bool in_vain = lacks_owner(j, seq) && ut_coded_can_be_had(j);
    const ut_ns rested = UT_MAX2(since + pause(j), paced(j, seq, since));
    if (!is_owed && !in_vain && !has_strangers(j) && !is_under_way_at_root(j, seq) && !goes_ahead(j, seq) &&
        !is_place_needed(j, seq))
        return rested;
    /* A call whose time is over waits no more, but its attempts pause. */
    const ut_ns quarter = (end == UT_NEVER ? 10 * UT_SECOND : end > since ? end - since : 0) / 4;
    return UT_MAX2(since + quarter, rested);
}

/* A kept receipt gives way after as many newer ones; then its result can be told of no more. */
static bool tells_of(const ut_receipt *kept, uint64_t step)
{
    return kept->step == step && kept->status != UT_FAILED;
}

static ut_step_result *result_of(const ut_job *j, uint64_t step)
{
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_step_result *r = &ut_coded_of(j)->result[k];
        if (r->there && r->step == step && tells_of(ut_answer_kept(j, r->receipt), step))
            return r;
    }
    return NULL;
}

/* The rank has gone on to |step|: it asks for nothing older any more. */
static void has_come_to(const ut_job *j, uint64_t step)
{
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if (ut_coded_of(j)->result[k].step < step)
            ut_coded_of(j)->result[k].had = true;
}

void ut_coded_asks_no_more(const ut_job *j)
{
    has_come_to(j, UINT64_MAX);
}

static ut_receipt behind(const ut_job *j, const ut_submission *x)
{
    ut_receipt receipt = ut_answer_brief(j, x, UT_BEHIND, UT_OK);
    receipt.step = (uint32_t)(first_open(j) - 1);
    receipt.exact = UT_EXACT_NO;
    return receipt;
}

/* The result of |step| is over and neither here nor coming. */
static bool is_behind(ut_job *j, uint64_t step)
{
    const ut_op *op = ut_coded_running(j);
    return is_over(j, step) && !result_of(j, step) && !(op && op->what.step == step);
}

uint64_t ut_coded_arrive(ut_job *j, ut_inbox *r, const ut_waiting *call, ut_ns now, ut_receipt *ret)
{
    const ut_submission *x = &call->submission;
    const ut_step_result *result = result_of(j, x->wanted);
    has_come_to(j, x->wanted);
    if (x->flags & UT_SUBMIT_GIVE)
        ut_inbox_put(r, call, UINT64_MAX, UINT64_MAX, now);
    if (result)
        return result->receipt;
    if (!is_behind(j, x->wanted))
        return 0;
    ut_inbox_drop(r, x);
    *ret = behind(j, x);
    return UT_ANSWERED;
}

void ut_coded_owed(ut_job *j, ut_inbox *r, const ut_submission *x)
{
    ut_step_result *result = result_of(j, x->wanted);
    if (result)
        result->had = true;
    ut_inbox_drop(r, x);
}

void ut_coded_answer_behind(ut_job *j, ut_ns now)
{
    ut_inbox *r = rank_of(j);
    for (uint32_t i = 0; r->session != UINT32_MAX && i < r->calls->count;) {
        ut_waiting *w = ut_calls_at(r->calls, i);
        if (w->answer || w->late || !is_behind(j, w->submission.wanted)) {
            i++;
            continue;
        }
        ut_waiting gone = ut_calls_remove(r->calls, i);
        ut_answer_without(j, r, &gone, behind(j, &gone.submission), now);
    }
}

bool ut_coded_is_for(const ut_op *op, const ut_gift *g)
{
    return g->said.oldest_step == op->what.step;
}

bool ut_coded_answers(const ut_op *op, const ut_inbox *r, const ut_submission *x, bool ok)
{
    return ok ? x->wanted == op->what.step : ut_inbox_lent(r, x);
}

void ut_coded_ended(ut_job *j, const ut_op *op, const ut_receipt *receipt, ut_ns now)
{
    ut_partial *p = j->partial;
    ut_coded *c = ut_coded_of(j);
    bool ok = receipt->status != UT_FAILED;
    bool again = !ok && receipt->error == UT_ERR_ABSENT && ut_coded_can_be_had(j) &&
                 ut_inbox_give_again(j, rank_of(j), receipt, now);
    c->tried = again ? c->tried + 1 : 0;
    c->failing = ok ? 0 : (uint64_t)op->what.step + 1;
    c->at = UT_MAX2(c->at, (uint64_t)op->what.step + ok);
    if (ok) {
        p->results = UT_MAX2(p->results, (uint64_t)op->what.step + 1);
        c->result[op->seq % UT_OPS_MAX] = (ut_step_result){.there = true,
                                                           .had = rank_of(j)->session == UINT32_MAX,
                                                           .step = op->what.step,
                                                           .receipt = j->account.kept_count};
        j->next_open = UT_MAX2(j->next_open, ut_step_first_op(p->results));
    }
    ut_inboxes_ended(j, op, receipt, now);
}
