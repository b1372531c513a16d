/* SPDX-License-Identifier: Apache-2.0
 *
 * The books. Per host: each datagram given to the engine is in exactly one class, and what it says it sent is what left. Across
 * hosts: what entered the network has left it by a known way, or is still there (oracle O3).
 */
#include "sim.h"

static void same(sim_world *w, uint32_t host, const char *what, uint64_t engine, uint64_t world)
{
    if (engine != world)
        sim_fail(w, "O3 conservation", host, "%s: the engine counts %" PRIu64 ", the simulator %" PRIu64, what, engine, world);
}

void sim_account_host(sim_world *w, sim_host *h)
{
    ut_stats s;
    ut_engine_stats(h->engine, &s);
    same(w, h->index, "datagrams received", s.packets_received, h->given);
    uint64_t classes = s.data_used + s.data_duplicate + s.data_late + s.data_stashed + s.data_refused + s.feedback_received +
                       s.feedback_old + s.replayed + s.unknown + s.malformed + s.bad_checksum;
    if (classes != s.packets_received + s.stash_replayed)
        sim_fail(w, "O3 conservation", h->index,
                 "%" PRIu64 " datagrams in classes, %" PRIu64 " received and %" PRIu64 " looked at again", classes,
                 s.packets_received, s.stash_replayed);
    uint64_t rejected = s.malformed + s.bad_checksum;
    if (rejected > h->given_spoilt + h->given_foreign)
        sim_fail(w, "O3 conservation", h->index, "%" PRIu64 " datagrams rejected, %" PRIu64 " were spoilt, %" PRIu64 " foreign",
                 rejected, h->given_spoilt, h->given_foreign);
    if (rejected + s.unknown < h->given_spoilt + h->given_foreign)
        sim_fail(w, "O3 conservation", h->index,
                 "%" PRIu64 " spoilt and %" PRIu64 " foreign datagrams, only %" PRIu64 " rejected and %" PRIu64 " unknown",
                 h->given_spoilt, h->given_foreign, rejected, s.unknown);
    same(w, h->index, "data packets sent", s.data_sent, h->sent_data);
    same(w, h->index, "feedback packets sent", s.feedback_sent, h->sent_feedback);
    same(w, h->index, "events dropped", s.events_dropped, 0);
    if (s.kernel_drops > h->drops)
        sim_fail(w, "O3 conservation", h->index, "%" PRIu64 " kernel drops, told of %" PRIu64, s.kernel_drops, h->drops);
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
    same(w, h->index, "start of the oldest open op", s.oldest_open_ns, UT_NEVER);
    if (h->sessions_removed)
        return;
    same(w, h->index, "ops COMPLETE", s.ops_complete, h->ended[UT_COMPLETE]);
    same(w, h->index, "ops PARTIAL", s.ops_partial, h->ended[UT_PARTIAL]);
    same(w, h->index, "ops INSUFFICIENT", s.ops_insufficient, h->ended[UT_INSUFFICIENT]);
    same(w, h->index, "ops FAILED", s.ops_failed, h->ended[UT_FAILED]);
    same(w, h->index, "bytes used", s.bytes_used, h->used_bytes);
}

static void balance(sim_world *w, const char *what, uint64_t in, uint64_t out, uint64_t under_way)
{
    if (in != out + under_way)
        sim_fail(w, "O3 conservation", 0, "%s: %" PRIu64 " into the network, %" PRIu64 " out of it, %" PRIu64 " under way", what,
                 in, out, under_way);
}

void sim_account_world(sim_world *w)
{
    sim_tally under_way = {0, 0};
    for (uint32_t i = 0; i < w->events; i++)
        if (w->heap[i].kind == SIM_EV_SWITCH || w->heap[i].kind == SIM_EV_ARRIVE) {
            const sim_packet *packet = w->heap[i].p;
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
    const sim_net_books *b = &w->books;
    balance(w, "packets", b->sent.packets + b->injected.packets + b->duplicated.packets,
            b->lost.packets + b->lost_host.packets + b->lost_dead.packets + b->delivered.packets, under_way.packets);
    balance(w, "bytes", b->sent.bytes + b->injected.bytes + b->duplicated.bytes + b->grown.bytes,
            b->lost.bytes + b->lost_host.bytes + b->lost_dead.bytes + b->delivered.bytes + b->shrunk.bytes, under_way.bytes);
}
