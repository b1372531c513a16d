/* SPDX-License-Identifier: Apache-2.0
 *
 * The books. Per host: each datagram given to the engine is in exactly one class, and what it says it sent is what
 * left. Across hosts: what entered the network has left it by a known way, or is still there (oracle O3). Where nothing
 * was lost, next to nothing may have been sent twice (O8).
 */
#include "sim/oracles/oracles.h"
#include "sim/world/far.h"
#include "sim/world/liar.h"
#include "sim/world/seal.h"

static void same(sim_world *w, uint32_t host, const char *what, uint64_t engine, uint64_t world)
{
    if (engine != world)
        sim_fail(w, "O3 conservation", host, "%s: the engine counts %" PRIu64 ", the simulator %" PRIu64, what, engine,
                 world);
}

void sim_account_host(sim_world *w, sim_host *h)
{
    ut_stats s;
    ut_engine_stats(h->engine, &s);
    same(w, h->index, "datagrams received", s.packets_received, h->given);
    sim_far_account(w, &s);
    uint64_t classes = ut_stats_classes(&s);
    if (classes != s.packets_received + s.stash_replayed)
        sim_fail(w, "O3 conservation", h->index,
                 "%" PRIu64 " datagrams in classes, %" PRIu64 " received and %" PRIu64 " looked at again", classes,
                 s.packets_received, s.stash_replayed);
    uint64_t rejected = s.malformed + s.bad_checksum;
    bool sealed = sim_cipher(w) != NULL; /* then old packets may find their keys gone, and spoilt ones may look old */
    if (rejected > h->given_spoilt + h->given_foreign + h->given_evil + (sealed ? h->given_old : 0))
        sim_fail(w, "O3 conservation", h->index,
                 "%" PRIu64 " datagrams rejected, %" PRIu64 " were spoilt, %" PRIu64 " foreign", rejected,
                 h->given_spoilt, h->given_foreign);
    if (rejected + s.unknown + (sealed ? s.replayed : 0) < h->given_spoilt + h->given_foreign)
        sim_fail(w, "O3 conservation", h->index,
                 "%" PRIu64 " spoilt and %" PRIu64 " foreign datagrams, only %" PRIu64 " rejected and %" PRIu64
                 " unknown",
                 h->given_spoilt, h->given_foreign, rejected, s.unknown);
    same(w, h->index, "data packets sent", s.data_sent, h->sent_data);
    same(w, h->index, "path packets sent", s.path_sent, h->sent_path);
    same(w, h->index, "feedback packets sent", s.feedback_sent + s.grants_sent, h->sent_feedback);
    same(w, h->index, "events dropped", s.events_dropped, 0);
    same(w, h->index, "receipts dropped", s.receipts_dropped, 0);
    if (s.kernel_drops > h->drops)
        sim_fail(w, "O3 conservation", h->index, "%" PRIu64 " kernel drops, told of %" PRIu64, s.kernel_drops,
                 h->drops);
    sim_guarded_check(w, &h->memory, h->index, "engine");
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        if (h->seat[job].open)
            sim_guarded_check(w, &h->seat[job].memory, h->index, "job");
}

/* Ops, when none is open. */
static void account_ops(sim_world *w, sim_host *h)
{
    ut_stats s;
    ut_engine_stats(h->engine, &s);
    if (w->plan.faultless && s.data_resent * 10 > s.data_sent + 1000)
        sim_fail(w, "O8 thrift", h->index, "%" PRIu64 " of %" PRIu64 " data packets are repairs where nothing was lost",
                 s.data_resent, s.data_sent);
    if (!w->plan.partial) /* there one may begin for the sake of what was left over, and nobody waits for its end */
        same(w, h->index, "start of the oldest open op", s.oldest_open_ns, UT_NEVER);
    if (h->sessions_removed || w->plan.evil || w->plan.hostile)
        return;
    same(w, h->index, "ops COMPLETE", s.ops_complete, h->ended[UT_COMPLETE]);
    same(w, h->index, "ops PARTIAL", s.ops_partial, h->ended[UT_PARTIAL]);
    same(w, h->index, "ops INSUFFICIENT", s.ops_insufficient, h->ended[UT_INSUFFICIENT]);
    same(w, h->index, "ops FAILED", s.ops_failed, h->ended[UT_FAILED]);
    if (!w->plan.partial && !w->plan.sparse && !w->plan.quant &&
        w->plan.job[0].op[0].group == 0) /* there hosts take part in ops of which they get no
                                          * receipt; here receipts count dense bytes */
        same(w, h->index, "bytes used", s.bytes_used, h->used_bytes);
}

static void balance(sim_world *w, const char *what, uint64_t in, uint64_t out, uint64_t under_way)
{
    if (in != out + under_way)
        sim_fail(w, "O3 conservation", 0,
                 "%s: %" PRIu64 " into the network, %" PRIu64 " out of it, %" PRIu64 " under way", what, in, out,
                 under_way);
}

/* A path's receiver counts each packet number once, so it has never more than was sent (a replay that is believed shows
 * here). */
static void account_path(sim_world *w, uint32_t job, uint32_t from, uint32_t to)
{
    const sim_job_plan *j = &w->plan.job[job];
    const sim_host *a = &w->host[j->host[from]], *b = &w->host[j->host[to]];
    ut_peer_stats sent, received;
    if (!a->alive || !b->alive || a->seat[job].linked_life[to] != b->life || b->seat[job].linked_life[from] != a->life)
        return;
    if (sim_is_liar(w, a->index) || sim_is_liar(w, b->index)) /* their paths began anew at different times */
        return;
    if (ut_engine_peer_stats(a->engine, job, to, &sent) || ut_engine_peer_stats(b->engine, job, from, &received))
        sim_fail(w, "O3 conservation", b->index, "job %u does not know its path from host %u", job, a->index);
    if (received.received_bytes > sent.sent_bytes)
        sim_fail(w, "O3 conservation", b->index, "%" PRIu64 " bytes received from host %u, which sent %" PRIu64,
                 received.received_bytes, a->index, sent.sent_bytes);
}

static void account_paths(sim_world *w)
{
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        for (uint32_t from = 0; from < w->plan.job[job].hosts; from++)
            for (uint32_t to = 0; to < w->plan.job[job].hosts; to++)
                if (from != to)
                    account_path(w, job, from, to);
}

void sim_account_world(sim_world *w)
{
    sim_tally under_way = {0, 0};
    for (uint32_t i = 0; i < w->events; i++)
        if (sim_event_in(w, i)->kind == SIM_EV_SWITCH || sim_event_in(w, i)->kind == SIM_EV_ARRIVE) {
            const sim_packet *packet = sim_event_in(w, i)->p;
            under_way.packets++;
            under_way.bytes += packet->len;
        }
    for (uint32_t i = 0; i < w->plan.hosts; i++) {
        sim_host *h = &w->host[i];
        for (unsigned port = 0; port < 2; port++)
            for (const sim_packet *packet = h->queue[port]; packet; packet = packet->next) {
                under_way.packets++;
                under_way.bytes += packet->len;
            }
        if (!h->alive)
            continue;
        sim_account_host(w, h);
        account_ops(w, h);
    }
    if (!w->plan.evil)
        account_paths(w);
    const sim_net_books *b = &w->books;
    balance(w, "packets", b->sent.packets + b->injected.packets + b->duplicated.packets,
            b->lost.packets + b->lost_host.packets + b->lost_dead.packets + b->delivered.packets, under_way.packets);
    balance(w, "bytes", b->sent.bytes + b->injected.bytes + b->duplicated.bytes + b->grown.bytes,
            b->lost.bytes + b->lost_host.bytes + b->lost_dead.bytes + b->delivered.bytes + b->shrunk.bytes,
            under_way.bytes);
}
