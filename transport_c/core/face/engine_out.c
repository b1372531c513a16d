/* SPDX-License-Identifier: Apache-2.0
 *
 * Bursts out: what is to be told at once, then data, then what goes along with it.
 */
#include "core/face/engine_impl.h"

/* The burst goes. Whatever it is, it counts as sent by this host. */
static void finish(ut_engine *e, ut_burst *b, ut_ns now)
{
    ut_burst_finish(b, now);
    ut_cap_sent(&e->cap, b->segments, b->bytes, now);
}

static void begin_feedback(const ut_conn *c, uint64_t number, ut_burst *b)
{
    ut_burst_begin(b, &c->at[UT_PORT_FEEDBACK], UT_PORT_FEEDBACK, ut_conn_seal(c), number);
    b->beside = c->at[UT_PORT_DATA];
}

static bool build_grant(ut_engine *e, ut_job *j, uint32_t host, ut_ns now, ut_burst *b)
{
    ut_conn *c = &j->conn[host];
    ut_grant g;
    ut_conn_fill_grant(c, &g);
    begin_feedback(c, g.number, b);
    ut_grant_append(b, &g);
    finish(e, b, now);
    e->stats.grants_sent++;
    return true;
}

static bool build_feedback(ut_engine *e, ut_job *j, uint32_t host, ut_ns now, ut_burst *b)
{
    ut_conn *c = &j->conn[host];
    ut_feedback *f = &e->feedback;
    const bool asks = ut_conn_fill_feedback(c, f, now);
    ut_op_fill_feedback(j, host, asks, f, now);
    f->kernel_drops = (uint32_t)e->stats.kernel_drops;
    begin_feedback(c, f->number, b);
    ut_feedback_append(b, f);
    finish(e, b, now);
    e->stats.feedback_sent++;
    return true;
}

int ut_engine_peer_ask(ut_engine *e, uint32_t job, uint32_t host, ut_ns now)
{
    ut_job *j = job < UT_JOBS_MAX ? e->job[job] : NULL;
    if (!j || host >= j->config.hosts || host == j->config.self)
        return UT_ERR_UNKNOWN;
    if (j->conn[host].state == UT_CONN_UP) {
        j->conn[host].say.ask = true;
        ut_conn_speak_at(&j->conn[host], now);
        e->stats.progress++;
    }
    return UT_OK;
}

/* A challenge or the answer to one. It belongs to its port, so it goes beside nothing. */
static bool output_path(ut_engine *e, unsigned port, ut_ns now, ut_burst *b)
{
    for (uint32_t n = 0; e->path_speaks[port] && n < UT_JOBS_MAX; n++)
        for (uint32_t h = 0; e->job[n] && h < e->job[n]->config.hosts; h++) {
            ut_conn *c = &e->job[n]->conn[h];
            ut_path p;
            ut_addr to;
            if (c->state != UT_CONN_UP || !ut_move_says(&c->move[port]))
                continue;
            ut_move_fill(&c->move[port], &c->at[port], &to, &p);
            p.cid = c->tx_cid;
            p.number = ++c->say.number;
            assert(c->seal.cipher);
            ut_burst_begin(b, &to, port, ut_conn_seal(c), p.number);
            b->beside = (ut_addr){0};
            ut_path_append(b, &p);
            finish(e, b, now);
            e->stats.path_sent++;
            e->stats.progress++;
            return true;
        }
    e->path_speaks[port] = false;
    return false;
}

bool ut_engine_output_feedback(ut_engine *e, ut_ns now, ut_burst *b)
{
    if (output_path(e, UT_PORT_FEEDBACK, now, b))
        return true;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        ut_job *j = e->job[n];
        for (uint32_t h = 0; j && h < j->config.hosts; h++)
            if (ut_conn_speaks(&j->conn[h], now))
                return ut_conn_grant_takes_along(&j->conn[h], now) ? build_feedback(e, j, h, now, b)
                                                                   : build_grant(e, j, h, now, b);
    }
    return false;
}

/* What goes along with data goes behind the data to all peers, who wait for that. */
static bool output_along(ut_engine *e, ut_ns now, ut_burst *b)
{
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++)
        for (uint32_t h = 0; e->job[n] && h < e->job[n]->config.hosts; h++)
            if (e->job[n]->conn[h].state == UT_CONN_UP && e->job[n]->conn[h].say.along)
                return build_feedback(e, e->job[n], h, now, b);
    return false;
}

bool ut_engine_output(ut_engine *e, ut_ns now, ut_burst *b)
{
    ut_cap_look(&e->cap);
    if (ut_engine_output_feedback(e, now, b) || output_path(e, UT_PORT_DATA, now, b))
        return true;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        ut_job *j = e->job[(e->turn + n) % UT_JOBS_MAX];
        if (!j)
            continue;
        if (ut_op_output(j, now, b)) {
            finish(e, b, now);
            e->turn = (j->number + 1) % UT_JOBS_MAX;
            e->stats.progress++;
            return true;
        }
    }
    return output_along(e, now, b);
}
