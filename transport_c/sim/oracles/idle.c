/* SPDX-License-Identifier: Apache-2.0
 *
 * What an up-link was idle for, as far as that can be told from outside the engine: looked at whenever the host's
 * thread begins a turn, of the time since the turn before.
 */
#include "sim/oracles/oracles.h"

/* At the beginning of a turn. */
void sim_idle_look(sim_world *w, sim_host *h)
{
    ut_ns from = UT_MAX2(h->up_free, h->idle_since), stirred = UT_MIN2(h->stirred_at, w->now);
    h->idle_since = w->now;
    if (from >= w->now)
        return;
    stirred = UT_MAX2(stirred, from);
    h->idle[h->idle_why] += stirred - from;
    ut_ns free = UT_MIN2(UT_MAX2(h->busy_until, stirred), w->now);
    h->idle[SIM_IDLE_CPU] += free - stirred;
    h->idle[SIM_IDLE_ASLEEP] += w->now - free;
}

/* And at its end. */
void sim_idle_note(sim_host *h, bool blocked)
{
    bool op = false;
    for (uint32_t s = 0; s < h->sessions; s++)
        op = op || (h->by_session[s] && h->by_session[s]->out);
    h->idle_why = blocked ? SIM_IDLE_BLOCKED : op ? SIM_IDLE_ENGINE : SIM_IDLE_NO_OP;
    h->stirred_at = UT_NEVER;
}
