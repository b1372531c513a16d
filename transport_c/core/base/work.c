/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/work.h"

/* What is small may overdraw a turn by as much again; beyond that even a crowd of small ops has to wait. */
static bool may(ut_work *w, uint64_t total)
{
    bool yes = w->left > (total <= UT_SMALL_BYTES ? -(int64_t)UT_TURN_BYTES : 0);
    w->waits = w->waits || !yes;
    return yes;
}

uint64_t ut_work_take(ut_work *w, uint64_t total, uint64_t want)
{
    if (!may(w, total))
        return 0;
    uint64_t most = total <= UT_SMALL_BYTES ? want : ((uint64_t)w->left + 63) & ~(uint64_t)63;
    uint64_t n = UT_MIN2(want, most);
    w->left -= (int64_t)n;
    w->waits = w->waits || n < want;
    return n;
}

bool ut_work_pass(ut_work *w, uint64_t total, uint64_t bytes)
{
    if (!may(w, total))
        return false;
    w->left -= (int64_t)bytes;
    return true;
}
