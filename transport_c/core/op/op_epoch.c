/* SPDX-License-Identifier: Apache-2.0
 *
 * What an op takes from the epoch under which it opens, and what this host would have in the next one: the one place
 * that knows every agreed option.
 */
#include "core/op/op_epoch.h"

/* The largest value of each option. */
static const uint16_t most[UT_EPOCH_OPTIONS] = {[UT_EPOCH_CODEC] = UT_CODEC_HADAMARD};

/* What this host would choose for each option, where |now| holds. */
static void choose(const ut_job *j, const ut_epoch *now, uint16_t ret[UT_EPOCH_OPTIONS])
{
    bool on = now->option[UT_EPOCH_CODEC] != UT_CODEC_NONE;
    bool transform = ut_hadamard_wanted(&j->losses, now->options.hadamard, on, ut_job_up(j));
    memset(ret, 0, UT_EPOCH_OPTIONS * sizeof *ret);
    ret[UT_EPOCH_CODEC] = transform ? j->codec->id : UT_CODEC_NONE;
}

void ut_job_epochs_init(ut_job *j)
{
    assert(j->world >= j->config.hosts);
    uint64_t all = ut_bits_below(j->config.hosts);
    ut_epoch first = {.members = all, .owners = all, .world = j->world, .options = j->config.options};
    uint16_t option[UT_EPOCH_OPTIONS];
    choose(j, &first, option);
    memcpy(first.option, option, sizeof option);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        first.ranks_of[h] = (uint8_t)ut_job_ranks_of(j, h);
    ut_epochs_init(&j->epochs, &first, most);
}

void ut_job_wishes(const ut_job *j, uint64_t *ret_next_op, uint16_t ret_option[UT_EPOCH_OPTIONS])
{
    *ret_next_op = j->next_open;
    choose(j, j->epochs.kept, ret_option);
}

/* All others need every host, and have no codec: they are alike under any epoch. */
static bool follows(const ut_job *j, const ut_op *op)
{
    unsigned algorithm = ut_job_algorithm(j);
    return (algorithm == UT_TAR || algorithm == UT_TREE) && op->what.collective == UT_ALLREDUCE &&
           op->what.mode != UT_RELIABLE;
}

/* Paths have the options of the epoch from its first op on. */
static void tune_paths(ut_job *j, const ut_epoch *now)
{
    const ut_job_options *o = &now->options;
    j->epochs.on_paths = now->number;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (j->conn[h].state == UT_CONN_UP)
            ut_cc_tune(&j->conn[h].cc, o->congestion, o->delay_target_ns);
    j->incast.stale = true;
}

void ut_op_epoch_take(ut_job *j, ut_op *op)
{
    const ut_epoch *now = ut_epoch_at(&j->epochs, op->seq);
    if (now->number != j->epochs.on_paths)
        tune_paths(j, now);
    op->epoch = follows(j, op) ? *now : j->epochs.whole;
    op->epoch.options = now->options; /* of every op: what they decide is this host's own affair, or the policy's */
    op->plan.owners = op->epoch.owners;
    op->plan.owns_nothing = ut_job_algorithm(j) == UT_TAR && !(op->plan.owners & ut_bit(j->config.self));
    assert(op->plan.owners && !(op->plan.owners & ~op->epoch.members));
}

void ut_op_epoch_tag(ut_op *op)
{
    /* The codec of a variant is no option: who calls the op otherwise is told from us by it. */
    uint16_t apart = op->codec->id == UT_CODEC_SPARSE ? UT_CODEC_SPARSE : 0;
    if (op->codec->id == UT_CODEC_QUANT)
        apart = (uint16_t)(UT_CODEC_QUANT | op->what.alike.quant.forms << 8);
    op->plan.view_tag = (uint16_t)(op->epoch.id ^ apart);
}
