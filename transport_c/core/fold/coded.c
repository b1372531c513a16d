/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fold/coded.h"

#include "core/base/bits.h"
#include "core/base/plant.h"

#include "kernels/kernels.h"

static ut_coded_sums *sums_of(const ut_op_fold *f)
{
    return f->rule_memory;
}

static uint64_t group_of(const ut_coded_sums *c, uint32_t host)
{
    return ut_bit(host / c->replicas);
}

/* The groups of which |slot| has a contribution, this host's own included. */
static uint64_t there(const ut_op_fold *f, uint32_t slot)
{
    const ut_coded_sums *c = sums_of(f);
    return c->parts[slot] | (f->ranks ? group_of(c, c->self) : 0);
}

/* The sum lies where the result will: what is coded has no accumulator of another type. */
static uint8_t *sum_at(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    uint64_t at = f->plan->schedule.from[chunk] + (uint64_t)slot * f->payload;
    return f->memory->dst + (at - f->memory->dst_from);
}

/* Where the contribution of |host| to a slot of the own chunk is kept. */
static uint8_t *kept_at(const ut_op_fold *f, uint32_t host, uint32_t slot)
{
    const ut_coded_sums *c = sums_of(f);
    return c->kept + host * c->stride + (uint64_t)slot * f->payload;
}

static bool has_enough(const ut_op_fold *f, uint32_t slot)
{
    uint32_t need = sums_of(f)->need - (ut_planted(UT_PLANT_CODED_HALF_A_SUM) ? 1 : 0);
    return (uint32_t)__builtin_popcountll(there(f, slot)) >= need;
}

static void open(ut_op_fold *f)
{
    ut_coded_sums *c = sums_of(f);
    c->used = c->redundant = c->lacking = 0;
    uint32_t chunk = f->plan->schedule.own;
    if (chunk != UT_CHUNK_NONE)
        memset(c->parts, 0, (size_t)(f->first[chunk + 1] - f->first[chunk]) * sizeof *c->parts);
    if (chunk != UT_CHUNK_NONE && f->ranks && c->need == 1)
        f->fewer_at = 0; /* the own contribution is all that there is */
}

static bool arrive(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len, unsigned ranks)
{
    ut_coded_sums *c = sums_of(f);
    uint64_t part = group_of(c, s->peer), own = group_of(c, c->self), *in = &c->parts[slot];
    size_t n = len / f->what->element;
    uint8_t *sum = sum_at(f, s->chunk, slot);
    bool again = (there(f, slot) & part) && !ut_planted(UT_PLANT_CODED_FOLDED_TWICE);
    if (ranks == 0 || again || has_enough(f, slot)) {
        c->redundant += len;
        return false;
    }
    if (c->code) {
        (void)ut_place(f->what->dtype, kept_at(f, s->peer, slot), payload, n);
    } else if (*in) {
        (void)ut_fold(f->what->dtype, UT_SUM, 0, sum, sum, payload, n, 1);
    } else if (f->ranks) {
        (void)ut_fold(f->what->dtype, UT_SUM, UT_A_IS_INPUT, sum, ut_fold_own(f, s->chunk, slot), payload, n, 1);
        *in = own;
    } else {
        (void)ut_place(f->what->dtype, sum, payload, n);
    }
    *in |= part;
    c->used |= ut_bit(s->peer);
    return false; /* how many ranks it stands for is known when the slot is finished */
}

static bool enough(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    (void)chunk;
    return has_enough(f, slot);
}

/* |n| elements times |all| over |present|. */
static void stand_for_all(unsigned dtype, uint8_t *dst, size_t n, unsigned all, unsigned present)
{
    double factor = (double)all / (double)present;
    for (size_t i = 0; i < n; i++) {
        float single;
        double value;
        if (dtype == UT_FLOAT32) {
            memcpy(&single, dst + i * sizeof single, sizeof single);
            single = (float)(single * factor);
            memcpy(dst + i * sizeof single, &single, sizeof single);
        } else {
            memcpy(&value, dst + i * sizeof value, sizeof value);
            value *= factor;
            memcpy(dst + i * sizeof value, &value, sizeof value);
        }
    }
}

/* The sum over all parts from what |came|; zeros if that does not decode. */
static size_t finish_linear(ut_op_fold *f, uint32_t slot, uint64_t came, uint8_t *dst, size_t len)
{
    ut_coded_sums *c = sums_of(f);
    size_t n = len / f->what->element;
    uint32_t chunk = f->plan->schedule.own, count = 0;
    const double *a = has_enough(f, slot) ? ut_code_decoding(c->code, came) : NULL;
    const void *from[UT_HOSTS_MAX];
    double weight[UT_HOSTS_MAX];
    for (uint64_t rest = a ? came : 0; rest; rest &= rest - 1, count++) {
        uint32_t host = (uint32_t)__builtin_ctzll(rest);
        from[count] = host == c->self && f->ranks ? ut_fold_own(f, chunk, slot) : kept_at(f, host, slot);
        weight[count] = a[host];
    }
    ut_weigh(f->what->dtype, dst, from, weight, count, n);
    f->weight[f->first[chunk] + slot] = (uint16_t)(a ? f->world : 0);
    return ut_finish(f->what->dtype, UT_SUM, 0, dst, dst, n, 1);
}

static size_t finish(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint8_t *dst, size_t len)
{
    ut_coded_sums *c = sums_of(f);
    uint64_t own = group_of(c, c->self), *in = &c->parts[slot];
    size_t n = len / f->what->element;
    const uint8_t *mine = ut_fold_own(f, chunk, slot);
    if (c->code)
        return finish_linear(f, slot, there(f, slot), dst, len);
    if (f->ranks && !(*in & own)) {
        if (*in)
            (void)ut_fold(f->what->dtype, UT_SUM, 0, dst, dst, mine, n, 1);
        else
            (void)ut_place(f->what->dtype, dst, mine, n);
        *in |= own;
    } else if (!*in) {
        memset(dst, 0, len);
    }
    unsigned all = (unsigned)__builtin_popcountll(c->all), present = (unsigned)__builtin_popcountll(*in);
    if (present && present < all)
        stand_for_all(f->what->dtype, dst, n, all, present);
    c->lacking |= c->all & ~*in;
    f->weight[f->first[chunk] + slot] = (uint16_t)(present * c->replicas);
    return ut_finish(f->what->dtype, UT_SUM, 0, dst, dst, n, 1);
}

uint64_t ut_coded_lacking(const ut_op_fold *f, uint64_t never)
{
    const ut_coded_sums *c = sums_of(f);
    uint32_t chunk = f->plan->schedule.own;
    uint64_t missing = 0;
    for (uint32_t slot = 0; slot < f->first[chunk + 1] - f->first[chunk]; slot++) {
        uint64_t possible = (c->all & ~never) | there(f, slot);
        if ((uint32_t)__builtin_popcountll(possible) < c->need)
            missing |= c->all & ~possible;
    }
    return missing;
}

const ut_fold_rule ut_fold_coded = {.strict = true, .open = open, .arrive = arrive, .enough = enough, .finish = finish};
