/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fold/weighted.h"

#include "core/fold/slots_impl.h"

#include "kernels/kernels.h"

double ut_fold_weight_of(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    uint64_t sum = f->share[f->self];
    for (uint32_t i = 0; i < f->plan->schedule.steps; i++) {
        const ut_step *s = &f->plan->schedule.step[i];
        if (s->kind == UT_STEP_RECEIVE && s->stage == 1 && s->chunk == chunk && f->share[s->peer] &&
            ut_transfer_has(&f->plan->transfer[i], slot))
            sum += f->share[s->peer];
    }
    return (double)sum;
}

static void open(ut_op_fold *f)
{
    assert(f->plan->schedule.direct && f->averaged);
    (void)f;
}

static bool is_begun(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    return f->state[f->first[chunk] + slot] & UT_SLOT_FOLDS;
}

static bool arrive(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len, unsigned ranks)
{
    const uint64_t at = offset_of(f, s->chunk, slot);
    const size_t n = len / f->what->element;
    (void)ranks;
    if (!is_begun(f, s->chunk, slot))
        ut_weigh_in(f->what->dtype, acc_at(f, at), src_at(f, at), f->share[f->self], true, n);
    ut_weigh_in(f->what->dtype, acc_at(f, at), payload, f->share[s->peer], false, n);
    return true;
}

static size_t finish(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint8_t *dst, size_t len)
{
    const uint64_t at = offset_of(f, chunk, slot);
    const double sum = ut_fold_weight_of(f, chunk, slot);
    const size_t n = len / f->what->element;
    if (sum > 0)
        return is_begun(f, chunk, slot) ? ut_weigh_out(f->what->dtype, dst, acc_at(f, at), sum, n)
                                        : ut_place(f->what->dtype, dst, src_at(f, at), n);
    memset(dst, 0, len);
    return 0;
}

const ut_fold_rule ut_fold_weighted = {.open = open, .arrive = arrive, .finish = finish};
