/* SPDX-License-Identifier: Apache-2.0 */
#include "ext/coded/sums.h"

#include "core/base/bits.h"

#include "kernels/kernels.h"

static ut_coded_sums *sums_of(const ut_op_fold *f)
{
    return f->rule_memory;
}

/* In a tree, of a slot into which the own contribution was folded: it is in no group of those below. */
#define OWN_IN_TREE (1ULL << 63)

/* The group of what |host| sends to this one. */
static uint64_t group_of(const ut_coded_sums *c, uint32_t host)
{
    return ut_bit(ut_coded_place(c, host) / c->replicas);
}

/* How this host's own contribution is marked; 0: it has none. */
static uint64_t own_of(const ut_op_fold *f)
{
    const ut_coded_sums *c = sums_of(f);
    if (f->ranks == 0 || (c->children && c->self == 0))
        return 0;
    return c->children ? OWN_IN_TREE : group_of(c, c->self);
}

/* The groups of which |slot| has a contribution, this host's own included. */
static uint64_t there(const ut_op_fold *f, uint32_t slot)
{
    return sums_of(f)->parts[slot] | own_of(f);
}

/* The sum lies where the result will: what is coded has no accumulator of another type. */
static uint8_t *sum_at(const ut_op_fold *f, uint32_t chunk, uint32_t slot)
{
    uint64_t at = f->plan->schedule.from[chunk] + (uint64_t)slot * f->payload;
    return f->memory->dst + (at - f->memory->dst_from);
}

/* Where the contribution of |host| to a slot is kept. */
static uint8_t *kept_at(const ut_op_fold *f, uint32_t host, uint32_t slot)
{
    const ut_coded_sums *c = sums_of(f);
    return c->kept + ut_coded_place(c, host) * c->stride + (uint64_t)slot * f->payload;
}

/* Nothing more that is sent here is needed. */
static bool needs_no_more(const ut_op_fold *f, uint32_t slot)
{
    const ut_coded_sums *c = sums_of(f);
    return (uint32_t)__builtin_popcountll(there(f, slot) & c->all) >= c->need;
}

/* In a tree what does not decode is not sent on, nor is it a result. */
static bool decodes(const ut_op_fold *f, uint32_t slot)
{
    const ut_coded_sums *c = sums_of(f);
    return !c->children || !c->code || ut_code_decoding(c->code, there(f, slot) & c->all);
}

static bool has_enough(const ut_op_fold *f, uint32_t slot)
{
    const ut_coded_sums *c = sums_of(f);
    bool own = !c->children || c->self == 0 || own_of(f);
    return own && needs_no_more(f, slot) && decodes(f, slot);
}

static void open(ut_op_fold *f)
{
    ut_coded_sums *c = sums_of(f);
    c->used = c->redundant = c->lacking = 0;
    uint32_t chunk = f->summing;
    if (chunk != UT_CHUNK_NONE)
        memset(c->parts, 0, (size_t)(f->first[chunk + 1] - f->first[chunk]) * sizeof *c->parts);
    if (chunk != UT_CHUNK_NONE && !c->children && f->ranks && c->need == 1)
        f->fewer_at = 0; /* the own contribution is all that there is */
}

static bool arrive(ut_op_fold *f, const ut_step *s, uint32_t slot, const uint8_t *payload, size_t len, unsigned ranks)
{
    ut_coded_sums *c = sums_of(f);
    uint64_t part = group_of(c, s->peer), own = own_of(f), *in = &c->parts[slot];
    size_t n = len / f->what->element;
    uint8_t *sum = sum_at(f, s->chunk, slot);
    if (ranks == 0 || (there(f, slot) & part) || needs_no_more(f, slot)) {
        c->redundant += len;
        return false;
    }
    if (c->code) {
        (void)ut_place(f->what->dtype, kept_at(f, s->peer, slot), payload, n);
    } else if (*in) {
        (void)ut_fold(f->what->dtype, UT_SUM, 0, sum, sum, payload, n, 1);
    } else if (own) {
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

/* What |came| decodes to, and in a tree the own contribution; zeros if it does not decode. */
static size_t finish_linear(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint64_t came, uint8_t *dst, size_t len)
{
    ut_coded_sums *c = sums_of(f);
    size_t n = len / f->what->element;
    uint32_t count = 0, first = c->children ? ut_tree_below(c->self, c->children) : 0;
    const double *a = has_enough(f, slot) ? ut_code_decoding(c->code, came & c->all) : NULL;
    const void *from[UT_HOSTS_MAX];
    double weight[UT_HOSTS_MAX];
    for (uint64_t rest = a ? came & c->all : 0; rest; rest &= rest - 1, count++) {
        uint32_t place = (uint32_t)__builtin_ctzll(rest);
        bool own = !c->children && place == c->self && f->ranks;
        from[count] = own ? ut_fold_own(f, chunk, slot) : kept_at(f, first + place, slot);
        weight[count] = a[place];
    }
    if (a && (came & OWN_IN_TREE) && c->children) {
        from[count] = ut_fold_own(f, chunk, slot);
        weight[count++] = 1;
    }
    ut_weigh(f->what->dtype, dst, from, weight, count, n, 1);
    if (!c->children)
        f->weight[f->first[chunk] + slot] = (uint16_t)(a ? f->world : 0);
    return ut_finish(f->what->dtype, UT_SUM, 0, dst, dst, n, 1);
}

static size_t finish(ut_op_fold *f, uint32_t chunk, uint32_t slot, uint8_t *dst, size_t len)
{
    ut_coded_sums *c = sums_of(f);
    uint64_t own = own_of(f), *in = &c->parts[slot];
    size_t n = len / f->what->element;
    uint16_t *weight = &f->weight[f->first[chunk] + slot];
    if (c->children) /* to its parent a host answers for its rank alone */
        *weight = (uint16_t)(c->self ? f->ranks : f->world);
    if (c->code)
        return finish_linear(f, chunk, slot, there(f, slot), dst, len);
    if (own && !(*in & own)) {
        const uint8_t *mine = ut_fold_own(f, chunk, slot);
        if (*in)
            (void)ut_fold(f->what->dtype, UT_SUM, 0, dst, dst, mine, n, 1);
        else
            (void)ut_place(f->what->dtype, dst, mine, n);
        *in |= own;
    } else if (!*in) {
        memset(dst, 0, len);
    }
    unsigned all = (unsigned)__builtin_popcountll(c->all), present = (unsigned)__builtin_popcountll(*in & c->all);
    if (present && present < all)
        stand_for_all(f->what->dtype, dst, n, all, present);
    c->lacking |= c->all & ~*in;
    if (!c->children)
        *weight = (uint16_t)(present * c->replicas);
    return ut_finish(f->what->dtype, UT_SUM, 0, dst, dst, n, 1);
}

uint64_t ut_coded_lacking(const ut_op_fold *f, uint64_t never)
{
    const ut_coded_sums *c = sums_of(f);
    uint32_t chunk = f->plan->schedule.own;
    uint64_t missing = 0;
    for (uint32_t slot = 0; slot < f->first[chunk + 1] - f->first[chunk]; slot++) {
        uint64_t possible = c->all & (~never | there(f, slot));
        if ((uint32_t)__builtin_popcountll(possible) < c->need)
            missing |= c->all & ~possible;
        else if (needs_no_more(f, slot) && !decodes(f, slot))
            missing |= c->all;
    }
    return missing;
}

const ut_fold_rule ut_fold_coded = {.strict = true, .open = open, .arrive = arrive, .enough = enough, .finish = finish};
