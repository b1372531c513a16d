/* SPDX-License-Identifier: Apache-2.0
 *
 * What a job asks of its view, and what an op takes from it: the one place that knows every agreed option.
 */
#include "core/op/op.h"

/* The largest value of each option: what another host says beyond it is not believed. */
static const uint16_t most[UT_VIEW_OPTIONS] = {[UT_VIEW_CODEC] = UT_CODEC_HADAMARD};

/* Packets that were made for different steps of a coded job do not go together. An odd factor, so that steps less than
 * 65,536 apart have different tags. */
enum { STEP_SPREAD = 40503 };

/* What this host would choose for each option, where |now| holds. */
static void choose(const ut_job *j, const uint16_t now[UT_VIEW_OPTIONS], uint16_t ret[UT_VIEW_OPTIONS])
{
    bool on = now[UT_VIEW_CODEC] != UT_CODEC_NONE;
    bool transform = ut_hadamard_wanted(&j->losses, j->config.options.hadamard, on, ut_job_up(j));
    memset(ret, 0, UT_VIEW_OPTIONS * sizeof *ret);
    ret[UT_VIEW_CODEC] = transform ? j->codec->id : UT_CODEC_NONE;
}

ut_view_here ut_job_here(const ut_job *j)
{
    return (ut_view_here){
        .self = j->config.self, .up = ut_job_up(j), .lost = ut_job_lost(j), .next_open = j->next_open};
}

void ut_job_view_init(ut_job *j)
{
    uint16_t none[UT_VIEW_OPTIONS] = {0}, first[UT_VIEW_OPTIONS];
    choose(j, none, first);
    ut_view_init(&j->view, j->config.hosts, j->config.first_op_seq, most, first);
    ut_epoch begin = {.members = j->view.all, .owners = j->view.all, .world = j->world};
    memcpy(begin.option, first, sizeof first);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        begin.ranks_of[h] = (uint8_t)ut_job_ranks_of(j, h);
    ut_epochs_init(&j->epochs, &begin, most);
}

static void agree(ut_job *j, ut_op *op)
{
    unsigned algorithm = ut_job_algorithm(j);
    if (algorithm != UT_TAR && algorithm != UT_TREE)
        return; /* the others need every host, and have no codec */
    uint16_t want[UT_VIEW_OPTIONS];
    ut_view_here here = ut_job_here(j);
    here.next_open = op->seq;
    choose(j, j->view.plan.after.option, want);
    ut_view_decide(&j->view, &here, want);
    /* A reliable op cannot do without anybody, so its bucket need not be cut otherwise. */
    if (op->what.collective == UT_ALLREDUCE && op->what.mode != UT_RELIABLE)
        op->plan.owners = ut_view_at(&j->view, op->seq)->owners;
    op->plan.owns_nothing = algorithm == UT_TAR && !(op->plan.owners & ut_bit(j->config.self));
}

/* Ops that need every host, and have no codec, are alike under any epoch. */
static bool follows(const ut_job *j, const ut_op *op)
{
    unsigned algorithm = ut_job_algorithm(j);
    return (algorithm == UT_TAR || algorithm == UT_TREE) && op->what.collective == UT_ALLREDUCE &&
           op->what.mode != UT_RELIABLE;
}

void ut_op_view_open(ut_job *j, ut_op *op)
{
    if (op->epoch.number == 0) {
        agree(j, op);
    } else {
        op->plan.owners = op->epoch.owners;
        op->plan.owns_nothing = ut_job_algorithm(j) == UT_TAR && !(op->plan.owners & ut_bit(j->config.self));
    }
    ut_view_opened(&j->view);
}

void ut_op_epoch_keep(ut_job *j, ut_op *op)
{
    op->epoch = follows(j, op) ? *ut_epoch_at(&j->epochs, op->seq) : j->epochs.whole;
}

unsigned ut_op_agreed_codec(const ut_job *j, const ut_op *op)
{
    return op->epoch.number ? op->epoch.option[UT_EPOCH_CODEC] : ut_view_at(&j->view, op->seq)->option[UT_VIEW_CODEC];
}

void ut_op_view_tag(ut_job *j, ut_op *op)
{
    ut_view_state used = {.owners = op->plan.owners};
    used.option[UT_VIEW_CODEC] = op->codec->id;
    uint16_t tag = op->epoch.number ? (uint16_t)(op->epoch.id ^ op->codec->id) : ut_view_tag(&j->view, &used);
    op->plan.view_tag = (uint16_t)(tag ^ op->what.step * STEP_SPREAD);
}

/* ---- what the shell says ---- */

void ut_job_wishes(const ut_job *j, uint64_t *ret_next_op, uint16_t ret_option[UT_EPOCH_OPTIONS])
{
    *ret_next_op = j->next_open;
    choose(j, j->epochs.newest.option, ret_option);
}

bool ut_job_hold_over(ut_job *j, ut_ns now)
{
    if (now < ut_epochs_hold_ends(&j->epochs) || j->epochs.held_from == UINT64_MAX)
        return false;
    ut_epochs_hold(&j->epochs, UINT64_MAX, 0);
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        ut_op_released(j, ut_job_op(j, j->next_open + k), now);
    j->host->room(j->host->context);
    return true;
}
