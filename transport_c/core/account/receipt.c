/* SPDX-License-Identifier: Apache-2.0
 *
 * The account of an op. It says only what this host knows: where the masks of a shard are not known, nobody is claimed
 * to be in it.
 */
#include "core/account/account.h"

static uint64_t all_hosts(const ut_op_account *a)
{
    return ut_bits_below(a->job->hosts);
}

/* Every byte that was expected came or is missing; and the sums are those of the rows. */
static bool rows_balance(const ut_receipt *r, uint32_t hosts)
{
    uint64_t expected = 0, missing = 0;
    for (uint32_t h = 0; h < hosts; h++)
        for (unsigned stage = 0; stage < 2; stage++) {
            if (r->peer[h].missing[stage] > r->peer[h].expected[stage])
                return false;
            expected += r->peer[h].expected[stage];
            missing += r->peer[h].missing[stage];
        }
    return expected == r->bytes_expected && missing == r->bytes_missing;
}

static void account_receive(const ut_op_account *a, ut_ns start, uint32_t i, ut_receipt *r)
{
    const ut_step *s = &a->plan->schedule.step[i];
    const ut_transfer *t = &a->plan->transfer[i];
    ut_receipt_peer *row = &r->peer[s->peer];
    uint64_t missing = ut_transfer_missing(t, a->job->payload);
    uint64_t expected =
        ut_transfer_expected(t, s->bytes) - (ut_transfer_moot(t) ? ut_transfer_outstanding(t, a->job->payload) : 0);
    assert(s->peer < a->job->hosts && s->peer != a->job->self && missing <= expected);
    row->expected[s->stage - 1] += expected;
    row->missing[s->stage - 1] += (uint32_t)missing;
    if (missing && row->why == UT_MISSING_NOTHING)
        row->why = t->why;
    if (s->stage == 1 && t->weight)
        row->weight = row->weight ? UT_MIN2(row->weight, t->weight) : t->weight;
    if (t->last)
        row->last_us = (uint32_t)UT_MAX2(row->last_us, (t->last - start) / UT_US);
    r->bytes_expected += expected;
    r->bytes_missing += missing;
}

void ut_receipt_rows(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r)
{
    for (uint32_t i = 0; i < a->plan->schedule.steps; i++)
        if (a->plan->schedule.step[i].kind == UT_STEP_RECEIVE)
            account_receive(a, f->start, i, r);
    assert(rows_balance(r, a->job->hosts) && !r->peer[a->job->self].expected[0]);
    r->bytes_used = r->bytes_expected - r->bytes_missing;
}

/* The record in which |host| told who is in its shard; NULL if it has not, or if a later op's has taken its place. */
static const ut_record *masks_of_shard(const ut_account_facts *f, uint32_t host)
{
    const ut_record *r = f->record[host];
    bool told = f->peer_masks & ut_bit(host);
    return told && r->op_seq == f->seq && (r->flags & UT_RECORD_RESULT) ? r : NULL;
}

/* What came of |host|'s shard, from the host itself: takes from |*full| whoever is not in every byte of it, and adds to
 * |*any| who is in some. The owner's word goes before the count of ranks, which are those that we have heard of: with a
 * host that we never heard in the place of one of them a shard weighs the same. */
static void account_shard(const ut_op_account *a, const ut_account_facts *f, uint32_t host, uint64_t *full,
                          uint64_t *any)
{
    const ut_record *told = masks_of_shard(f, host);
    *any |= ut_bit(host); /* the owner is in all of its shard */
    if (told) {
        bool all_came = ut_transfer_complete(&a->plan->transfer[a->plan->rx_of[1][host]]);
        *full &= told->full_mask;
        *any |= (all_came ? told->any_mask : told->full_mask) & all_hosts(a); /* in a part are those in every byte */
    } else if (f->peer_masks & ut_bit(host)) {
        *full &= f->peer_full;
    } else if (a->fold->result.short_hosts & ut_bit(host)) {
        *full = 0;
    } else {
        *any |= all_hosts(a);
    }
}

/* Some slot of |chunk| holds all ranks. */
static bool has_whole_slot(const ut_op_account *a, uint32_t chunk)
{
    for (uint32_t g = a->fold->first[chunk]; g < a->fold->first[chunk + 1]; g++)
        if (a->fold->weight[g] == a->job->world)
            return true;
    return false;
}

/* The masks where results pass through other hands than their owner's: of what lacks ranks nobody knows which. All that
 * is sure is what all are in, whom our own chunk came from, and that we are in what was filled in here. */
static void account_forwarded_masks(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r)
{
    uint64_t full = all_hosts(a), any = 0;
    for (uint32_t c = 0; c < a->plan->schedule.chunks; c++) {
        uint32_t down = a->fold->down[c];
        if (a->fold->first[c] == a->fold->first[c + 1])
            continue;
        if (!(a->fold->result.thin >> c & 1)) {
            any = all_hosts(a);
            continue;
        }
        bool own = c == a->plan->schedule.own, filled = !own && a->plan->transfer[down].done == 0;
        full &= own ? f->full_mask : filled ? ut_bit(a->job->self) : 0;
        any |= own ? f->any_mask : ut_transfer_complete(&a->plan->transfer[down]) ? 0 : ut_bit(a->job->self);
        if (has_whole_slot(a, c))
            any = all_hosts(a);
    }
    r->full_mask = full;
    r->any_mask = any | full;
}

void ut_receipt_masks(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r)
{
    bool own = a->plan->schedule.own_bytes > 0;
    uint64_t full = own ? f->full_mask : all_hosts(a), any = own ? f->any_mask : 0;
    if (!a->plan->schedule.direct) {
        account_forwarded_masks(a, f, r);
        return;
    }
    for (uint32_t h = 0; h < a->job->hosts; h++) {
        uint32_t i = a->plan->rx_of[1][h];
        if (i == UINT32_MAX || a->plan->transfer[i].slots == 0)
            continue;
        const ut_transfer *t = &a->plan->transfer[i];
        if (!ut_transfer_complete(t)) { /* our own value stands in for what is missing */
            full &= ut_bit(a->job->self);
            any |= ut_bit(a->job->self);
        }
        if (t->done)
            account_shard(a, f, h, &full, &any);
    }
    r->full_mask = full;
    r->any_mask = any | full;
}

void ut_receipt_keep(ut_job_account *j, const ut_receipt *r)
{
    assert(r->hosts <= UT_HOSTS_MAX && r->self < UT_MAX2(r->hosts, 1));
    ut_receipt *to = &j->kept[j->kept_count++ % UT_RECEIPTS_KEPT];
    memcpy(to, r, offsetof(ut_receipt, peer) + r->hosts * sizeof *r->peer);
}

const ut_receipt *ut_receipt_back(const ut_job_account *j, uint32_t back)
{
    if (back >= UT_RECEIPTS_KEPT || back >= j->kept_count)
        return NULL;
    return &j->kept[(j->kept_count - 1 - back) % UT_RECEIPTS_KEPT];
}

void ut_account_init(ut_op_account *a, ut_job_account *job, const ut_op_what *what, const ut_op_plan *plan,
                     const ut_op_fold *fold)
{
    assert(job && what && plan && fold);
    a->job = job;
    a->what = what;
    a->plan = plan;
    a->fold = fold;
}
