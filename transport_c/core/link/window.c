/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/window.h"

#include "core/op/op.h"

static void begin(ut_window *w, ut_ns now)
{
    w->acked = w->gone = 0;
    w->held = w->begun = w->full = w->dry = false;
    w->since = now;
}

void ut_window_begin(ut_job *j, ut_ns now)
{
    begin(&j->window, now);
    j->window.begun = true;
}

/* What holds for us holds for the peer, as far as anybody knows: its windows are about as large as ours. */
static void set_share(ut_conn *c, uint64_t bytes)
{
    ut_cc_share(&c->cc, bytes);
    ut_conn_expect(c, c->cc.share);
}

static bool nothing_to_carry(const ut_job *j)
{
    if (j->pace.held)
        return false;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && j->conn[h].tx.flying)
            return false;
    return true;
}

void ut_window_look(ut_job *j, ut_ns now, bool news)
{
    ut_window *w = &j->window;
    ut_ns lasted = now - w->since;
    w->dry = w->dry || (news && nothing_to_carry(j));
    if (lasted < (news ? UT_PULSE_NS : 2 * UT_PULSE_NS))
        return;
    uint64_t pulse = w->acked * UT_PULSE_NS / lasted;
    w->best = UT_MAX2(pulse, w->best - w->best / 256);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h))
            set_share(&j->conn[h], w->best * UT_WINDOW_NS / UT_PULSE_NS);
    if (w->acked)
        ut_pace_pulse(&j->pace, w->gone * UT_SECOND / lasted, w->begun || w->dry || !w->full);
    /* If peers kept their turn and much less came through than the link has shown that it can, the ops that are open
     * send to whoever takes data from now on. */
    if (w->held && pulse < w->best / 8 * 5)
        w->spread_below = j->next_open;
    begin(w, now);
}
