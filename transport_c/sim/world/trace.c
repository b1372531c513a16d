/* SPDX-License-Identifier: Apache-2.0
 *
 * What happened, kept three ways: folded into a hash that two builds must agree on, in a ring whose end is shown when a
 * seed fails, and on stdout with --trace. Times are the world's; a host's own clock has its offset added.
 */
#include "sim/sim.h"

#include <stdarg.h>
#include <stdlib.h>

#define SIM_COVER_NAME(name) #name,
const char *const sim_cover_name[SIM_COVERS] = {
    SIM_COVER(SIM_COVER_NAME) SIM_COVER_PARTIAL(SIM_COVER_NAME) SIM_COVER_CODED(SIM_COVER_NAME)
        SIM_COVER_SPARSE(SIM_COVER_NAME) SIM_COVER_QUANT(SIM_COVER_NAME) SIM_COVER_SEATS(SIM_COVER_NAME)
            SIM_COVER_MOVING(SIM_COVER_NAME) SIM_COVER_FAR(SIM_COVER_NAME)};
#undef SIM_COVER_NAME

static const char *const kind_name[SIM_TR_KINDS] = {
    "",      "send",   "drop",  "deliver",   "inject",  "serve", "submit", "receipt",
    "death", "return", "pause", "partition", "control", "event", "calm",
};

static void print_record(const sim_trace_record *r, FILE *out)
{
    fprintf(out, "%12.3f us  %-9s h%-2u", (double)r->at / 1000.0, kind_name[r->kind], r->host);
    switch (r->kind) {
    case SIM_TR_SEND:
    case SIM_TR_DROP:
    case SIM_TR_DELIVER:
    case SIM_TR_INJECT:
        fprintf(out, r->kind == SIM_TR_DELIVER ? " <- h%-2u" : " -> h%-2u", r->other);
        fprintf(out, " %s %4" PRIu64 " B%s%s%s ", (r->b >> 8) == UT_PORT_DATA ? "data    " : "feedback", r->a,
                r->b & SIM_SPOILT ? " spoilt" : "", r->b & SIM_STRAY ? " stray" : "", r->b & SIM_AGAIN ? " again" : "");
        for (uint32_t i = 0; i < r->head_len; i++)
            fprintf(out, "%s%02x", i % 4 ? "" : " ", r->head[i]);
        break;
    case SIM_TR_SUBMIT:
        fprintf(out, " job %u rank %" PRIu64 " op_seq %" PRIu64 " bytes %" PRIu64, r->other, r->a, r->b, r->c);
        break;
    case SIM_TR_RECEIPT:
        fprintf(out, " job %u rank %" PRIu64 " op_seq %" PRIu64 " status %" PRIu64, r->other, r->a, r->b, r->c);
        break;
    default:
        fprintf(out, " %u a=%" PRIu64 " b=%" PRIu64 " c=%" PRIu64, r->other, r->a, r->b, r->c);
    }
    fputc('\n', out);
}

static void fold(sim_world *w, uint64_t x)
{
    w->hash = sim_mix(w->hash ^ x);
}

static void keep(sim_world *w, const sim_trace_record *r)
{
    fold(w, r->at);
    fold(w, (uint64_t)r->kind << 32 | r->host << 16 | r->other);
    fold(w, r->a);
    fold(w, r->b);
    fold(w, r->c);
    w->tail[w->traced++ % SIM_TAIL] = *r;
    if (w->trace_all)
        print_record(r, stdout);
}

void sim_trace(sim_world *w, uint32_t kind, uint32_t host, uint32_t other, uint64_t a, uint64_t b, uint64_t c)
{
    if (w->plan.light)
        return;
    sim_trace_record r = {.at = w->now, .kind = kind, .host = host, .other = other, .a = a, .b = b, .c = c};
    keep(w, &r);
}

void sim_trace_packet(sim_world *w, uint32_t kind, const sim_packet *packet)
{
    if (w->plan.light)
        return;
    sim_trace_record r = {
        .at = w->now, .kind = kind, .a = packet->len, .b = (uint64_t)packet->port << 8 | packet->flags};
    bool in = kind == SIM_TR_DELIVER;
    r.host = in ? packet->to : packet->from;
    r.other = in ? packet->from : packet->to;
    r.head_len = UT_MIN2(packet->len, (uint32_t)sizeof r.head);
    memcpy(r.head, packet->bytes, r.head_len);
    if (kind == SIM_TR_SEND || packet->flags & SIM_SPOILT)
        r.c = sim_digest(packet->bytes, packet->len);
    keep(w, &r);
}

void sim_trace_tail(const sim_world *w, FILE *out)
{
    uint64_t shown = UT_MIN2(w->traced, (uint64_t)SIM_TAIL_SHOWN);
    for (uint64_t i = w->traced - shown; i < w->traced; i++)
        print_record(&w->tail[i % SIM_TAIL], out);
}

void sim_fail(sim_world *w, const char *oracle, uint32_t host, const char *format, ...)
{
    int n = snprintf(w->failure, sizeof w->failure, "oracle %s, host %u, at %.3f us: ", oracle, host,
                     (double)w->now / 1000.0);
    va_list args;
    va_start(args, format);
    if (n > 0 && (size_t)n < sizeof w->failure)
        vsnprintf(w->failure + n, sizeof w->failure - (size_t)n, format, args);
    va_end(args);
    longjmp(w->failed, 1);
}
