/* SPDX-License-Identifier: Apache-2.0
 *
 *   O18 seats: a receipt names the epoch that held in its op on this host, and its members; of each seat only the host
 *   that had it in that epoch is in the result, besides the host's own value
 */
#include "sim/world/seats.h"
#include "sim/oracles/view.h"
#include "sim/world/epochs.h"

#define FAIL(...) SIM_VIEW_FAIL("O18 seats", __VA_ARGS__)

static uint64_t members_of(const sim_view *v)
{
    const sim_job_epochs *e = &v->job->epochs;
    return v->r->view < e->who_n ? e->who[v->r->view] : 0;
}

uint64_t sim_whole_of(const sim_view *v)
{
    bool seats = v->job->plan->seats && v->r->view;
    return seats ? members_of(v) : sim_first(v->job->ranks);
}

static void count(const sim_view *v)
{
    const ut_receipt *r = v->r;
    uint32_t in = sim_ones(r->members);
    uint64_t *cover = v->w->cover;
    cover[SIM_SEATS_before_in] += r->view == 0;
    cover[SIM_SEATS_not_in] += !(r->members >> v->self & 1);
    cover[SIM_SEATS_partial] += r->status == UT_PARTIAL;
    cover[SIM_SEATS_insufficient] += r->status == UT_INSUFFICIENT;
    cover[SIM_SEATS_taken_again] += (members_of(v) & ~sim_first(v->job->ranks)) != 0;
    if (r->status == UT_COMPLETE)
        cover[in == v->hosts ? SIM_SEATS_complete_all : in > 1 ? SIM_SEATS_complete_fewer : SIM_SEATS_complete_alone]++;
}

void sim_seats_check(sim_view *v)
{
    const ut_receipt *r = v->r;
    uint64_t number = sim_epoch_number_at(v->w, v->rank->job, v->self, r->op_seq), who = members_of(v);
    if (number != UINT64_MAX && r->view != number)
        FAIL("it names epoch %" PRIu64 ", epoch %" PRIu64 " held", r->view, number);
    if (r->view && r->members != sim_seats_of(v->job, who))
        FAIL("epoch %" PRIu64 " is said to be hosts %#" PRIx64 ", it is %#" PRIx64, r->view, r->members,
             sim_seats_of(v->job, who));
    uint64_t strangers = v->anywhere.ranks & ~(who | sim_bit(v->rank->sign));
    if (!r->view && r->status == UT_COMPLETE && v->ask->as.count)
        FAIL("it is whole, and its host was in no epoch, of %u hosts", v->hosts);
    if (strangers && r->view) /* hosts that are in none yet may meet in an op of before */
        FAIL("signs %#" PRIx64 " are in it, which are not in epoch %" PRIu64 ": %#" PRIx64, strangers, r->view, who);
    count(v);
}
