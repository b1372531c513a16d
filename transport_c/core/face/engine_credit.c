/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's one pool of credit (core/link/pool.h), for all jobs of the engine.
 */
#include "core/face/engine_impl.h"
#include "core/link/link.h"

enum { LATE_PACKETS = 4 * UT_POOL_SAMPLE_PACKETS }; /* over so many packets lateness is smoothed */

/* The mean of the least round trips to peers that are up, and how many those are. Of senders that each have an equal
 * part of the link, so much is on the way together (Little's law). A host that has just begun sees the queue of its own
 * bursts in all but the first of them. */
static ut_ns round_of(const ut_engine *e, uint32_t *ret_peers)
{
    ut_ns sum = 0;
    uint32_t peers = 0, known = 0;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        const ut_job *j = e->job[n];
        uint32_t up = 0;
        for (uint32_t h = 0; j && h < j->config.hosts; h++)
            if (h != j->config.self && ut_job_host_is_up(j, h)) {
                ut_ns base = j->conn[h].cc.base_rtt;
                sum += base;
                known += base != 0;
                up++;
            }
        peers = UT_MAX2(peers, up);
    }
    *ret_peers = peers;
    return known ? sum / known : 0;
}

static uint64_t load(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static void store(uint64_t *p, uint64_t value)
{
    __atomic_store_n(p, value, __ATOMIC_RELAXED);
}

void ut_engine_credit_init(ut_engine *e)
{
    ut_pool_init(&e->pool, e->config.packet_bytes, e->config.receive_buffer / 2);
    e->credit_at = UT_NEVER;
    if (!e->config.link)
        return;
    /* The row may have been another engine's: what others have read of it stays counted. */
    const ut_link_row *row = &e->config.link->lane[e->config.lane];
    e->came = (ut_pool_count){load(&row->bytes), load(&row->packets), load(&row->numbers), load(&row->runs)};
    e->waited.packets = e->came.packets;
}

/* What has come to all lanes of the host. |taken|: what the other lanes' peers have outstanding. A lane that has said
 * nothing for |silence| is asleep, and so are its peers. */
static ut_pool_count came_to_host(const ut_engine *e, ut_ns silence, ut_ns now, uint64_t *taken)
{
    ut_pool_count sum = e->came;
    *taken = 0;
    for (uint32_t lane = 0; e->config.link && lane < UT_LANES_MAX; lane++) {
        const ut_link_row *row = &e->config.link->lane[lane];
        if (lane == e->config.lane)
            continue;
        sum.bytes += load(&row->bytes);
        sum.packets += load(&row->packets);
        sum.numbers += load(&row->numbers);
        sum.runs += load(&row->runs);
        *taken += now < load(&row->told_at) + silence ? load(&row->taken) : 0;
    }
    return sum;
}

static void tell(const ut_engine *e, uint64_t taken, ut_ns now)
{
    if (!e->config.link)
        return;
    ut_link_row *row = &e->config.link->lane[e->config.lane];
    store(&row->bytes, e->came.bytes);
    store(&row->packets, e->came.packets);
    store(&row->numbers, e->came.numbers);
    store(&row->runs, e->came.runs);
    store(&row->taken, taken);
    store(&row->told_at, now);
}

/* Each packet has one vote, for a host that is awake takes many short turns, and one that sleeps a long one in which
 * much comes. What a turn has read is known when the next one begins. */
void ut_engine_waited(ut_engine *e, ut_ns waited)
{
    uint64_t packets = e->came.packets - e->waited.packets;
    uint64_t votes = packets + UT_MIN2(e->waited.votes, (uint64_t)LATE_PACKETS);
    if (packets)
        e->late = (ut_ns)((int64_t)e->late +
                          ((int64_t)e->waited.longest - (int64_t)e->late) * (int64_t)packets / (int64_t)votes);
    e->waited = (ut_engine_wait){.longest = waited, .packets = e->came.packets, .votes = votes};
    assert(e->waited.packets <= e->came.packets);
}

void ut_engine_came(ut_engine *e, uint32_t packets, uint32_t bytes, uint64_t numbers)
{
    assert(packets > 0);
    uint64_t lost = numbers > packets ? numbers - packets : 0;
    e->came.bytes += bytes;
    e->came.packets += packets;
    e->came.numbers += numbers;
    e->came.runs += lost > 1 ? lost : 0;
}

/* Packets of the largest transfer that came from one peer in the newest ops of all jobs, and how many packets a path
 * keeps of ops that are not open here, in the job in which that is least. */
static uint32_t largest_of(const ut_engine *e, uint32_t *ret_kept)
{
    uint32_t largest = 0;
    *ret_kept = UINT32_MAX;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        const ut_job *j = e->job[n];
        if (j)
            *ret_kept = UT_MIN2(*ret_kept, ut_job_keeps(j));
        for (unsigned k = 0; j && k < UT_OPS_MAX; k++)
            largest = UT_MAX2(largest, j->largest[k]);
    }
    return largest;
}

/* The least queueing delay that a job asks for; 0 if none does. */
static ut_ns target_of(const ut_engine *e)
{
    ut_ns least = UT_NEVER;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++)
        if (e->job[n] && ut_job_options_now(e->job[n])->delay_target_ns)
            least = UT_MIN2(least, (ut_ns)ut_job_options_now(e->job[n])->delay_target_ns);
    return least == UT_NEVER ? 0 : least;
}

void ut_engine_credit_tick(ut_engine *e, ut_ns now)
{
    uint32_t peers, kept, inlets = 0;
    uint64_t others;
    ut_ns round = round_of(e, &peers);
    ut_pool_count came = came_to_host(e, 4 * round + UT_MS, now, &others);
    e->pool.target = target_of(e);
    e->pool.oldest = e->waited.longest;
    ut_pool_measure(&e->pool, &came, round, e->late, peers, now);
    const uint32_t largest = largest_of(e, &kept);
    ut_pool_expect(&e->pool, largest, kept, peers);
    ut_ns silent = UT_NEVER;
    e->credit_at = UT_NEVER;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++)
        if (e->job[n])
            inlets += ut_job_inlets(e->job[n], now, &e->inlet[inlets], &e->credit_at, &silent);
    tell(e, ut_pool_hand_out(&e->pool, e->inlet, inlets, others), now);
    assert(e->pool.paced_until > now); /* a timer of the past is due at once, each time */
    e->credit_at = UT_MIN2(e->credit_at, e->pool.paced_until);
    if (e->pool.wanting)
        e->credit_at = UT_MIN2(e->credit_at, silent);
    for (uint32_t i = 0; i < inlets; i++)
        if (e->inlet[i].raised)
            ut_conn_grant(e->inlet[i].owner, e->inlet[i].granted, e->inlet[i].urgent, now);
}
