/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/meter.h"

void ut_meter_begin(ut_meter *m, bool begun, ut_ns now)
{
    m->acked = m->gone = 0;
    m->dry = false;
    m->begun = begun;
    m->since = now;
}

ut_pulse ut_meter_end(ut_meter *m, bool full, ut_ns now)
{
    ut_ns lasted = now - m->since;
    ut_pulse p = {.acked = m->acked * UT_PULSE_NS / lasted,
                  .gone = m->gone * UT_SECOND / lasted,
                  .sent = m->acked,
                  .lasted = lasted,
                  .idle = m->begun || m->dry || !full};
    m->best = UT_MAX2(p.acked, m->best - m->best / 256);
    ut_meter_begin(m, false, now);
    return p;
}
