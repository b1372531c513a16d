/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/pool.h"

enum {
    PARTS = 8,          /* a grant is such a part of the pool, or half of each peer's equal part if that is less, ... */
    GRANT_NS = 2000000, /* ... or what comes in this time: more at once is a burst to the links in between ... */
    GRANT_PACKETS = 8,  /* ... but has at least so many packets */
    GRANTS = 2,         /* so many may be made up for that were late */
    LOOK_PART = 16,     /* a sample lasts for such a part of a round trip: 1/16 is what the first op waits longer, */
    LOOK_NS = 100000,   /* ... and no less than this: what is read at once says nothing of the link */
    LOOK_PACKETS = 32,  /* of a sample that lasts a millisecond */
    SEARCH = 4,         /* grants go out at so many times C while it may still be too low */
    UNKNOWN_NS = 100000000, /* while no rate is known, what comes so far apart is no train: 1 Mbit/s brings 8 packets */
    LATE = 4,               /* of the times that hosts come late to their work: both ends, and half of them are later */
    PACE_PART = 16,         /* grants go out so much faster than data come, or a rate that rises is never seen */
    LOSS_PACKETS = 1024,    /* loss is judged over at least so many */
    LOSS_MOST = 1000,       /* of a million */
    RUNS_PART = 4,          /* it is our doing if a quarter was lost in runs of what is not so by chance */
    SLACK_MIN = 60,         /* packets beyond those on the way, standing credit included, however much is lost */
    WHOLE = 1024,           /* of `squeeze`, `tall` and `way` */
    SQUEEZE_MOST = 2,       /* to a half at most */
    GROWS_FROM = 700,       /* `tall` rises unless more is squeezed than once by a quarter (768) and a fifteenth */
    TALL_MOST = 3,          /* the largest pool is so many times the usual one, and has no more than GRANT_NS beyond */
    PROOF_PART = 2,         /* C is believed that was seen over such a part of what a sample must last now */
    WAIT_PART = 8, /* a queue stands if packets wait longer than our burst takes, and than such a part of a round
                      trip, or the grants that may go out at once */
    WAY_STEP = 8,  /* the pool gives way, and comes back, by such a part in a round trip */
    PART = 461,    /* of 1024: 0.45 of what path and queue hold; at a half an own queue would never shrink */
};

static uint64_t carried(const ut_pool *p, ut_ns time)
{
    return (uint64_t)((double)p->rate * (double)time / 1e9);
}

/* What the path itself holds, as far as we make use of it. */
static uint64_t path_of(const ut_pool *p)
{
    return carried(p, p->round) * p->way / WHOLE;
}

static void set_bytes(ut_pool *p, uint64_t bytes, uint64_t peers)
{
    assert(p->packet > 0 && p->squeeze >= WHOLE / SQUEEZE_MOST && p->squeeze <= WHOLE);
    uint64_t standing = bytes / p->packet / 4 / UT_MAX2(peers, 1);
    uint64_t least = UT_MAX2((uint64_t)UT_POOL_STANDING_MIN * p->squeeze / WHOLE, 1);
    uint64_t timely = p->rate ? carried(p, GRANT_NS) : UINT64_MAX;
    p->bytes = UT_MIN2(bytes, UT_MIN2(path_of(p) + p->most, (uint64_t)UT_POOL_MOST));
    p->share = p->bytes;
    p->quantum = UT_MIN2(p->bytes / UT_MAX2(PARTS, 2 * peers), timely);
    p->quantum = UT_MAX2(p->quantum, (uint64_t)GRANT_PACKETS * p->packet);
    p->few = (uint32_t)UT_MAX2(UT_MIN2(standing, (uint64_t)UT_POOL_STANDING_MAX), least) * p->packet;
    p->standing = p->few;
    p->enough = p->few / 2;
    assert(p->share <= p->bytes && p->few >= p->packet);
}

void ut_pool_init(ut_pool *p, uint32_t packet, uint64_t most)
{
    assert(packet > 0);
    *p = (ut_pool){
        .packet = packet, .most = most, .squeeze = WHOLE, .tall = WHOLE, .way = WHOLE, .paced_until = UT_NEVER};
    set_bytes(p, (uint64_t)UT_POOL_PACKETS * packet, 1);
}

static void begin(ut_pool *p, const ut_pool_count *count, ut_ns now)
{
    p->from = *count;
    p->since = now;
    p->held_back = false;
}

/* How many of |lost| packets have lost neighbours if each is lost by chance: all but those of which both came. */
static double runs_by_chance(uint64_t lost, uint64_t sent)
{
    const double came = (double)(sent - lost) / (double)sent;
    return (double)lost * (1 - came * came);
}

/* Looks at what was lost, once enough packets were sent. A queue that is full drops packets in a row, for they come in
 * bursts; a network that loses by itself drops one here and one there, and two in a row as often as chance has it. */
static bool judge_loss(ut_pool *p, const ut_pool_count *count)
{
    uint64_t sent = count->numbers - p->judged.numbers, came = count->packets - p->judged.packets;
    uint64_t lost = sent - UT_MIN2(came, sent), runs = count->runs - p->judged.runs;
    if (sent < LOSS_PACKETS)
        return false;
    const double chance = runs_by_chance(lost, sent);
    p->lossy = lost * 1000000 > sent * LOSS_MOST && ((double)runs - chance) * RUNS_PART > (double)lost - chance;
    p->judged = *count;
    if (p->lossy) {
        p->squeeze = UT_MAX2(p->squeeze - p->squeeze / 4, (uint32_t)(WHOLE / SQUEEZE_MOST));
        if (p->queued)
            p->way = UT_MAX2(p->way - p->way / 4, (uint32_t)PART);
    }
    return p->lossy;
}

/* Packets of the burst. However much it is squeezed, all links must have some. What standing credit is at its least is
 * subtracted and not what it is now, so that a squeeze never turns standing credit into more of the pool. */
static uint64_t slack_of(const ut_pool *p, uint64_t peers)
{
    uint64_t standing = peers * UT_POOL_STANDING_MIN / SQUEEZE_MOST;
    uint64_t least = (uint64_t)SLACK_MIN - UT_MIN2(standing, (uint64_t)SLACK_MIN);
    uint64_t slack = UT_MAX2((uint64_t)UT_POOL_PACKETS * p->squeeze / WHOLE, least);
    return UT_MIN2(slack, (uint64_t)UT_POOL_PACKETS);
}

static uint64_t burst_of(const ut_pool *p, ut_ns late, uint64_t peers)
{
    return carried(p, LATE * late) + slack_of(p, peers) * p->packet;
}

/* Whether C may still be too low: until twice what the path holds has come since it last rose. Counted in bytes, for an
 * op may be shorter than a round trip. */
static bool is_searching(const ut_pool *p)
{
    return p->seen - p->top_at < 2 * carried(p, p->round) + (uint64_t)UT_POOL_PACKETS * p->packet;
}

static uint64_t pace_of(const ut_pool *p)
{
    return is_searching(p) ? SEARCH * p->rate : p->rate + p->rate / PACE_PART;
}

/* Of grants so many may be late, and each can go whole; and so many of what has come may be granted anew at once. While
 * no rate is known nothing is paced, and nothing is counted. */
static void count_tokens(ut_pool *p, uint64_t come, ut_ns now)
{
    const uint64_t most = GRANTS * UT_MAX2(carried(p, GRANT_NS), p->quantum);
    const double time = (double)UT_MIN2(now - p->tokens_at, UT_SECOND);
    const uint64_t more = p->tokens_at ? (uint64_t)((double)pace_of(p) * time / 1e9) : most;
    p->turned = UT_MIN2(p->turned + come, GRANTS * p->quantum);
    if (p->rate == 0)
        return;
    p->tokens = UT_MIN2(p->tokens + more, most);
    p->tokens_at = more ? now : p->tokens_at; /* a turn may be shorter than a byte */
}

/* Once in a round trip in which data came: how long they have waited, in the mean. |extra|: bytes that may be
 * outstanding beyond what the path holds. */
static void give_way(ut_pool *p, uint64_t extra, ut_ns now)
{
    if (p->waits == 0) {
        p->waits_since = now;
        return;
    }
    if (now - p->waits_since < UT_MAX2(p->round, UT_MS) || p->rate == 0)
        return;
    const ut_ns own = (ut_ns)((double)extra * 1e9 / (double)p->rate), wait = p->waited / p->waits;
    uint64_t fit = WHOLE;
    p->queued = wait > own;
    const ut_ns most = p->target ? p->target : UT_MAX2(p->round / WAIT_PART, (ut_ns)GRANTS * GRANT_NS);
    if (p->round && wait > own + most) {
        const ut_ns part = (p->round + wait) / WHOLE * PART;
        fit = UT_MIN2((part - UT_MIN2(own, part)) * WHOLE / p->round, (uint64_t)WHOLE);
    }
    const uint64_t most_now = p->lossy ? p->way : p->way + WHOLE / WAY_STEP;
    p->way = (uint32_t)UT_MAX2(UT_MIN2(fit, most_now), (uint64_t)(p->way - p->way / WAY_STEP));
    p->waited = p->waits = 0;
    p->waits_since = now;
}

/* So many bytes came in a time: C is no less. */
static void show(ut_pool *p, uint64_t bytes, ut_ns lasted)
{
    const uint64_t rate = (uint64_t)((double)bytes * 1e9 / (double)lasted);
    if (rate <= p->rate)
        return;
    p->rate = rate;
    p->proof = lasted;
}

/* A part of a round trip is over: C is no less than what it brought. */
static void look(ut_pool *p, const ut_pool_count *count, ut_ns least, ut_ns now)
{
    const ut_ns lasted = now - p->look_at;
    const uint64_t bytes = count->bytes - p->look_from;
    if (lasted < least || bytes < (lasted < UT_MS ? UT_POOL_SAMPLE_PACKETS : LOOK_PACKETS) * (uint64_t)p->packet)
        return;
    show(p, bytes, lasted);
    if (p->rate > p->top + p->top / 8 || p->rate < p->top / 2) {
        p->top = p->rate;
        p->top_at = count->bytes;
    }
    p->look_at = now;
    p->look_from = count->bytes;
    p->train_at = 0;
}

/* C fades while senders wait for grants and less comes; not while the pool gives way, which then is why less comes.
 * What was seen in too short a time, before this host was known to come so late to its work, is not believed any
 * longer. */
static void fade(ut_pool *p, ut_ns least, ut_ns lasted)
{
    if (!p->held_back || p->way < WHOLE)
        return;
    const bool believed = p->proof >= least / PROOF_PART;
    p->rate -= believed ? (uint64_t)((double)p->rate * (double)UT_MIN2(lasted, UT_SECOND) / 4e9) : p->rate;
}

/* A sample has ended: round trips in which the link was busy, as far as there was credit. The burst grows only where no
 * queue has dropped it of late, or it would grow beside whoever fills that queue, and starve him. */
static void take_sample(ut_pool *p, const ut_pool_count *count, ut_ns least, ut_ns now)
{
    const ut_ns lasted = now - p->since;
    const uint64_t bytes = count->bytes - p->from.bytes, rate = (uint64_t)((double)bytes * 1e9 / (double)lasted);
    const bool starves = p->held_back && rate < p->rate - p->rate / 32;
    fade(p, least, lasted);
    show(p, bytes, lasted);
    p->squeeze += p->lossy ? 0 : (WHOLE - p->squeeze + 63) / 64;
    if (judge_loss(p, count))
        p->tall = WHOLE;
    else if (starves && p->way == WHOLE && !p->lossy && p->squeeze >= GROWS_FROM)
        p->tall = UT_MIN2(p->tall + p->tall / 32, (uint32_t)(TALL_MOST * WHOLE));
    else
        p->tall -= (p->tall - WHOLE) / 16;
}

/* The train that runs is too short for a look as yet. C is no less than if nothing else came in the time of one. What
 * is read first came in a time that nobody knows, so that counts in the first half alone. */
static void take_train(ut_pool *p, ut_ns least, ut_ns now)
{
    const uint64_t bytes = p->seen - p->train;
    const ut_ns whole = UT_MAX2(least, UT_MS);
    if (p->train_at && now - p->train_at < whole / 2 && bytes >= LOOK_PACKETS * (uint64_t)p->packet)
        show(p, bytes, whole);
}

/* So long nothing comes between two trains: longer than grants are apart. */
static ut_ns pause_of(const ut_pool *p, ut_ns least)
{
    const ut_ns grants = p->rate ? (ut_ns)((double)(GRANTS * p->quantum) * 1e9 / (double)p->rate) : UNKNOWN_NS;
    return least + UT_MS + grants;
}

static void resize(ut_pool *p, ut_ns late, uint32_t peers)
{
    const uint64_t path = path_of(p), rest = path + burst_of(p, late, peers), tallest = rest + carried(p, GRANT_NS);
    const uint64_t tall = UT_MIN2(rest * p->tall / WHOLE, tallest);
    uint64_t warm = UT_MAX2(2 * carried(p, p->round) + slack_of(p, peers) * p->packet, (uint64_t)UT_POOL_WARM);
    p->beyond = UT_MIN2(UT_MIN2(rest * TALL_MOST, tallest), warm) - path;
    set_bytes(p, UT_MIN2(tall, warm), peers);
}

void ut_pool_measure(ut_pool *p, const ut_pool_count *count, ut_ns round, ut_ns late, uint32_t peers, ut_ns now)
{
    const ut_ns least = UT_MAX2(UT_MAX2(round / LOOK_PART, LATE * late), (ut_ns)LOOK_NS);
    const bool news = count->bytes != p->seen, rested = news && now - p->seen_at > pause_of(p, least);
    const uint64_t before = p->seen;
    p->round = round;
    p->measured_at = now;
    p->seen = count->bytes;
    p->seen_at = news ? now : p->seen_at;
    count_tokens(p, count->bytes - before, now);
    if (p->since == 0 || rested) {
        if (p->since == 0)
            p->judged = *count;
        begin(p, count, now);
        p->train = before;
        p->train_at = now - UT_MIN2(p->oldest, now);
        p->look_at = now;
        p->look_from = count->bytes;
    }
    take_train(p, least, now);
    look(p, count, least, now);
    give_way(p, burst_of(p, late, peers) + (uint64_t)p->few * peers, now);
    if (now - p->since >= UT_MAX2(2 * round, LATE * late) &&
        count->packets - p->from.packets >= UT_POOL_SAMPLE_PACKETS) {
        take_sample(p, count, least, now);
        begin(p, count, now);
    }
    if (p->rate)
        resize(p, late, peers); /* the round trip may be another now */
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
    if (inlet->more <= p->share && inlet->outstanding < inlet->more && lacks < p->quantum)
        return lacks; /* the end of what is known to come: it waits for nothing else */
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
    uint32_t active = 0;
    p->wanting = false;
    p->paced_until = UT_NEVER;
    for (uint32_t i = 0; i < n; i++)
        active += inlet[i].more > 0;
    p->share = active > 1 ? p->bytes * 3 / 2 / active : p->bytes; /* half more than an equal part */
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
        if (cost > UT_MAX2(p->tokens, p->turned) && p->rate) {
            const ut_ns due = p->tokens_at + (ut_ns)((double)(cost - p->tokens) * 1e9 / (double)pace_of(p));
            p->paced_until = UT_MAX2(due, p->measured_at) + UT_US; /* of a rate that was just seen none are counted */
            break;
        }
        assert(after > next->outstanding && (cost == 0 || others + taken + cost <= p->bytes));
        next->urgent = next->urgent || next->outstanding < UT_MAX2(next->more, p->enough);
        next->granted += after - next->outstanding;
        next->outstanding = after;
        next->raised = true;
        taken += cost;
        p->tokens -= UT_MIN2(cost, p->tokens);
        p->turned -= UT_MIN2(cost, p->turned);
    }
    return taken;
}
