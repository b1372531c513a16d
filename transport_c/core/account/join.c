/* SPDX-License-Identifier: Apache-2.0 */
#include "core/account/join.h"

#include "core/base/mix.h"
#include "core/base/portion.h"

#include <assert.h>
#include <string.h>

static void longer(uint64_t *to, uint64_t of)
{
    *to = UT_MAX2(*to, of);
}

static void longer32(uint32_t *to, uint32_t of)
{
    *to = UT_MAX2(*to, of);
}

/* Of two ends of a stage the one of which less came. */
static uint8_t worse_end(uint8_t a, uint8_t b)
{
    static const uint8_t order[] = {
        [UT_END_COMPLETE] = 1, [UT_END_EARLY] = 2, [UT_END_ABSENT] = 3, [UT_END_DEADLINE] = 4};
    if (a >= sizeof order || b >= sizeof order)
        return UT_MAX2(a, b);
    return order[a] >= order[b] ? a : b;
}

static void join_row(ut_receipt_peer *to, const ut_receipt_peer *row)
{
    uint64_t mine = (uint64_t)to->missing[0] + to->missing[1], its = (uint64_t)row->missing[0] + row->missing[1];
    if (its > mine || (its == mine && !to->why))
        to->why = row->why;
    if (its > mine || !to->trouble)
        to->trouble = row->trouble;
    for (unsigned stage = 0; stage < 2; stage++) {
        to->expected[stage] += row->expected[stage];
        to->missing[stage] += row->missing[stage];
    }
    to->weight = UT_MIN2(to->weight, row->weight);
    longer(&to->share, row->share);
    to->fresh &= row->fresh;
    to->gone |= row->gone;
    to->late |= row->late;
    if (row->first_us && (!to->first_us || row->first_us < to->first_us))
        to->first_us = row->first_us;
    longer32(&to->last_us, row->last_us);
    longer32(&to->opened_us, row->opened_us);
    longer32(&to->quiet_us, row->quiet_us);
    longer32(&to->delay_us, row->delay_us);
    to->repaired += row->repaired;
    to->lost += row->lost;
    to->drops += row->drops;
}

/* What failed says why; the first such portion counts. Of two that did not fail, the one that lacks more. */
static void join_blame(ut_receipt *to, const ut_receipt *r)
{
    bool failed = to->status == UT_FAILED, fails = r->status == UT_FAILED;
    if (failed || (!fails && r->bytes_missing <= to->bytes_missing))
        return;
    to->error = r->error;
    to->culprit = r->culprit;
    to->trouble = r->trouble;
    to->field = r->field;
    to->value_here = r->value_here;
    to->value_there = r->value_there;
}

static uint32_t join_status(uint32_t a, uint32_t b)
{
    return a == b ? a : a == UT_FAILED || b == UT_FAILED ? UT_FAILED : UT_PARTIAL;
}

/* Which op all hosts are known to agree on: the older one, unless one is known on which they differ. */
static void join_agreed(ut_receipt *to, const ut_receipt *r, uint32_t own)
{
    bool none = to->agreed_seq == own || r->agreed_seq == (uint32_t)r->op_seq;
    if (to->differ_mask)
        return;
    if (r->differ_mask || (!none && (int32_t)(r->agreed_seq - to->agreed_seq) < 0))
        to->agreed_seq = r->agreed_seq;
    else if (none)
        to->agreed_seq = own;
    to->differ_mask = r->differ_mask;
}

static void join_next(ut_receipt *to, const ut_receipt *r)
{
    join_blame(to, r);
    join_agreed(to, r, (uint32_t)to->op_seq);
    to->status = join_status(to->status, r->status);
    for (unsigned h = to->hosts; h < r->hosts; h++) /* a portion that was refused has no rows */
        to->peer[h] = r->peer[h];
    for (unsigned h = 0; h < UT_MIN2(to->hosts, r->hosts); h++)
        join_row(&to->peer[h], &r->peer[h]);
    to->self = to->hosts ? to->self : r->self;
    to->hosts = UT_MAX2(to->hosts, r->hosts);
    for (unsigned stage = 0; stage < 2; stage++) {
        to->stage_end[stage] = worse_end(to->stage_end[stage], r->stage_end[stage]);
        longer(&to->stage_ns[stage], r->stage_ns[stage]);
        longer32(&to->t_c_us[stage], r->t_c_us[stage]);
    }
    longer32(&to->t_b_us, r->t_b_us);
    longer(&to->elapsed_ns, r->elapsed_ns);
    longer(&to->deadline_ns, r->deadline_ns);
    to->hadamard |= r->hadamard;
    to->incast = UT_MAX2(to->incast, r->incast);
    to->weight_min = UT_MIN2(to->weight_min, r->weight_min);
    to->full_mask &= r->full_mask;
    to->any_mask |= r->any_mask;
    to->owners |= r->owners;
    to->relayed_mask |= r->relayed_mask;
    to->relays_mask |= r->relays_mask;
    to->bytes_expected += r->bytes_expected;
    to->bytes_used += r->bytes_used;
    to->bytes_missing += r->bytes_missing;
    to->bytes_redundant += r->bytes_redundant;
    to->bytes_repaired += r->bytes_repaired;
    to->bytes_duplicate += r->bytes_duplicate;
    to->nonfinite += r->nonfinite;
    to->nonfinite_given += r->nonfinite_given;
    to->error_given_squared += r->error_given_squared;
    to->error_answer_squared += r->error_answer_squared;
    to->drops_host += r->drops_host;
    to->wire_sent += r->wire_sent;
    to->wire_received += r->wire_received;
    to->digest = to->digest && r->digest ? ut_mix(to->digest + UT_MIX_STEP) + r->digest : 0;
}

void ut_receipt_of_job(ut_receipt *r, uint32_t lane, uint32_t lanes)
{
    /* The number with those low bits that is nearest to the op's own: a receipt tells of ops around its own. */
    const int32_t apart = (int32_t)(r->agreed_seq - (uint32_t)r->op_seq);
    r->op_seq = ut_job_seq(r->op_seq, lane, lanes);
    r->agreed_seq = (uint32_t)r->op_seq + (uint32_t)apart * lanes;
}

void ut_receipt_join(ut_receipt *ret, const ut_receipt *const *portion, unsigned portions)
{
    assert(portions >= 1 && portions <= UT_LANES_MAX);
    memcpy(ret, portion[0], offsetof(ut_receipt, peer) + portion[0]->hosts * sizeof *ret->peer);
    bool balanced = ut_receipt_balances(ret); /* portions come from memory that others can write */
    for (unsigned i = 1; i < portions; i++) {
        balanced = balanced && ut_receipt_balances(portion[i]);
        join_next(ret, portion[i]);
    }
    assert(!balanced || ut_receipt_balances(ret));
    ret->error_given_squared /= portions; /* of an element: portions are as large as each other, but for the last */
    ret->error_answer_squared /= portions;
    if (portions > 1)
        ret->portion = ut_portion(0, portions);
}

void ut_event_join(ut_event *ret, const ut_event *portion, unsigned portions)
{
    assert(portions >= 1 && portions <= UT_LANES_MAX);
    const uint64_t own = 0xff000000; /* of ut_event_what: what ails the culprit */
    const ut_event *worst = portion;
    ut_event all = portion[0];
    for (unsigned i = 1; i < portions; i++) {
        const ut_event *e = &portion[i];
        if (worst->a != UT_FAILED && (e->a == UT_FAILED || e->c > worst->c))
            worst = e;
        all.a = join_status((uint32_t)all.a, (uint32_t)e->a);
        longer(&all.b, e->b);
        all.c += e->c;
        all.d += e->d;
    }
    all.host = worst->host;
    all.e = (all.e & 0xffffff) | (worst->host != UINT32_MAX ? worst->e & own : 0);
    *ret = all;
}
