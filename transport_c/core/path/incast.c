/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/incast.h"

#include "core/op/op.h"

void ut_incast_init(ut_job *j)
{
    j->incast.dynamic = (uint8_t)UT_MAX2(j->config.hosts - 1, 1);
    j->incast.look_at = UT_NEVER;
    j->incast.gated = ut_incast_own(j) + 1u < j->config.hosts; /* from the first grant on */
}

uint8_t ut_incast_own(const ut_job *j)
{
    return j->config.options.incast ? j->config.options.incast : j->incast.dynamic;
}

uint8_t ut_incast_in_force(const ut_job *j)
{
    uint8_t least = ut_incast_own(j);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h) && j->conn[h].peer.incast)
            least = UT_MIN2(least, j->conn[h].peer.incast);
    return least;
}

void ut_incast_learn(ut_job *j, const ut_op *op)
{
    uint64_t expected = 0, lost = 0, missing = 0, most = 0;
    uint64_t of[UT_HOSTS_MAX] = {0};
    uint32_t slowest = 0;
    bool expired = op->time.bounded_by_t_b &&
                   (op->time.stage_end[0] == UT_END_DEADLINE || op->time.stage_end[1] == UT_END_DEADLINE);
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_transfer *t = &op->plan.transfer[i];
        uint32_t host = op->plan.schedule.step[i].peer;
        if (op->plan.schedule.step[i].kind != UT_STEP_RECEIVE)
            continue;
        uint64_t short_of = ut_transfer_missing(t, j->payload);
        expected += op->plan.schedule.step[i].bytes;
        lost += t->why == UT_MISSING_LOST ? short_of : 0;
        missing += short_of;
        of[host] += short_of;
        if (of[host] > most) {
            most = of[host];
            slowest = host;
        }
    }
    /* One of several that has most of what is missing has a trouble of its own. Nobody must wait for its turn to end.
     */
    bool one = j->config.hosts > 2 && most > missing / 3 * 2;
    j->incast.slow = one ? ut_bit(slowest) : 0;
    if (one)
        return;
    if (expired || lost > expected / 64)
        j->incast.dynamic = (uint8_t)UT_MAX2(j->incast.dynamic - 1, 1);
    else
        j->incast.dynamic = (uint8_t)UT_MIN2(j->incast.dynamic + 1u, UT_MAX2(j->config.hosts - 1, 1));
}

/* How long a sender with a window may say nothing and still count. */
static ut_ns patience(const ut_conn *c)
{
    return c->tx.srtt ? UT_MAX2(4 * c->tx.srtt, UT_MS) : 5 * UT_MS;
}

/* One look over the receives of all open ops in the order of the schedule. */
typedef struct turn {
    uint64_t begun; /* hosts that have a window and are not through */
    uint64_t heard; /* of those, who was heard lately */
    unsigned factor;
    bool full; /* the next in order has to wait, and with it all after it */
} turn;

/* A sender that is silent holds its window. For one of them another is let in; for more of them only when nobody at all
 * is heard, one at a time: all that have a window may speak up at once. */
static bool may_begin(const turn *turn, uint32_t host)
{
    uint64_t bit = ut_bit(host);
    unsigned begun = (unsigned)__builtin_popcountll(turn->begun | bit);
    unsigned heard = (unsigned)__builtin_popcountll(turn->heard | bit);
    return begun <= turn->factor || (begun == turn->factor + 1 && heard <= turn->factor) || turn->heard == 0;
}

static void look_at_transfer(ut_job *j, turn *turn, uint32_t host, ut_transfer *t, bool open, ut_ns now)
{
    ut_conn *c = &j->conn[host];
    if (ut_transfer_over(t) || (t->open_at == 0) != open)
        return;
    bool slow = j->incast.slow & ut_bit(host);
    if (open) {
        turn->full = turn->full || (!slow && !may_begin(turn, host));
        if (turn->full)
            return;
        t->open_at = UT_MAX2(now, 1);
        ut_conn_speak_at(c, now); /* it may begin */
    }
    if (t->tail || slow)
        return;
    ut_ns silent_at = UT_MAX2(t->open_at, t->last) + patience(c);
    turn->begun |= ut_bit(host);
    if (now >= silent_at)
        return;
    turn->heard |= ut_bit(host);
    j->incast.look_at = UT_MIN2(j->incast.look_at, silent_at);
}

void ut_incast_tick(ut_job *j, ut_ns now)
{
    if (!j->incast.stale && now < j->incast.look_at)
        return;
    turn turn = {.factor = ut_incast_in_force(j)};
    j->incast.stale = false;
    j->incast.look_at = UT_NEVER;
    bool was_gated = j->incast.gated;
    j->incast.gated = turn.factor + 1 < j->config.hosts;
    if (!j->incast.gated) {
        if (was_gated)
            ut_job_speak(j, now); /* all have their windows again */
        return;
    }
    for (unsigned open = 0; open < 2; open++) /* those that have a window; then who gets one */
        for (uint64_t seq = j->rx_floor; seq < j->rx_floor + UT_OPS_MAX; seq++) {
            ut_op *op = ut_job_op(j, seq);
            if (op->seq != seq || op->state != UT_OP_RUNNING)
                continue;
            for (uint32_t i = 0; i < op->plan.schedule.steps; i++)
                if (op->plan.schedule.step[i].kind == UT_STEP_RECEIVE)
                    look_at_transfer(j, &turn, op->plan.schedule.step[i].peer, &op->plan.transfer[i], open, now);
        }
}

ut_ns ut_incast_next_wake(const ut_job *j)
{
    return j->incast.stale ? 0 : j->incast.look_at;
}

uint64_t ut_incast_window(const ut_job *j, uint32_t host, uint64_t window)
{
    if (!j->incast.gated)
        return window;
    uint64_t slots = 0;
    bool waiting = false;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        const ut_op *op = &j->op[k];
        for (uint32_t i = 0; op->state == UT_OP_RUNNING && i < op->plan.schedule.steps; i++) {
            const ut_transfer *t = &op->plan.transfer[i];
            if (op->plan.schedule.step[i].kind != UT_STEP_RECEIVE || op->plan.schedule.step[i].peer != host ||
                ut_transfer_over(t))
                continue;
            waiting = waiting || !t->open_at;
            if (t->open_at)
                slots += t->slots - t->done;
            else
                slots += UT_TRICKLE_PACKETS - UT_MIN2(t->done, (uint32_t)UT_TRICKLE_PACKETS);
        }
    }
    if (!waiting)
        slots += UT_TRICKLE_PACKETS; /* of an op that has not opened here */
    return UT_MIN2(window, slots * j->config.packet_bytes);
}
