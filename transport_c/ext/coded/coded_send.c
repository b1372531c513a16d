/* SPDX-License-Identifier: Apache-2.0
 *
 * What a host sends of an op of a coded job. In a star the bucket goes as in TAR, each host owns a shard. A host takes
 * one copy of each group's part, of any slot from whichever host of the group it comes first. So that the hosts of a
 * group send one copy together and not one each, host k of s + 1 begins at k / (s + 1) of its slots and goes round.
 * After its own part it holds for as long as that took, if another host of its group has given: that one is sending the
 * rest. An owner that has every slot says so in its record (ENOUGH), and what was still to be sent to it is not. To a
 * parent of the own group a host sends only if the parent itself has given nothing.
 *
 * In a tree (sched_tree.c) the hosts without others below them do the same towards their parent; those between send
 * what they have added up, slot by slot, as soon as it is whole.
 */
#include "core/base/bits.h"
#include "ext/coded/coded.h"

enum { HOLD_LEAST_NS = 1000 * 1000 };

static const ut_coded_sums *sums_of(const ut_job *j)
{
    return &ut_coded_of(j)->sums;
}

bool ut_coded_has_below(const ut_job *j, uint32_t host)
{
    const ut_coded_sums *c = sums_of(j);
    return c->children && ut_tree_below(host, c->children) < j->config.hosts;
}

/* Two hosts share the data of one parent: in a star all do. */
static bool are_siblings(const ut_job *j, uint32_t a, uint32_t b)
{
    uint32_t children = sums_of(j)->children;
    return !children || (a && b && ut_tree_parent(a, children) == ut_tree_parent(b, children));
}

bool ut_coded_same_group(const ut_job *j, uint32_t a, uint32_t b)
{
    const ut_coded_sums *c = sums_of(j);
    return are_siblings(j, a, b) && ut_coded_place(c, a) / c->replicas == ut_coded_place(c, b) / c->replicas;
}

/* How many hosts share the data of one parent. */
static uint32_t fan_out(const ut_job *j)
{
    return sums_of(j)->children ? sums_of(j)->children : j->config.hosts;
}

/* The slots, of |slots|, that come before those with which the host at |place| begins. */
static uint32_t begins_at(const ut_job *j, uint32_t place, uint32_t slots)
{
    uint32_t rows = sums_of(j)->code ? fan_out(j) : sums_of(j)->replicas;
    return (uint32_t)((uint64_t)slots * (place % rows) / rows);
}

/* How many slots are this host's to send when none of those that share them is late: with a linear code each slot is so
 * many hosts' as are enough. */
static uint32_t own_part(const ut_job *j, uint32_t slots)
{
    const ut_coded_sums *c = sums_of(j);
    uint32_t self = ut_coded_place(c, j->config.self), rows = c->code ? fan_out(j) : c->replicas;
    uint32_t span = c->code ? c->need : 1;
    uint32_t begin = begins_at(j, self, slots), end = begins_at(j, self + span, slots);
    return self % rows + span < rows ? end - begin : end + slots - begin;
}

/* Those who send the rest of what this host could send are in the op: another host of its group, or with a linear code
 * all others. */
static bool is_shared(const ut_job *j, const ut_op *op)
{
    const ut_coded_sums *c = sums_of(j);
    uint32_t self = j->config.self, others = 0, wanted = c->code ? fan_out(j) - 1 : 1;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != self && (c->code ? are_siblings(j, h, self) : ut_coded_same_group(j, h, self)) &&
            ut_job_host_is_up(j, h) && op->partial->said[h].weight)
            others++;
    return others >= UT_MAX2(wanted, 1u);
}

static bool sends_sums(const ut_op *op, uint32_t i)
{
    const ut_step *s = &op->plan.schedule.step[i];
    return s->kind == UT_STEP_SEND && s->stage == 1 && !op->plan.transfer[i].closed;
}

/* This host's own part has gone to all parents of other groups. */
static bool own_part_sent(const ut_job *j, const ut_op *op)
{
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_transfer *t = &op->plan.transfer[i];
        bool same = ut_coded_same_group(j, op->plan.schedule.step[i].peer, j->config.self);
        if (sends_sums(op, i) && !same && t->next < own_part(j, t->slots))
            return false;
    }
    return true;
}

void ut_coded_release(ut_job *j, ut_op *op, ut_ns now)
{
    ut_coded *c = ut_coded_of(j);
    if (op->local.weight && !c->released && own_part_sent(j, op)) {
        if (!is_shared(j, op) || now >= op->time.hold_until) {
            c->released = true;
            op->time.hold_until = UT_NEVER;
        } else if (op->time.hold_until == UT_NEVER) {
            op->time.hold_until = now + UT_MAX2(now - op->time.opened, (ut_ns)HOLD_LEAST_NS);
        }
    }
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        ut_transfer *t = &op->plan.transfer[i];
        uint32_t peer = op->plan.schedule.step[i].peer;
        const ut_part *said = &op->partial->said[peer];
        if (!sends_sums(op, i))
            continue;
        if (!ut_coded_same_group(j, peer, j->config.self))
            t->stop = c->released ? t->slots : own_part(j, t->slots);
        else if (said->weight)
            t->closed = 1;
        else
            t->stop = c->released && said->heard ? t->slots : 0;
    }
}

void ut_coded_begin_sends(ut_job *j, ut_op *op, ut_ns now)
{
    ut_coded *c = ut_coded_of(j);
    c->enough = 0;
    c->released =
        ut_coded_has_below(j, j->config.self); /* sums are there in order, not where this host's part would begin */
    for (uint32_t i = 0; i < op->plan.schedule.steps && !c->released; i++) {
        ut_transfer *t = &op->plan.transfer[i];
        if (op->plan.schedule.step[i].kind == UT_STEP_SEND && op->plan.schedule.step[i].stage == 1)
            t->start = begins_at(j, ut_coded_place(&c->sums, j->config.self), t->slots);
    }
    ut_coded_release(j, op, now);
}
