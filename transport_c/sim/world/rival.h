/* SPDX-License-Identifier: Apache-2.0
 *
 * A flow of somebody else's towards host 0: as TCP does it, with a window by cubic. It is no part of any job; its
 * packets only take room in the queue and time on the link. What it reacts to is loss, a round trip after it.
 */
#ifndef SIM_RIVAL_H
#define SIM_RIVAL_H

#include "core/base/ut.h"

struct sim_world;
struct sim_event;

typedef struct sim_rival {
    double window, most, friendly; /* packets; most: where it last lost */
    double round;                  /* seconds: the newest round trip */
    uint64_t flying;               /* packets */
    bool past_start;               /* it has lost once */
    ut_ns epoch;                   /* when the window last shrank */
    ut_ns recovers;                /* losses of packets sent before count no more */
    ut_ns up_free;                 /* its own link is busy until then */
    uint64_t bytes, ours; /* what the link to host 0 has carried while host 0 was in an op: its, and the job's */
} sim_rival;

void sim_rival_start(struct sim_world *w);
void sim_rival_event(struct sim_world *w, const struct sim_event *event);
/* A packet of the job's has taken host 0's link. */
void sim_rival_beside(struct sim_world *w, uint32_t to, uint64_t bytes);

#endif
