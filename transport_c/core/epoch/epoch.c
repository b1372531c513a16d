/* SPDX-License-Identifier: Apache-2.0 */
#include "core/epoch/epoch.h"

#include "core/base/mix.h"

void ut_epochs_init(ut_epochs *e, const ut_epoch *first, const uint16_t most[UT_EPOCH_OPTIONS])
{
    assert(first->members && first->owners == first->members && first->world);
    *e = (ut_epochs){.whole = *first, .held_from = UINT64_MAX};
    memcpy(e->most, most, sizeof e->most);
    e->whole.number = e->whole.id = e->whole.from = 0;
    memset(e->whole.option, 0, sizeof e->whole.option);
    ut_epoch *began = e->kept;
    *began = e->whole;
    memcpy(began->option, first->option, sizeof first->option);
    for (unsigned i = 0; i < UT_EPOCH_OPTIONS; i++) /* hosts that were told other options must not take each other's */
        if (first->option[i])
            began->id ^= ut_mix(first->option[i] | (uint64_t)(i + 1) << 32);
    for (unsigned i = 1; i < UT_EPOCHS_KEPT; i++)
        e->kept[i] = *began;
}

/* Ranks of the members. */
static uint32_t ranks_of_members(const ut_epochs *e, const ut_epoch *given)
{
    uint32_t ranks = 0;
    for (uint32_t h = 0; h < UT_HOSTS_MAX; h++)
        ranks += given->members >> h & 1 ? e->whole.ranks_of[h] : 0;
    return ranks;
}

/* It can be an epoch of the job. */
static bool is_possible(const ut_epochs *e, const ut_epoch *given)
{
    const ut_epoch *whole = &e->whole;
    static const uint8_t unsaid[UT_HOSTS_MAX];
    bool ranks = memcmp(given->ranks_of, whole->ranks_of, sizeof unsaid) == 0 ||
                 memcmp(given->ranks_of, unsaid, sizeof unsaid) == 0;
    for (unsigned i = 0; i < UT_EPOCH_OPTIONS; i++)
        if (given->option[i] > e->most[i])
            return false;
    bool members = given->owners && !(given->owners & ~given->members) && !(given->members & ~whole->members);
    return given->number && members && ranks &&
           (given->world == whole->world || given->world == ranks_of_members(e, given));
}

void ut_epochs_keep_fixed(const ut_epochs *e, ut_epoch *given)
{
    const ut_job_options *began = &e->whole.options;
    static const ut_job_options unsaid;
    ut_job_options *o = &given->options;
    if (memcmp(o, &unsaid, sizeof unsaid) == 0)
        *o = *began;
    o->algorithm = began->algorithm;
    o->policy_seed = began->policy_seed;
    o->stragglers = began->stragglers;
    o->children = began->children;
    o->code = began->code;
    o->exact = began->exact;
    o->split = began->split;
    o->deterministic = began->deterministic;
}

int ut_epochs_take(ut_epochs *e, const ut_epoch *given, uint64_t next_open)
{
    if (!is_possible(e, given))
        return UT_ERR_ARGUMENT;
    if (given->number == e->kept->number && given->id == e->kept->id)
        return UT_OK;
    if (given->number <= e->kept->number)
        return UT_ERR_SEQUENCE;
    uint64_t from = UT_MAX2(given->from, next_open);
    unsigned gone = 0; /* those whose ops it takes, all of them: no op was opened under these, and none will be */
    while (gone < UT_EPOCHS_KEPT - 1 && e->kept[gone].from >= from)
        gone++;
    memmove(e->kept + 1, e->kept + gone, (UT_EPOCHS_KEPT - UT_MAX2(gone, 1u)) * sizeof *e->kept);
    ut_epoch *newest = e->kept;
    *newest = *given;
    newest->from = from;
    ut_epochs_keep_fixed(e, newest);
    memcpy(newest->ranks_of, e->whole.ranks_of, sizeof newest->ranks_of);
    if (e->held_until != UT_NEVER)
        e->held_until = 0;
    assert(e->kept[1].number < newest->number);
    return UT_OK;
}
