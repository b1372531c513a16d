/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ledger/ledger.h"

void ut_ledger_init(ut_ledger *l, ut_claims *rows, uint32_t hosts, uint32_t self)
{
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    *l = (ut_ledger){.hosts = hosts, .self = self, .row = rows};
}

void ut_ledger_forget(ut_ledger *l, uint32_t host)
{
    ut_claims *c = &l->row[host];
    assert(host < l->hosts && host != l->self);
    c->rx_floor = c->tx_floor = 0;
    memset(c->seen, 0, sizeof c->seen);
}

bool ut_ledger_is_wild(const ut_ledger *l, uint32_t host, const ut_feedback *f, uint64_t next, bool begun)
{
    const ut_claims *c = &l->row[host];
    bool far = ut_ledger_is_too_far(next, f->rx_floor) || ut_ledger_is_too_far(next, f->tx_floor);
    for (unsigned i = 0; i < f->records; i++)
        far = far || ut_ledger_is_too_far(next, f->record[i].op_seq);
    return (far && begun) || f->rx_floor < c->rx_floor || f->tx_floor < c->tx_floor;
}

void ut_ledger_hear_floors(ut_ledger *l, uint32_t host, const ut_feedback *f, uint64_t next)
{
    ut_claims *c = &l->row[host];
    assert(f->rx_floor >= c->rx_floor && f->tx_floor >= c->tx_floor);
    if (!ut_ledger_is_too_far(next, f->rx_floor))
        c->rx_floor = f->rx_floor;
    if (!ut_ledger_is_too_far(next, f->tx_floor))
        c->tx_floor = f->tx_floor;
}

bool ut_ledger_hear_record(ut_ledger *l, uint32_t host, const ut_record *r, ut_ns now)
{
    ut_claims *c = &l->row[host];
    const unsigned at = r->op_seq % UT_OPS_MAX;
    assert(host < l->hosts && host != l->self);
    if (c->seen[at] && c->record[at].op_seq > r->op_seq)
        return false;
    if (!c->seen[at] || c->record[at].op_seq != r->op_seq)
        c->first_at[at] = now;
    c->record[at] = *r;
    c->seen[at] = true;
    c->at[at] = now;
    return true;
}

static uint64_t claim_of(const ut_claims *c, enum ut_fact fact)
{
    return fact == UT_FACT_SPOKEN ? c->spoken : c->rx_floor;
}

uint64_t ut_ledger_believe(const ut_ledger *l, enum ut_fact fact, uint64_t among, uint64_t own, uint64_t ahead)
{
    uint64_t most = 0, second = 0;
    uint32_t others = 0;
    for (uint32_t h = 0; h < l->hosts; h++) {
        if (h == l->self || !ut_bits_have(among, h))
            continue;
        const uint64_t claim = claim_of(&l->row[h], fact);
        second = UT_MAX2(second, UT_MIN2(most, claim));
        most = UT_MAX2(most, claim);
        others++;
    }
    const uint64_t of_one = others > 1 ? UT_MIN2(most, own + ahead) : most;
    return UT_MAX2(own, UT_MAX2(second, of_one));
}
