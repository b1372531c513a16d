/* SPDX-License-Identifier: Apache-2.0
 *
 * What is kept of a result for peers after the receipt, when the trainer may write its buffer again.
 */
#include "core/fold/slots_impl.h"

bool ut_fold_keep(const ut_op_fold *f, ut_progress *way)
{
    assert(f->plan->schedule.chunks <= UT_HOSTS_MAX);
    uint32_t first[UT_HOSTS_MAX]; /* per chunk: the first slot that somebody may still want */
    if (ut_op_in_job_memory(f->memory))
        return true;
    memset(first, 0xff, sizeof first);
    for (uint32_t i = 0; i < f->plan->schedule.steps; i++) {
        const ut_step *s = &f->plan->schedule.step[i];
        const ut_transfer *t = &f->plan->transfer[i];
        if (s->kind != UT_STEP_SEND || s->stage != 2 || ut_transfer_over(t))
            continue;
        uint32_t w = 0, most = UT_MIN2(first[s->chunk], t->slots);
        while (w < most / 64 && t->bits[w] == UINT64_MAX)
            w++;
        first[s->chunk] = UT_MIN2(most, w * 64);
    }
    for (; way->index < f->plan->schedule.chunks; way->index++, way->at = 0) {
        uint32_t c = way->index;
        if (first[c] >= slots_of(f, c))
            continue;
        uint64_t at = UT_MAX2(way->at, offset_of(f, c, first[c])), end = f->plan->schedule.from[c + 1];
        while (at < end) {
            uint64_t some = ut_work_take(f->turn, f->what->bytes, end - at);
            if (some == 0) {
                way->at = at;
                return false;
            }
            memcpy(f->memory->held + (at - f->memory->held_from), dst_at(f, at), some);
            at += some;
        }
    }
    f->memory->out = f->memory->held;
    f->memory->out_from = f->memory->held_from;
    return true;
}
