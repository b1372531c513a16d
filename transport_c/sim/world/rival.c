/* SPDX-License-Identifier: Apache-2.0
 *
 * TCP cubic, as far as a queue sees it (RFC 9438): slow start until the first loss, then the cubic curve or what Reno
 * would have, whichever is more; 0.7 of the window after a loss; at most one such step in a round trip. Lost packets
 * are sent again at once, for somebody who has no end of data that is the same as sending others.
 */
#include "sim/sim.h"

enum { SEGMENT = 1514 + 24, FIRST_WINDOW = 10, IN_QUEUE = 1500 }; /* bytes on the wire; packets; bytes in a queue */
enum what { AT_SWITCH, ACKNOWLEDGED, LOST };
#define KEPT 0.7 /* of the window, after a loss */
#define STEEP 0.4

static double cube_root(double x)
{
    double y = x > 1 ? x : 1;
    for (unsigned i = 0; i < 60; i++)
        y -= (y * y * y - x) / (3 * y * y);
    return y;
}

static void send(sim_world *w)
{
    sim_rival *r = &w->rival;
    while ((double)r->flying < r->window) {
        r->flying++;
        r->up_free = UT_MAX2(r->up_free, w->now) + SEGMENT * UT_SECOND / w->plan.rate_up;
        sim_push(w, r->up_free + w->plan.delay_min, SIM_EV_RIVAL, AT_SWITCH, 0, 0, w->now, NULL);
    }
}

void sim_rival_start(sim_world *w)
{
    if (!w->plan.rival)
        return;
    w->rival.window = FIRST_WINDOW;
    send(w);
}

static bool counts(const sim_world *w)
{
    const sim_rank *r = &w->job[0].rank[0];
    return w->plan.rival && r->out > 0 && r->next > w->plan.rival_after && r->next <= w->plan.job[0].ops;
}

void sim_rival_beside(sim_world *w, uint32_t to, uint64_t bytes)
{
    if (to == 0 && counts(w))
        w->rival.ours += bytes;
}

static void at_switch(sim_world *w, ut_ns sent)
{
    ut_ns leaves;
    if (!sim_net_take(w, &w->host[0], IN_QUEUE, SEGMENT, &leaves)) {
        sim_push(w, leaves + w->plan.delay_min, SIM_EV_RIVAL, LOST, 0, 0, sent, NULL); /* by what comes behind it */
        return;
    }
    if (counts(w))
        w->rival.bytes += SEGMENT;
    sim_push(w, leaves + w->plan.delay_min, SIM_EV_RIVAL, ACKNOWLEDGED, 0, 0, sent, NULL);
}

static void acknowledged(sim_world *w, ut_ns sent)
{
    sim_rival *r = &w->rival;
    r->flying--;
    r->round = (double)(w->now - sent) / UT_SECOND;
    if (!r->past_start) {
        r->window++;
        return;
    }
    double t = (double)(w->now - r->epoch) / UT_SECOND + r->round, k = cube_root(r->most * (1 - KEPT) / STEEP);
    double cubic = STEEP * (t - k) * (t - k) * (t - k) + r->most;
    r->friendly += 3 * (1 - KEPT) / (1 + KEPT) / r->window;
    double aim = UT_MIN2(UT_MAX2(cubic, r->friendly), 1.5 * r->window);
    if (aim > r->window)
        r->window += (aim - r->window) / r->window;
}

static void lost(sim_world *w, ut_ns sent)
{
    sim_rival *r = &w->rival;
    r->flying--;
    if (sent < r->recovers)
        return;
    r->most = r->past_start && r->window < r->most ? r->window * (1 + KEPT) / 2 : r->window;
    r->window = UT_MAX2(r->window * KEPT, 2.0);
    r->friendly = r->window;
    r->past_start = true;
    r->epoch = r->recovers = w->now;
}

void sim_rival_event(sim_world *w, const sim_event *event)
{
    if (event->a == AT_SWITCH)
        at_switch(w, event->d);
    else if (event->a == ACKNOWLEDGED)
        acknowledged(w, event->d);
    else
        lost(w, event->d);
    if (w->faults) /* in the calm it is gone */
        send(w);
}
