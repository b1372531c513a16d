/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/world/seats.h"

#include <stdlib.h>

void sim_seats_make(sim_job *job)
{
    job->signs = job->ranks * SIM_SEAT_SIGNS;
    for (uint32_t h = 0; h < job->plan->hosts; h++)
        for (uint32_t k = 1; k < SIM_SEAT_SIGNS; k++)
            job->host_ranks[h] |= sim_bit(h + k * job->ranks);
}

uint32_t sim_seats_sign(const sim_world *w, uint32_t job, uint32_t self, uint32_t life)
{
    const sim_job *j = &w->job[job];
    uint32_t first = (uint32_t)__builtin_ctzll(j->host_ranks[self]);
    return j->plan->seats ? first + (life - 1) % SIM_SEAT_SIGNS * j->ranks : first;
}

uint64_t sim_seats_of(const sim_job *job, uint64_t signs)
{
    uint64_t seats = signs;
    if (!job->plan->seats)
        return signs;
    for (uint32_t k = 1; k < SIM_SEAT_SIGNS; k++)
        seats |= signs >> k * job->ranks;
    return seats & sim_first(job->ranks);
}

void sim_seats_decided(sim_world *w, uint32_t job)
{
    sim_job *j = &w->job[job];
    sim_job_epochs *e = &j->epochs;
    if (e->number >= e->who_n) {
        uint64_t room = UT_MAX2(64, 2 * e->number);
        e->who = realloc(e->who, room * sizeof *e->who);
        assert(e->who);
        memset(e->who + e->who_n, 0, (room - e->who_n) * sizeof *e->who);
        e->who_n = room;
    }
    uint64_t who = 0;
    for (uint32_t h = 0; h < j->plan->hosts; h++) {
        uint32_t life = w->host[j->plan->host[h]].life;
        if (!(e->decided.members >> h & 1))
            continue;
        who |= sim_bit(sim_seats_sign(w, job, h, life));
        w->cover[SIM_SEATS_joined] += life > e->owner_life[h];
    }
    w->cover[SIM_SEATS_changed] += e->number > 1 && e->who[e->number - 1] != who;
    e->who[e->number] = who;
}

bool sim_seats_differ(const sim_world *w, uint32_t job)
{
    const sim_job *j = &w->job[job];
    for (uint32_t h = 0; j->plan->seats && h < j->plan->hosts; h++)
        if (j->epochs.decided.members >> h & 1 && w->host[j->plan->host[h]].life != j->epochs.owner_life[h])
            return true;
    return false;
}

bool sim_seats_leave(sim_world *w, uint32_t index)
{
    const sim_item *item = &w->plan.item[index];
    sim_job *j = &w->job[item->job];
    uint64_t bit = sim_bit(j->index_of[item->host]);
    if (j->epochs.leaving & bit)
        return false;
    j->epochs.leaving |= bit;
    j->epochs.stale = true;
    w->cover[SIM_SEATS_left]++;
    sim_push(w, w->now + item->grace, SIM_EV_ITEM, index, 0, 0, 0, NULL);
    return true;
}

void sim_seats_stay(sim_world *w)
{
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        w->job[job].epochs.leaving = 0;
}
