/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "lan/lan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/bits.h"
#include "core/base/mix.h"
#include "kernels/kernels.h"

enum {
    PACKET_BYTES = 1472,      /* MTU 1500 over IPv4, as the UDP driver has it */
    RECEIVE_BUFFER = 8 << 20, /* as the UDP driver asks for; here nothing is dropped for want of it */
    AGAIN_NS = 1000,          /* an engine that wants another turn at once gets it so much later: time goes on */
    JOBS = 1,
};

/* A burst on its way. */
typedef struct message {
    struct message *next;
    ut_ns at; /* when it arrives */
    uint32_t port, bytes, stride;
    uint8_t data[];
} message;

typedef struct region {
    void *memory;
    size_t bytes;
} region;

typedef struct host {
    ut_engine *engine;
    region engine_memory, job_memory[JOBS];
    message *inbox; /* by the time of arrival */
    uint64_t rung;  /* sessions whose rings are to be looked at */
    uint64_t woken; /* sessions that have completions */
    ut_ns turn_at;  /* when it must have a turn, whatever comes */
} host;

struct ut_lan {
    uint32_t hosts;
    ut_ns now;
    uint64_t random;
    ut_lan_path path[UT_HOSTS_MAX][UT_HOSTS_MAX];
    host host[UT_HOSTS_MAX];
    ut_burst burst;
};

static region map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return (region){.memory = p == MAP_FAILED ? NULL : p, .bytes = bytes};
}

static void unmap(region *r)
{
    if (r->memory)
        munmap(r->memory, r->bytes);
    *r = (region){.memory = NULL};
}

static ut_engine_config engine_config(uint64_t seed)
{
    return (ut_engine_config){.packet_bytes = PACKET_BYTES,
                              .segments_max = UT_MIN2((uint32_t)UT_SEGMENTS_MAX, UT_BURST_BYTES / PACKET_BYTES),
                              .receive_buffer = RECEIVE_BUFFER,
                              .seed = seed};
}

ut_lan *ut_lan_open(uint32_t hosts, uint64_t seed)
{
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX);
    ut_lan *lan = calloc(1, sizeof(*lan));
    if (!lan)
        return NULL;
    ut_kernels_init(UT_ISA_BEST);
    lan->hosts = hosts;
    lan->random = seed;
    for (uint32_t h = 0; h < hosts; h++) {
        const ut_engine_config config = engine_config(ut_mix_next(&lan->random));
        host *t = &lan->host[h];
        t->turn_at = UT_NEVER;
        t->engine_memory = map(ut_engine_bytes(&config));
        if (!t->engine_memory.memory || ut_engine_init(t->engine_memory.memory, &config, &t->engine) != UT_OK) {
            ut_lan_close(lan);
            return NULL;
        }
    }
    return lan;
}

void ut_lan_close(ut_lan *lan)
{
    if (!lan)
        return;
    for (uint32_t h = 0; h < lan->hosts; h++) {
        host *t = &lan->host[h];
        for (message *m = t->inbox, *next; m; m = next) {
            next = m->next;
            free(m);
        }
        for (uint32_t job = 0; job < JOBS; job++)
            unmap(&t->job_memory[job]);
        unmap(&t->engine_memory);
    }
    free(lan);
}

ut_engine *ut_lan_engine(ut_lan *lan, uint32_t host)
{
    assert(host < lan->hosts);
    return lan->host[host].engine;
}

int ut_lan_job_add(ut_lan *lan, uint32_t h, uint32_t job, const ut_job_config *config)
{
    assert(h < lan->hosts && job < JOBS && !lan->host[h].job_memory[job].memory);
    const ut_engine_config engine = engine_config(1);
    const size_t bytes = ut_job_bytes(&engine, config);
    if (bytes == 0)
        return UT_ERR_ARGUMENT;
    region *memory = &lan->host[h].job_memory[job];
    *memory = map(bytes);
    const int result =
        memory->memory ? ut_engine_job_add(lan->host[h].engine, job, config, memory->memory) : UT_ERR_SYSTEM;
    if (result != UT_OK)
        unmap(memory);
    lan->host[h].turn_at = 0;
    return result;
}

void ut_lan_job_remove(ut_lan *lan, uint32_t h, uint32_t job, ut_ns now)
{
    assert(h < lan->hosts && job < JOBS && lan->host[h].job_memory[job].memory);
    ut_engine_job_remove(lan->host[h].engine, job, now);
    unmap(&lan->host[h].job_memory[job]);
    lan->host[h].rung = 0;
    lan->host[h].turn_at = 0;
}

static ut_addr address(uint32_t host, uint32_t port)
{
    return (ut_addr){.len = 2, .bytes = {(uint8_t)host, (uint8_t)port}};
}

int ut_lan_connect(ut_lan *lan, uint32_t job, uint32_t from, uint32_t to, uint32_t cid, ut_ns now)
{
    assert(from < lan->hosts && to < lan->hosts);
    const ut_addr data = address(to, UT_PORT_DATA), feedback = address(to, UT_PORT_FEEDBACK);
    lan->host[from].turn_at = 0;
    return ut_engine_peer_connect(lan->host[from].engine, job, to, &data, &feedback, cid, now);
}

void ut_lan_set_path(ut_lan *lan, uint32_t from, uint32_t to, const ut_lan_path *path)
{
    assert(from < lan->hosts && to < lan->hosts);
    lan->path[from][to] = *path;
}

void ut_lan_ring(ut_lan *lan, uint32_t host, uint32_t session)
{
    assert(host < lan->hosts && session < UT_SESSIONS_MAX);
    lan->host[host].rung |= ut_bit(session);
}

void ut_lan_touched(ut_lan *lan, uint32_t host)
{
    assert(host < lan->hosts);
    lan->host[host].turn_at = 0;
}

/* ---- the network ---- */

static bool is_lost(ut_lan *lan, uint32_t share)
{
    return share > 0 && ut_mix_next(&lan->random) % UT_LAN_SURE < share;
}

/* Copies what arrives of a burst; the last segment, which may be shorter, stays the last. */
static uint32_t copy_arriving(ut_lan *lan, const ut_burst *b, uint32_t lost, uint8_t *ret)
{
    uint32_t bytes = 0;
    for (uint32_t at = 0; at < b->bytes; at += b->segment_bytes) {
        const uint32_t len = UT_MIN2(b->segment_bytes, b->bytes - at);
        if (is_lost(lan, lost))
            continue;
        memcpy(ret + bytes, b->memory + at, len);
        bytes += len;
    }
    return bytes;
}

/* Behind all that arrives no later, so what is sent on one path stays in order. */
static void put_in_inbox(host *to, message *m)
{
    message **at = &to->inbox;
    while (*at && (*at)->at <= m->at)
        at = &(*at)->next;
    m->next = *at;
    *at = m;
}

static void send_burst(ut_lan *lan, uint32_t from, ut_ns now)
{
    const ut_burst *b = &lan->burst;
    const uint32_t to = b->to.bytes[0];
    assert(b->to.len == 2 && to < lan->hosts);
    const ut_lan_path *path = &lan->path[from][to];
    message *m = malloc(sizeof(*m) + b->bytes);
    if (!m)
        return; /* lost, as networks lose what they have no room for */
    *m = (message){.at = now + UT_LAN_WAY_NS + path->delay, .port = b->port, .stride = b->segment_bytes};
    m->bytes = copy_arriving(lan, b, path->lost, m->data);
    if (m->bytes > 0)
        put_in_inbox(&lan->host[to], m);
    else
        free(m);
}

/* ---- time ---- */

static void receive(host *t, ut_ns now)
{
    ut_engine_waited(t->engine, 0);
    while (t->inbox && t->inbox->at <= now) {
        message *m = t->inbox;
        t->inbox = m->next;
        ut_engine_input(t->engine, m->port, m->data, m->bytes, m->stride, false, now);
        free(m);
    }
}

static void turn(ut_lan *lan, uint32_t h, ut_ns now)
{
    host *t = &lan->host[h];
    const uint64_t rung = t->rung;
    t->rung = 0;
    receive(t, now);
    UT_FOR_BITS (session, rung)
        ut_engine_submissions(t->engine, (uint32_t)session, now);
    ut_engine_tick(t->engine, now);
    while (ut_engine_output(t->engine, now, &lan->burst))
        send_burst(lan, h, now);
    t->woken |= ut_engine_take_wakeups(t->engine);
    t->turn_at = ut_engine_has_work(t->engine) ? 0 : ut_engine_next_wake(t->engine);
    t->turn_at = UT_MAX2(t->turn_at, now + AGAIN_NS);
}

static ut_ns due_at(const host *t)
{
    if (t->rung)
        return 0;
    return t->inbox ? UT_MIN2(t->inbox->at, t->turn_at) : t->turn_at;
}

ut_ns ut_lan_run(ut_lan *lan, ut_ns now)
{
    const ut_ns until = UT_MAX2(now + UT_LAN_AHEAD_NS, lan->now);
    for (;;) {
        uint32_t next = 0;
        for (uint32_t h = 1; h < lan->hosts; h++)
            if (due_at(&lan->host[h]) < due_at(&lan->host[next]))
                next = h;
        const ut_ns due = due_at(&lan->host[next]);
        if (due > until) {
            lan->now = UT_MAX2(lan->now, now);
            return due;
        }
        lan->now = UT_MAX2(lan->now, due);
        turn(lan, next, lan->now);
    }
}

ut_ns ut_lan_now(const ut_lan *lan)
{
    return lan->now;
}

uint64_t ut_lan_take_wakeups(ut_lan *lan, uint32_t host)
{
    assert(host < lan->hosts);
    const uint64_t woken = lan->host[host].woken;
    lan->host[host].woken = 0;
    return woken;
}
