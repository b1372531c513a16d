/* SPDX-License-Identifier: Apache-2.0
 *
 * Peers whose addresses change: the engine's part of core/path/move.h.
 */
#include "core/base/mix.h"
#include "core/face/engine_impl.h"

void ut_engine_from(ut_engine *e, const ut_addr *from)
{
    assert(from->len <= sizeof from->bytes);
    e->from = *from;
}

static uint64_t draw(ut_engine *e)
{
    return e->config.draw ? e->config.draw() : ut_mix_next(&e->random);
}

static void try(ut_engine *e, ut_conn *c, uint32_t port, ut_ns now)
{
    if (!ut_move_tries(&c->move[port], now))
        return;
    const uint64_t token[UT_MOVE_WAYS] = {draw(e), draw(e)};
    if (token[UT_MOVE_PRESENT] && token[UT_MOVE_OTHER])
        ut_move_try(&c->move[port], c->tx.srtt ? ut_conn_silence(c) : 0, token, now);
    else
        c->move[port].later.len = 0;
}

/* Called after all that may make a path packet due. */
static void speak(ut_engine *e, const ut_conn *c)
{
    for (unsigned port = 0; port < 2; port++)
        e->path_speaks[port] = e->path_speaks[port] || ut_move_says(&c->move[port]);
}

void ut_engine_came_from(ut_engine *e, const ut_job *j, uint32_t host, ut_ns now)
{
    const uint32_t port = e->port;
    ut_conn *c = &j->conn[host];
    assert(c->seal.cipher && port <= UT_PORT_FEEDBACK);
    if (c->state == UT_CONN_UP && !c->routed) {
        ut_move_came_from(&c->move[port], &c->at[port], &e->from);
        try(e, c, port, now);
        speak(e, c);
    }
}

/* The daemon is told the address as it lies in memory. */
static void moved(ut_engine *e, ut_job *j, uint32_t host, uint32_t port, ut_ns now)
{
    ut_conn *c = &j->conn[host];
    ut_event event = {.kind = UT_EVENT_PATH_MOVED, .job = j->number, .session = UINT32_MAX, .host = host, .a = port};
    uint64_t address[4] = {0};
    _Static_assert(sizeof address >= sizeof c->at[0].bytes, "an event holds an address");
    memcpy(address, c->at[port].bytes, c->at[port].len);
    event.b = address[0], event.c = address[1], event.d = address[2], event.e = address[3];
    if (port == UT_PORT_DATA) {
        ut_fate fate = {j, host, now};
        ut_conn_data_moved(c, now, ut_op_fate, &fate);
    }
    c->rx.again_at = 0; /* a grant may have gone to the old address */
    c->rx.repeats = 0;
    c->say.ask = true;
    ut_conn_speak_at(c, now);
    e->stats.path_moves++;
    e->stats.progress++;
    e->host.emit(e, &event);
}

void ut_engine_path(ut_engine *e, ut_job *j, uint32_t host, const ut_path *p, ut_ns now)
{
    const uint32_t port = e->port;
    ut_conn *c = &j->conn[host];
    if (c->state != UT_CONN_UP)
        return;
    if (p->what == UT_PATH_CHALLENGE) {
        ut_move_asked(&c->move[port], p->token);
        ut_move_show(&c->move[1 - port]);
    } else if (ut_move_answered(&c->move[port], &c->at[port], p->token, now)) {
        moved(e, j, host, port, now);
    }
    speak(e, c);
}

void ut_engine_path_tick(ut_engine *e, ut_job *j, uint32_t host, ut_ns unanswered, ut_ns now)
{
    ut_conn *c = &j->conn[host];
    if (c->state != UT_CONN_UP || !c->seal.cipher)
        return;
    for (unsigned port = 0; port < 2; port++) {
        if (now < ut_move_wake(&c->move[port]))
            continue;
        if (ut_move_tick(&c->move[port], &c->at[port], now))
            moved(e, j, host, port, now);
        try(e, c, port, now);
    }
    /* Nobody is there; or only its data port has moved, because the rest of it speaks. */
    if (unanswered < UT_NEVER && (c->tx.pto_doublings > UT_SILENT_PROBES || c->rx.last > unanswered))
        ut_move_call(&c->move[UT_PORT_FEEDBACK], draw(e));
    speak(e, c);
}
