/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/uplink.h"

static uint64_t load(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void store(uint64_t *p, uint64_t value)
{
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
}

void ut_uplink_init(ut_uplink *u, ut_link *link, uint32_t lane)
{
    *u = (ut_uplink){.link = link, .lane = lane};
    if (link) { /* the row may have been another engine's: what others have read of it stays counted */
        u->acked = load(&link->lane[lane].acked);
        u->gone = load(&link->lane[lane].gone);
    }
}

void ut_uplink_join(ut_uplink *u, uint32_t job, ut_flow *flow, uint64_t limit)
{
    *flow = (ut_flow){.uplink = u};
    ut_tokens_init(&flow->tokens, limit);
    u->flow[job] = flow;
}

void ut_uplink_leave(ut_uplink *u, uint32_t job)
{
    u->flow[job] = NULL;
}

/* ---- the other lanes ---- */

/* Row |lane| if there is another lane of this number, else NULL. */
static const ut_link_row *other(const ut_uplink *u, uint32_t lane)
{
    return u->link && lane != u->lane ? &u->link->lane[lane] : NULL;
}

/* Another lane that told lately what it wants, or NULL. */
static const ut_link_row *awake(const ut_uplink *u, uint32_t lane, ut_ns now)
{
    const ut_link_row *row = other(u, lane);
    return row && now <= load(&row->told_at) + UT_LINK_FRESH_NS ? row : NULL;
}

static uint64_t sum_of_others(const ut_uplink *u, size_t field)
{
    uint64_t sum = 0;
    for (uint32_t lane = 0; lane < UT_LANES_MAX; lane++)
        if (other(u, lane))
            sum += load((const uint64_t *)(const void *)((const char *)other(u, lane) + field));
    return sum;
}

/* What all flows but one want. */
typedef struct demand {
    uint64_t hungry, sated, asked; /* as in ut_link_row */
} demand;

static void add_flow(demand *d, const ut_flow *f)
{
    uint64_t wants = f->tokens.limit ? UT_MIN2(f->wants, f->tokens.limit) : f->wants;
    if (wants == UT_WANTS_MORE) {
        d->hungry++;
    } else if (wants) {
        d->sated++;
        d->asked += wants;
    }
}

static demand demand_of_lanes(const ut_uplink *u, ut_ns now)
{
    demand d = {0};
    for (uint32_t lane = 0; lane < UT_LANES_MAX; lane++) {
        const ut_link_row *row = awake(u, lane, now);
        if (!row)
            continue;
        d.hungry += load(&row->hungry);
        d.sated += load(&row->sated);
        d.asked += load(&row->asked);
    }
    return d;
}

/* The rate of the host; one that a lane has not found itself it takes from another. */
static uint64_t rate_of_host(const ut_uplink *u, ut_ns now)
{
    uint64_t rate = u->rate.rate;
    for (uint32_t lane = 0; lane < UT_LANES_MAX && !u->rate.found; lane++)
        if (awake(u, lane, now))
            rate = UT_MAX2(rate, load(&awake(u, lane, now)->rate));
    return rate;
}

static void tell(const ut_uplink *u, ut_ns now)
{
    demand d = {0};
    if (!u->link)
        return;
    ut_link_row *row = &u->link->lane[u->lane];
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++)
        if (u->flow[n])
            add_flow(&d, u->flow[n]);
    store(&row->told_at, now);
    store(&row->hungry, d.hungry);
    store(&row->sated, d.sated);
    store(&row->asked, d.asked);
    store(&row->rate, u->rate.rate);
}

/* Gives every flow its part of the host's rate. */
static void share_out(ut_uplink *u, ut_ns now)
{
    uint64_t rate = rate_of_host(u, now);
    demand lanes = demand_of_lanes(u, now);
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        ut_flow *f = u->flow[n];
        demand d = lanes;
        for (uint32_t m = 0; f && m < UT_JOBS_MAX; m++)
            if (u->flow[m] && m != n)
                add_flow(&d, u->flow[m]);
        if (f)
            f->tokens.part = UT_MAX2((rate - UT_MIN2(d.asked, rate)) / (d.hungry + 1), rate / (d.hungry + d.sated + 1));
    }
}

/* ---- pulses ---- */

static void begin(ut_uplink *u, bool begun, ut_ns now)
{
    ut_meter_begin(&u->meter, begun, now);
    u->others_acked = sum_of_others(u, offsetof(ut_link_row, acked));
    u->others_gone = sum_of_others(u, offsetof(ut_link_row, gone));
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++)
        if (u->flow[n]) {
            u->flow[n]->acked = u->flow[n]->gone = 0;
            u->flow[n]->full = false;
        }
}

bool ut_flow_begin(ut_flow *f, ut_ns now)
{
    ut_uplink *u = f->uplink;
    for (uint32_t n = 0; n < UT_JOBS_MAX && now - u->meter.since < 2 * (ut_ns)UT_PULSE_NS; n++) {
        const ut_flow *other = u->flow[n];
        if (other && other != f && (other->gone || other->full))
            return false;
    }
    begin(u, true, now);
    return true;
}

uint32_t ut_flow_take(ut_flow *f, uint32_t n, uint32_t packet, ut_ns now)
{
    uint32_t may = ut_tokens_take(&f->tokens, n, packet, now);
    if (may < n && may == 0 && f->wants != UT_WANTS_MORE) {
        f->wants = UT_WANTS_MORE;
        share_out(f->uplink, now);
        tell(f->uplink, now);
    }
    return may;
}

/* Each of a flow's peers may have in flight what the link carries in UT_WINDOW_NS, or the flow's part of that where
 * others send as well: what it sent of all in the pulse, but an equal part at least. */
static void set_windows(ut_uplink *u, const ut_pulse *p, uint64_t lanes_that_sent)
{
    uint64_t whole = u->meter.best * UT_WINDOW_NS / UT_PULSE_NS, senders = lanes_that_sent;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++)
        senders += u->flow[n] && u->flow[n]->acked;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        ut_flow *f = u->flow[n];
        if (!f)
            continue;
        uint64_t equal = UT_MAX2(senders + (f->acked == 0), 1);
        uint64_t sent = p->sent ? whole * f->acked / p->sent : 0;
        f->window = equal == 1 ? whole : UT_MAX2(sent, whole / equal);
    }
}

static void note_wants(ut_flow *f, ut_ns lasted)
{
    uint64_t sent = f->gone * UT_SECOND / lasted;
    f->wants = f->tokens.was_held ? UT_WANTS_MORE : sent + sent / 4;
}

bool ut_uplink_look(ut_uplink *u, bool news, bool dry, ut_ns now, ut_pulse *ret)
{
    if (u->link) { /* at once, and not at the pulse's end: the others' pulses end when theirs do */
        store(&u->link->lane[u->lane].acked, u->acked);
        store(&u->link->lane[u->lane].gone, u->gone);
    }
    u->meter.dry = u->meter.dry || (news && dry);
    if (!ut_meter_due(&u->meter, news, now))
        return false;
    bool full = false, held = false;
    uint64_t acked = sum_of_others(u, offsetof(ut_link_row, acked)) - u->others_acked;
    uint64_t gone = sum_of_others(u, offsetof(ut_link_row, gone)) - u->others_gone, own = 0, own_gone = 0;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        ut_flow *f = u->flow[n];
        if (!f)
            continue;
        own += f->acked;
        own_gone += f->gone;
        full = full || f->full;
        held = held || f->tokens.was_held;
        note_wants(f, now - u->meter.since);
    }
    u->meter.acked = own + acked;
    u->meter.gone = own_gone + gone;
    *ret = ut_meter_end(&u->meter, full, now);
    set_windows(u, ret, acked > 0);
    if (ret->sent) {
        ut_rate_pulse(&u->rate, ret->gone, ret->idle, held);
        for (uint32_t n = 0; n < UT_JOBS_MAX; n++)
            if (u->flow[n])
                u->flow[n]->tokens.was_held = false;
    }
    begin(u, false, now);
    share_out(u, now);
    tell(u, now);
    return true;
}
