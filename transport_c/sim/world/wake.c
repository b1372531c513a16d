/* SPDX-License-Identifier: Apache-2.0
 *
 * When a host's thread is served next: at its timer, or once something has come and the scheduler has let it run.
 */
#include "sim/sim.h"

void sim_host_wake(sim_world *w, sim_host *h, ut_ns at)
{
    at = UT_MAX2(UT_MAX2(at, h->busy_until), w->now);
    if (h->paused)
        at = UT_MAX2(at, h->resumes);
    if (h->service_at <= at)
        return;
    h->service_at = at;
    sim_push(w, at, SIM_EV_SERVICE, h->index, ++h->service_gen, 0, 0, NULL);
}

ut_ns sim_woken(sim_world *w, ut_ns at)
{
    ut_ns late = w->faults ? sim_below(&w->rng_host, w->plan.wake_max + 1) : 0;
    if (late > 50 * UT_US)
        w->cover[SIM_slow_wake]++;
    return at + late;
}

void sim_host_readable(sim_world *w, sim_host *h)
{
    h->stirred_at = UT_MIN2(h->stirred_at, w->now);
    if (w->plan.wake_firm && h->stirring)
        return;
    h->stirring = true;
    if (w->plan.wake_firm && w->now < h->busy_until) /* it works, and looks at its sockets before it sleeps */
        sim_host_wake(w, h, h->busy_until);
    else if (h->service_at == UT_NEVER || h->service_at > w->now)
        sim_host_wake(w, h, sim_woken(w, w->now));
}
