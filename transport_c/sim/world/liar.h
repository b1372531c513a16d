/* SPDX-License-Identifier: Apache-2.0
 *
 * A world's hostile host. It is in the job, so its packets are authentic; what they say need not be true.
 */
#ifndef SIM_LIAR_H
#define SIM_LIAR_H

#include "sim/sim.h"

/* What it lies about: bits of sim_liar.about. */
enum sim_about {
    SIM_ABOUT_LOSS,     /* feedback: what it still misses, which is what an epoch's codec follows */
    SIM_ABOUT_NUMBERS,  /* of feedback: its own, grant, floors */
    SIM_ABOUT_ACKS,     /* what it received, and when */
    SIM_ABOUT_WHICH_OP, /* records: number, size, kind */
    SIM_ABOUT_STATE,    /* records: flags, ranks, masks, digest, time */
    SIM_ABOUT_PARTIAL,  /* records: what only partial jobs use */
    SIM_ABOUT_EPOCH,    /* records and data: under which epoch */
    SIM_ABOUT_PLACE,    /* data: op, stage, offset, coverage, flags */
    SIM_ABOUT_TIMES,    /* data: packet number, time, the paper's header */
    SIM_ABOUT_PIECES,
    SIM_ABOUT_AGAIN, /* old packets */
    SIM_ABOUTS,
    SIM_ABOUT_PARITY = SIM_ABOUTS, /* which group it is of; where hosts are far (far.h) */
};

/* Perhaps makes one host of the plan hostile; |always|: wherever there are two. Draws from a generator of its own. */
void sim_plan_draw_hostile(sim_plan *plan, uint64_t seed, bool always);
/* What host |packet->from| sends instead of |packet|; the packet itself if it is honest, now. May send another before.
 */
sim_packet *sim_lie(sim_world *w, sim_packet *packet);

static inline bool sim_is_liar(const sim_world *w, uint32_t host)
{
    return w->plan.hostile && w->plan.liar.host == host;
}
/* Mask of indices in the job: the hostile host, or nobody. */
static inline uint64_t sim_liar_of(const sim_world *w, const sim_job *job)
{
    uint32_t index = w->plan.hostile ? job->index_of[w->plan.liar.host] : UINT32_MAX;
    return index == UINT32_MAX ? 0 : sim_bit(index);
}

/* Hosts, by index in the job, that are honest and were there from the first op on. */
static inline uint64_t sim_steady(const sim_world *w, uint32_t job)
{
    uint64_t mask = 0;
    for (uint32_t h = 0; h < w->plan.job[job].hosts; h++) {
        const sim_host *host = &w->host[w->plan.job[job].host[h]];
        mask |= (uint64_t)(host->alive && host->life == 1 && !sim_is_liar(w, host->index)) << h;
    }
    return mask;
}

#endif
