/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/pool.h"

enum {
    SHARE_MOST = 75,     /* percent of the pool that one of several peers may have */
    PARTS = 8,           /* a grant is such a part of the pool, or half of each peer's equal part if that is less ... */
    GRANT_PACKETS = 8,   /* ... but has at least so many packets */
    TALL = 3,            /* the largest pool is so many times the one at rest */
    LATE = 4,            /* of the times that hosts come late to their work: both ends, and half of them are later */
    LOSS_PACKETS = 1024, /* loss is judged over at least so many */
    LOSS_MOST = 1000,    /* of a million */
    RUNS_PART = 4,       /* it is our doing if a quarter of it was lost in runs */
    PAUSE_ROUNDS = 64,   /* a sample that takes so many round trips saw a pause */
    SLACK_MIN = 60,      /* packets beyond those on the way, standing credit included, however much is lost */
    FLAT_MOST = 3,       /* samples without a higher rate after which the rate of a link is known */
    WHOLE = 1024,        /* of `squeeze` */
    SQUEEZE_MOST = 2,    /* to a half at most */
};

static uint64_t carried(const ut_pool *p, ut_ns time)
{
    return (uint64_t)((double)p->rate * (double)time / 1e9);
}

static void set_bytes(ut_pool *p, uint64_t bytes, uint64_t peers)
{
    assert(p->packet > 0 && p->squeeze >= WHOLE / SQUEEZE_MOST && p->squeeze <= WHOLE);
    uint64_t standing = bytes / p->packet / 4 / UT_MAX2(peers, 1);
    uint64_t least = UT_MAX2((uint64_t)UT_POOL_STANDING_MIN * p->squeeze / WHOLE, 1);
    p->bytes = UT_MIN2(bytes, p->most);
    p->share = peers > 1 ? p->bytes * SHARE_MOST / 100 : p->bytes;
    p->quantum = UT_MAX2(p->bytes / UT_MAX2(PARTS, 2 * peers), (uint64_t)GRANT_PACKETS * p->packet);
    p->few = (uint32_t)UT_MAX2(UT_MIN2(standing, (uint64_t)UT_POOL_STANDING_MAX), least) * p->packet;
    p->standing = p->few;
    p->enough = p->few / 2;
    assert(p->share <= p->bytes && p->bytes <= p->most && p->few >= p->packet);
}

void ut_pool_init(ut_pool *p, uint32_t packet, uint64_t most)
{
    assert(packet > 0);
    *p = (ut_pool){.packet = packet, .most = most, .squeeze = WHOLE};
    set_bytes(p, (uint64_t)UT_POOL_PACKETS * packet, 1);
}

static void begin(ut_pool *p, const ut_pool_count *count, ut_ns now)
{
    p->from = *count;
    p->since = now;
    p->held_back = false;
}

/* Looks at what was lost, once enough packets were sent. A queue that is full drops packets in a row, for they come in
 * bursts; a network that loses by itself drops one here and one there. */
static bool judge_loss(ut_pool *p, const ut_pool_count *count)
{
    uint64_t sent = count->numbers - p->judged.numbers, came = count->packets - p->judged.packets;
    uint64_t lost = sent - UT_MIN2(came, sent), runs = count->runs - p->judged.runs;
    if (sent < LOSS_PACKETS)
        return false;
    p->lossy = lost * 1000000 > sent * LOSS_MOST && runs * RUNS_PART > lost;
    p->judged = *count;
    if (p->lossy)
        p->squeeze = UT_MAX2(p->squeeze - p->squeeze / 4, (uint32_t)(WHOLE / SQUEEZE_MOST));
    return p->lossy;
}

/* Packets beyond those on the way. However much it is squeezed, all links must have some. What standing credit is at
 * its least is subtracted and not what it is now, so that a squeeze never turns standing credit into more of the pool.
 */
static uint64_t slack_of(const ut_pool *p, uint64_t peers)
{
    uint64_t standing = peers * UT_POOL_STANDING_MIN / SQUEEZE_MOST;
    uint64_t least = (uint64_t)SLACK_MIN - UT_MIN2(standing, (uint64_t)SLACK_MIN);
    uint64_t slack = UT_MAX2((uint64_t)UT_POOL_PACKETS * p->squeeze / WHOLE, least);
    return UT_MIN2(slack, (uint64_t)UT_POOL_PACKETS);
}

/* Until the rate of a new link stops to grow, the pool holds twice what the link has brought in a round trip, for that
 * may be as little as the pool itself has let come. */
static unsigned look_for_the_top(ut_pool *p, uint64_t rate, bool ours)
{
    if (rate > p->top + p->top / 4) {
        p->top = rate;
        p->flat = 0;
    } else if (p->flat < FLAT_MOST && p->held_back) {
        p->flat++;
    }
    p->flat = ours ? FLAT_MOST : p->flat;
    return p->flat < FLAT_MOST ? 2 : 1;
}

void ut_pool_measure(ut_pool *p, const ut_pool_count *count, ut_ns round, ut_ns late, uint32_t peers, ut_ns now)
{
    ut_ns lasted = now - p->since;
    uint64_t packets = count->packets - p->from.packets;
    if (p->since == 0 || lasted > PAUSE_ROUNDS * (round + late + UT_MS)) {
        begin(p, count, now);
        p->judged = *count;
        return;
    }
    if (lasted < UT_MAX2(2 * round, LATE * late) || packets < UT_POOL_SAMPLE_PACKETS)
        return;
    uint64_t rate = (uint64_t)((double)(count->bytes - p->from.bytes) * 1e9 / (double)lasted);
    p->rate = UT_MAX2(rate, p->rate - (uint64_t)((double)p->rate * (double)UT_MIN2(lasted, UT_SECOND) / 4e9));
    p->squeeze += p->lossy ? 0 : (WHOLE - p->squeeze + 63) / 64;
    bool ours = judge_loss(p, count);
    unsigned times = look_for_the_top(p, rate, ours);
    uint64_t slack = slack_of(p, peers) * p->packet;
    uint64_t warm = UT_MAX2(carried(p, 2 * round) + slack, (uint64_t)UT_POOL_WARM);
    uint64_t rest = UT_MIN2(carried(p, times * (round + LATE * late)) + slack, warm);
    uint64_t bytes = p->bytes;
    if (ours)
        bytes = rest;
    else if (p->held_back && rate < p->rate - p->rate / 32)
        bytes += bytes / 32;
    else
        bytes -= (bytes - UT_MIN2(bytes, rest)) / 16;
    set_bytes(p, UT_MIN2(UT_MAX2(UT_MIN2(bytes, TALL * rest), rest), warm), peers);
    begin(p, count, now);
}

void ut_pool_expect(ut_pool *p, uint32_t packets, uint32_t kept, uint32_t peers)
{
    uint64_t room = UT_MIN2(p->bytes / p->packet / UT_MAX2(peers, 1), (uint64_t)kept);
    bool fits = packets <= room;
    p->standing = fits ? UT_MAX2(p->few, (uint32_t)UT_MIN2(2 * (uint64_t)packets, room) * p->packet) : p->few;
    p->enough = fits ? UT_MAX2(packets, 1) * p->packet : p->few / 2;
    assert(p->standing >= p->few);
}

/* How much |inlet| may have outstanding. */
static uint64_t wanted(const ut_pool *p, const ut_inlet *inlet)
{
    uint64_t unasked = UT_MIN2(inlet->unasked, (uint64_t)p->standing);
    return unasked - UT_MIN2(inlet->early, unasked) + UT_MIN2(inlet->more, p->share);
}

/* What |inlet| would be granted next if there were room: a quantum. Less waits until half of the standing credit is
 * gone, so that no message goes for each packet; but where a whole transfer may come unasked, all of it is given back
 * once nothing more is known to come. */
static uint64_t step_of(const ut_pool *p, const ut_inlet *inlet)
{
    uint64_t want = wanted(p, inlet), lacks = want - UT_MIN2(want, inlet->outstanding);
    if (inlet->more == 0 && p->standing > p->few)
        return lacks;
    if (inlet->outstanding <= p->standing / 2)
        return UT_MIN2(lacks, UT_MAX2(p->quantum, p->standing - inlet->outstanding));
    return lacks >= p->quantum ? p->quantum : 0;
}

/* The standing credit takes no room. */
static uint64_t room_of(const ut_pool *p, uint64_t outstanding)
{
    return outstanding - UT_MIN2(outstanding, p->standing);
}

/* What a peer has told of is known to come if nothing else is to come from it. It gets an equal part at most: who is
 * ahead sends to all at the same time, and would leave idle whatever more it had of each one's pool. What a pool holds
 * is soon there in any case. */
static void look_ahead(const ut_pool *p, ut_inlet *inlet, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ut_inlet *in = &inlet[i];
        uint64_t most = UT_MIN2(in->told, in->kept), left = most - UT_MIN2(in->early, most);
        if (in->more == 0 && in->told > p->bytes && left > in->outstanding)
            in->more = UT_MIN2(left, p->bytes / n);
    }
}

static ut_inlet *least_of(const ut_pool *p, ut_inlet *inlet, uint32_t n)
{
    ut_inlet *least = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (step_of(p, &inlet[i]) && (!least || inlet[i].outstanding < least->outstanding))
            least = &inlet[i];
    return least;
}

uint64_t ut_pool_hand_out(ut_pool *p, ut_inlet *inlet, uint32_t n, uint64_t others)
{
    assert(inlet || n == 0);
    ut_inlet *next;
    uint64_t taken = 0;
    p->wanting = false;
    for (uint32_t i = 0; i < n; i++) {
        taken += inlet[i].counts ? room_of(p, inlet[i].outstanding) : 0;
        p->held_back = p->held_back || inlet[i].more > p->share;
    }
    look_ahead(p, inlet, n);
    while ((next = least_of(p, inlet, n))) {
        uint64_t after = next->outstanding + step_of(p, next);
        uint64_t cost = room_of(p, after) - room_of(p, next->outstanding);
        if (cost && others + taken + cost > p->bytes) {
            p->held_back = p->wanting = true;
            break;
        }
        assert(after > next->outstanding && (cost == 0 || others + taken + cost <= p->bytes));
        next->urgent = next->urgent || next->outstanding < UT_MAX2(next->more, p->enough);
        next->granted += after - next->outstanding;
        next->outstanding = after;
        next->raised = true;
        taken += cost;
    }
    return taken;
}
