/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fold/ordered.h"

#include "core/fold/slots_impl.h"

#include "kernels/kernels.h"

/* Bytes from one host's contribution to the next: whole cache lines. */
static uint64_t stride_of(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

uint64_t ut_ordered_bytes(const ut_job_config *config)
{
    bool serves = ut_options_algorithm(&config->options) == UT_PS && config->self == UT_PS_SERVER;
    uint64_t others = config->hosts - 1, bucket = config->bucket_bytes_max;
    if (!ut_options_deterministic(&config->options) || config->hosts <= 2)
        return 0;
    /* All of a shard, from each of the others: in reduce-scatters of any job, and in TAR. A shard is a part of the
     * bucket, and at most an element more; if all who contribute but one own a shard, that is a bucket. To a parameter
     * server each of the others brings a bucket. */
    return serves ? others * stride_of(bucket) : bucket + others * (64 + sizeof(uint64_t));
}

static bool contributes(const ut_step *s)
{
    return s->kind == UT_STEP_RECEIVE && s->stage == 1 && s->bytes;
}

bool ut_ordered_fits(const ut_ordered *o, const ut_schedule *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->steps; i++)
        bytes += contributes(&s->step[i]) ? stride_of(s->own_bytes) : 0;
    return s->direct && o->kept && bytes <= o->room;
}

static void open(ut_op_fold *f)
{
    ut_ordered *o = f->rule_memory;
    const ut_schedule *s = &f->plan->schedule;
    uint32_t n = 0;
    assert(ut_ordered_fits(o, s));
    o->stride = stride_of(s->own_bytes);
    memset(o->step, 0xff, sizeof o->step);
    for (uint32_t i = 0; i < s->steps; i++)
        if (contributes(&s->step[i])) {
            assert(o->step[s->step[i].peer] == UINT32_MAX); /* each host contributes once */
            o->step[s->step[i].peer] = i;
            o->at[s->step[i].peer] = n++;
        }
}

static uint8_t *kept_at(const ut_ordered *o, const ut_op_fold *f, uint32_t host, uint32_t slot)
{
    return o->kept + o->at[host] * o->stride + (uint64_t)slot * f->payload;
}

static bool arrive(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len, unsigned ranks)
{
    const ut_ordered *o = f->rule_memory;
    (void)ranks;
    assert(o->step[s->peer] < f->plan->schedule.steps && (uint64_t)slot * f->payload + len <= o->stride);
    memcpy(kept_at(f->rule_memory, f, s->peer, slot), payload, len);
    return true;
}

/* The mean of |k| contributions of hosts that bring |share|, |n| elements each. */
static size_t weigh(const ut_op_fold *f, uint8_t *dst, const void **from, const uint32_t *share, unsigned k, size_t n,
                    double sum)
{
    double part[UT_HOSTS_MAX];
    unsigned some = 0;
    for (unsigned i = 0; i < k; i++)
        if (share[i]) {
            part[some] = share[i];
            from[some++] = from[i];
        }
    ut_weigh(f->what->dtype, dst, from, part, some, n, some ? sum : 1); /* 0, if nothing weighs anything */
    return ut_place(f->what->dtype, dst, dst, n);
}

static size_t finish(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint8_t *dst, size_t len)
{
    const ut_ordered *o = f->rule_memory;
    const void *from[UT_HOSTS_MAX];
    uint32_t share[UT_HOSTS_MAX];
    unsigned n = 0;
    for (uint32_t h = 0; h < f->hosts; h++) {
        uint32_t step = o->step[h];
        share[n] = f->share[h];
        if (h == f->self)
            from[n++] = ut_fold_own(f, chunk, slot);
        else if (step != UINT32_MAX && ut_transfer_has(&f->plan->transfer[step], slot))
            from[n++] = kept_at(o, f, h, slot);
    }
    assert(n >= 1 && n <= f->hosts);
    if (f->what->weighted)
        return weigh(f, dst, from, share, n, len / f->what->element, ut_fold_weight_of(f, chunk, slot));
    return ut_combine(f->what->dtype, f->what->redop, dst, from, n, len / f->what->element,
                      ut_fold_divisor(f, f->first[chunk] + slot));
}

const ut_fold_rule ut_fold_ordered = {.open = open, .arrive = arrive, .finish = finish};
