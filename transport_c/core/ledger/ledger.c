/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ledger/ledger.h"

static const uint64_t STALE =
    UINT64_MAX; /* what is said has changed since: no version reaches it, so nobody has seen it */

void ut_ledger_init(ut_ledger *l, ut_claims *rows, uint32_t hosts, uint32_t self)
{
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    *l = (ut_ledger){.hosts = hosts, .self = self, .lag = UT_LAG_MAX, .row = rows};
}

/* ---- hear ---- */

void ut_ledger_forget(ut_ledger *l, uint32_t host)
{
    ut_claims *c = &l->row[host];
    assert(host < l->hosts && host != l->self);
    c->rx_floor = c->tx_floor = c->state = 0;
    memset(c->seen, 0, sizeof c->seen);
}

static uint64_t version_of(const ut_claims *c, const ut_feedback *f)
{
    return ut_expand32(c->state, f->state);
}

static uint64_t seen_of(const ut_claims *c, const ut_feedback *f)
{
    return ut_expand32(c->said.version, f->state_seen);
}

bool ut_ledger_is_wild(const ut_ledger *l, uint32_t host, const ut_feedback *f, uint64_t next, bool begun)
{
    const ut_claims *c = &l->row[host];
    bool far = ut_ledger_is_too_far(l, next, f->rx_floor) || ut_ledger_is_too_far(l, next, f->tx_floor);
    for (unsigned i = 0; i < f->records; i++)
        far = far || ut_ledger_is_too_far(l, next, f->record[i].op_seq);
    return (far && begun) || f->rx_floor < c->rx_floor || f->tx_floor < c->tx_floor || seen_of(c, f) > c->said.version;
}

enum ut_heard ut_ledger_hear_floors(ut_ledger *l, uint32_t host, const ut_feedback *f, uint64_t next)
{
    ut_claims *c = &l->row[host];
    const uint64_t seen = seen_of(c, f), floor = c->rx_floor;
    assert(f->rx_floor >= c->rx_floor && f->tx_floor >= c->tx_floor && seen <= c->said.version);
    c->said.seen = UT_MAX2(c->said.seen, seen);
    if (!ut_ledger_is_too_far(l, next, f->rx_floor))
        c->rx_floor = f->rx_floor;
    if (!ut_ledger_is_too_far(l, next, f->tx_floor))
        c->tx_floor = f->tx_floor;
    return c->rx_floor > floor ? UT_HEARD_NEWS : UT_HEARD_NOTHING;
}

/* |r| is of the same op as |before|, and that has not started in between. */
static bool continues(const ut_record *before, const ut_record *r)
{
    return before->op_seq == r->op_seq && !((before->flags ^ r->flags) & UT_RECORD_ACTIVE);
}

enum ut_heard ut_ledger_hear_record(ut_ledger *l, uint32_t host, const ut_record *r, ut_ns now)
{
    ut_claims *c = &l->row[host];
    const unsigned at = r->op_seq % UT_OPS_MAX;
    assert(host < l->hosts && host != l->self);
    if (c->seen[at] && c->record[at].op_seq > r->op_seq)
        return UT_HEARD_OLDER;
    const bool first = !c->seen[at] || !continues(&c->record[at], r),
               same = !first && ut_record_is_same(&c->record[at], r);
    if (!c->seen[at] || c->record[at].op_seq != r->op_seq)
        c->first_at[at] = now;
    c->record[at] = *r;
    c->seen[at] = true;
    c->at[at] = now;
    return first ? UT_HEARD_FIRST : same ? UT_HEARD_NOTHING : UT_HEARD_NEWS;
}

bool ut_ledger_is_newer(const ut_ledger *l, uint32_t host, const ut_feedback *f)
{
    return version_of(&l->row[host], f) > l->row[host].state;
}

void ut_ledger_took(ut_ledger *l, uint32_t host, const ut_feedback *f)
{
    ut_claims *c = &l->row[host];
    c->state = UT_MAX2(c->state, version_of(c, f));
}

/* Of the records of |said| places that are |there| the newest op's says it, and all are attached where there is none.
 */
static uint16_t newest_attached(const ut_record *said, unsigned there)
{
    const ut_record *newest = NULL;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if ((there >> k & 1) && (!newest || said[k].op_seq > newest->op_seq))
            newest = &said[k];
    return newest ? newest->attached : UINT16_MAX;
}

uint16_t ut_ledger_attached(const ut_ledger *l, uint32_t host)
{
    unsigned there = 0;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        there |= (unsigned)l->row[host].seen[k] << k;
    return newest_attached(l->row[host].record, there);
}

/* ---- say ---- */

uint16_t ut_ledger_told_attached(const ut_ledger *l, uint32_t host)
{
    unsigned there = 0;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        there |= (unsigned)(l->row[host].said.since[k] != 0) << k;
    return newest_attached(l->row[host].said.record, there);
}

void ut_ledger_begin(ut_ledger *l, uint32_t host)
{
    assert(host < l->hosts && host != l->self);
    l->row[host].said = (ut_said){0};
}

void ut_ledger_changes(ut_ledger *l, uint64_t seq)
{
    const unsigned at = seq % UT_OPS_MAX;
    for (uint32_t h = 0; h < l->hosts; h++) {
        ut_said *s = &l->row[h].said;
        if (s->since[at] && s->record[at].op_seq == seq)
            s->since[at] = STALE;
    }
}

/* Notes what is said in the place of the record's op, if it is not what was said before. */
static bool note(ut_said *s, const ut_record *r)
{
    const unsigned at = r->op_seq % UT_OPS_MAX;
    if (s->since[at] && s->record[at].op_seq > r->op_seq)
        return false;
    const bool news = !s->since[at] || s->since[at] == STALE || !ut_record_is_same(&s->record[at], r);
    if (!s->since[at] || !continues(&s->record[at], r))
        s->first[at] = s->version + 1;
    s->record[at] = *r;
    if (news)
        s->since[at] = s->version + 1;
    return news;
}

static ut_ns longer(ut_ns gap, ut_ns answer)
{
    return UT_MIN2(2 * UT_MAX2(gap, answer), (ut_ns)UT_STATE_GAP_MAX_NS);
}

void ut_ledger_asked(ut_ledger *l, uint32_t host, ut_ns answer)
{
    l->row[host].said.gap = longer(l->row[host].said.gap, answer);
}

void ut_ledger_say(ut_ledger *l, uint32_t host, ut_feedback *f, bool asks, ut_ns answer, ut_ns now)
{
    ut_claims *c = &l->row[host];
    ut_said *s = &c->said;
    bool news = s->version == 0 || f->rx_floor > s->rx_floor;
    unsigned kept = 0;
    assert(f->records <= UT_OPS_MAX && f->rx_floor >= s->rx_floor);
    for (unsigned i = 0; i < f->records; i++)
        news |= note(s, &f->record[i]);
    s->rx_floor = f->rx_floor;
    if (news || asks) {
        s->gap = news ? 0 : longer(s->gap, answer);
        s->at = now;
        s->version++;
    }
    for (unsigned i = 0; i < f->records; i++) {
        const unsigned at = f->record[i].op_seq % UT_OPS_MAX;
        if (s->record[at].op_seq == f->record[i].op_seq && !ut_ledger_has_seen(l, host, at))
            f->record[kept++] = f->record[i];
    }
    f->records = (uint8_t)kept;
    f->state = (uint32_t)s->version;
    f->state_seen = (uint32_t)c->state;
    assert(s->seen <= s->version);
}

/* ---- believe ---- */

static uint64_t claim_of(const ut_claims *c, enum ut_fact fact)
{
    return fact == UT_FACT_SPOKEN ? c->spoken : c->rx_floor;
}

/* What the hosts |among| claim: the most, and the most that two of them claim. Returns how many they are. */
static uint32_t claims(const ut_ledger *l, enum ut_fact fact, uint64_t among, uint64_t *ret_most, uint64_t *ret_second)
{
    uint32_t others = 0;
    *ret_most = *ret_second = 0;
    for (uint32_t h = 0; h < l->hosts; h++) {
        if (h == l->self || !ut_bits_have(among, h))
            continue;
        const uint64_t claim = claim_of(&l->row[h], fact);
        *ret_second = UT_MAX2(*ret_second, UT_MIN2(*ret_most, claim));
        *ret_most = UT_MAX2(*ret_most, claim);
        others++;
    }
    return others;
}

uint64_t ut_ledger_believe(const ut_ledger *l, enum ut_fact fact, uint64_t among, uint64_t own, uint64_t ahead)
{
    uint64_t most, second;
    const bool only = claims(l, fact, among, &most, &second) <= 1;
    return UT_MAX2(own, UT_MAX2(second, only ? most : UT_MIN2(most, own + ahead)));
}

uint64_t ut_ledger_confirmed(const ut_ledger *l, enum ut_fact fact, uint64_t among, bool only, uint64_t alone)
{
    uint64_t most, second;
    (void)claims(l, fact, among, &most, &second);
    return only || most <= alone ? most : second;
}
