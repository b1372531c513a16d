/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the matrix: a covering design. Not every combination of values is run, but any two values of different
 * columns meet in at least one row. Rows are chosen one by one, always the one in which most pairs meet that have not
 * met yet, and of those the one with most packets that is still cheap, or else the cheapest.
 */
#include "sim/byhand/matrix.h"

#include <stdlib.h>

enum { COLUMNS = 6, VALUES = 6, PAIRS = COLUMNS * VALUES * COLUMNS * VALUES };

/* Columns: hosts, Mbit/s, one way in us, queue in bytes, bucket in bytes, enum sim_special. 0 ends a column. */
typedef struct design {
    uint64_t value[COLUMNS][VALUES];
    uint64_t packets; /* of an op that is still cheap */
} design;

#define KIB UINT64_C(1024)
#define MB25 (25 * KIB * KIB)

static const design plain = {
    .value = {{2, 4, 8, 16, 32, 64},
              {1000, 10000, 25000, 100000},
              {5, 20, 100, 500},
              {64 * KIB, 128 * KIB, 512 * KIB, 1024 * KIB, 4096 * KIB},
              {64 * KIB, 1024 * KIB, MB25},
              {SIM_PLAIN}},
    .packets = 300000,
};
static const design special = {
    .value = {{4, 8, 16},
              {1000, 10000, 25000, 100000},
              {20, 100},
              {128 * KIB, 512 * KIB, 4096 * KIB},
              {MB25},
              {SIM_LOSS_1, SIM_LOSS_5, SIM_APART, SIM_LATE, SIM_SLOW}},
    .packets = 300000,
};
static const design quick_plain = {
    .value = {{2, 4, 8, 16},
              {1000, 10000, 100000},
              {5, 100},
              {64 * KIB, 128 * KIB, 1024 * KIB},
              {64 * KIB, 1024 * KIB, MB25},
              {SIM_PLAIN}},
    .packets = 150000,
};
static const design quick_special = {
    .value = {{4, 8},
              {1000, 10000},
              {20},
              {128 * KIB, 512 * KIB},
              {MB25},
              {SIM_LOSS_1, SIM_LOSS_5, SIM_APART, SIM_LATE, SIM_SLOW}},
    .packets = 150000,
};

static const design shared = {
    .value =
        {{2, 4, 8}, {1000, 10000}, {20}, {128 * KIB, 512 * KIB, 1024 * KIB}, {MB25}, {SIM_RIVAL, SIM_TWO, SIM_CORE}},
    .packets = 300000,
};
static const design quick_shared = {
    .value = {{4}, {1000}, {20}, {128 * KIB}, {MB25}, {SIM_RIVAL, SIM_TWO, SIM_CORE}},
    .packets = 300000,
};

static uint32_t values(const design *d, uint32_t column)
{
    uint32_t n = 0;
    while (n < VALUES && d->value[column][n])
        n++;
    return n;
}

/* The combination of number |n|, value by value; false behind the last. */
static bool combination(const design *d, uint64_t n, uint32_t ret[COLUMNS])
{
    for (uint32_t c = 0; c < COLUMNS; c++) {
        ret[c] = (uint32_t)(n % values(d, c));
        n /= values(d, c);
    }
    return n == 0;
}

static uint32_t pair(const uint32_t at[COLUMNS], uint32_t a, uint32_t b)
{
    return ((a * VALUES + at[a]) * COLUMNS + b) * VALUES + at[b];
}

/* How many pairs would meet for the first time; with |note| they have met then. */
static uint32_t first_meetings(bool met[PAIRS], const uint32_t at[COLUMNS], bool note)
{
    uint32_t n = 0;
    for (uint32_t a = 0; a < COLUMNS; a++)
        for (uint32_t b = a + 1; b < COLUMNS; b++) {
            n += !met[pair(at, a, b)];
            met[pair(at, a, b)] |= note;
        }
    return n;
}

/* What a row costs beyond what it should: the packets of an op, but few of them say little. */
static uint64_t cost(const design *d, const uint32_t at[COLUMNS])
{
    uint64_t packets = 2 * (d->value[0][at[0]] - 1) * (d->value[4][at[4]] / 1440 + d->value[0][at[0]]);
    return packets <= d->packets ? d->packets - packets : packets;
}

static const char bursts[] = "more comes at once than the queue holds, for hosts wake and grant in bursts";
static const char asleep[] =
    "the link stands idle while hosts wake, and while the first grants of an op are on the way";
static const char idle[] = "the pool, squeezed for so short a queue, leaves the link idle now and then";
static const char unasked[] =
    "what may come unasked and the pool are more than the queue, until loss has squeezed both";
static const char rival[] =
    "TCP gives way to loss that the pool takes for little, and lengthens its own round trip alone";
static const char core[] = "the pool sees only the receiver's own link";

/* Rows of the short form that are known to miss what is asked: a row by its values, the reason, and bounds. */
static const struct shortfall {
    uint64_t hosts, rate_mbit, delay_us, queue_bytes, bytes;
    enum sim_special special;
    const char *why;
    sim_limits most;
} shortfalls[] = {
    {4, 1000, 5, 64 * KIB, MB25, SIM_PLAIN, idle, {.ratio_most = 1.06, .lost_most = 0.010}},
    {16, 10000, 100, 128 * KIB, 1024 * KIB, SIM_PLAIN, bursts, {.ratio_most = 1.85, .lost_most = 0.050}},
    {2, 100000, 100, 64 * KIB, MB25, SIM_PLAIN, asleep, {.ratio_most = 1.30, .lost_most = 0.010}},
    {4, 10000, 100, 1024 * KIB, MB25, SIM_PLAIN, asleep, {.ratio_most = 1.06, .lost_most = 0.001}},
    {4, 100000, 5, 128 * KIB, 1024 * KIB, SIM_PLAIN, bursts, {.ratio_most = 1.60, .lost_most = 0.060}},
    {8, 10000, 5, 128 * KIB, MB25, SIM_PLAIN, bursts, {.ratio_most = 1.07, .lost_most = 0.005}},
    {16, 100000, 5, 64 * KIB, MB25, SIM_PLAIN, bursts, {.ratio_most = 1.30, .lost_most = 0.100}},
    {4, 10000, 20, 128 * KIB, MB25, SIM_APART, bursts, {.ratio_most = 1.08, .lost_most = 0.006}},
    {8, 1000, 20, 128 * KIB, MB25, SIM_SLOW, unasked, {.ratio_most = 1.07, .lost_most = 0.025, .healthy_most = 1.35}},
    {8, 10000, 20, 128 * KIB, MB25, SIM_LATE, bursts, {.ratio_most = 1.08, .lost_most = 0.025}},
    {4, 1000, 20, 128 * KIB, MB25, SIM_RIVAL, rival, {.share_least = 0.4, .share_most = 0.9}},
    {4, 1000, 20, 128 * KIB, MB25, SIM_CORE, core, {.lost_most = 0.070}},
};

static void note_shortfall(sim_row *row)
{
    const sim_study *s = &row->study;
    for (size_t i = 0; i < sizeof shortfalls / sizeof *shortfalls; i++) {
        const struct shortfall *f = &shortfalls[i];
        if (f->hosts != s->hosts || f->rate_mbit != s->rate_mbit || f->delay_us != s->delay_us ||
            f->queue_bytes != s->queue_bytes || f->bytes != s->bytes || f->special != row->special)
            continue;
        row->shortfall = f->why;
        row->known = f->most;
    }
}

/* What a row may take and lose, from the figures that the transport is held to. */
static void set_limits(sim_row *row)
{
    static const double limit[SIM_SPECIALS] = {
        [SIM_LOSS_1] = 1.07, [SIM_LOSS_5] = 1.15, [SIM_APART] = 1.08, [SIM_LATE] = 1.08, [SIM_SLOW] = 1.05};
    const sim_study *s = &row->study;
    sim_limits *asked = &row->asked;
    asked->ratio_most = row->special != SIM_PLAIN ? limit[row->special]
                        : s->bytes >= MB25        ? 1.04
                        : s->bytes >= 1024 * KIB  ? 1.15
                                                  : 0;
    asked->lost_most = s->queue_bytes < 128 * KIB ? 0.01 : 0.001;
    asked->healthy_most = row->special == SIM_SLOW ? 1.15 : 0;
    double off = row->special == SIM_RIVAL ? 0.1 : row->special == SIM_TWO ? 0.05 : 0;
    if (off > 0) {
        asked->share_least = 0.5 - off;
        asked->share_most = 0.5 + off;
    }
    if (row->special == SIM_RIVAL) /* who shares a link with TCP shares its losses */
        asked->lost_most = 0;
}

void sim_row_host(sim_study *s)
{
    s->light = 1;
    s->rows = 0;
    s->packet_ns = s->sent_ns = 15;
    s->batch_ns = 60;
    s->turn_ns = 1000;
    s->firm = 1;
    s->send_us = 100;
    s->send_bytes = 4096 * KIB;
}

void sim_row_shared(sim_row *row)
{
    sim_study *s = &row->study;
    s->rival = row->special == SIM_RIVAL;
    s->jobs = row->special == SIM_TWO ? 2 : 1;
    s->groups = s->core_part = row->special == SIM_CORE ? 2 : 1;
    s->gap_us = s->rival || s->jobs > 1 ? 1 : s->gap_us;
}

static sim_row make_row(const design *d, const uint32_t at[COLUMNS])
{
    sim_row row = {.study = sim_study_default(), .special = (enum sim_special)d->value[5][at[5]]};
    sim_study *s = &row.study;
    sim_row_host(s);
    s->hosts = d->value[0][at[0]];
    s->rate_mbit = d->value[1][at[1]];
    s->delay_us = d->value[2][at[2]];
    s->queue_bytes = d->value[3][at[3]];
    s->bytes = d->value[4][at[4]];
    s->warm = 1;
    s->ops = s->bytes < 1024 * KIB ? 17 : s->bytes < MB25 ? 9 : s->hosts < 32 ? 4 : 2;
    s->loss_ppm = row.special == SIM_LOSS_1 ? 10000 : row.special == SIM_LOSS_5 ? 50000 : 0;
    s->apart_us = row.special == SIM_APART ? 3000 : 0;
    s->wake_us = row.special == SIM_LATE ? 1000 : s->wake_us;
    s->slow_part = row.special == SIM_SLOW ? 4 : 1;
    sim_row_shared(&row);
    s->ops = s->rival ? 16 : s->ops;
    set_limits(&row);
    note_shortfall(&row);
    return row;
}

static uint32_t add_design(const design *d, sim_row *ret, uint32_t n)
{
    bool met[PAIRS] = {false};
    for (;;) {
        uint32_t best[COLUMNS] = {0}, at[COLUMNS], most = 0;
        for (uint64_t k = 0; combination(d, k, at); k++) {
            uint32_t news = first_meetings(met, at, false);
            if (news > most || (news == most && news && cost(d, at) < cost(d, best))) {
                most = news;
                memcpy(best, at, sizeof best);
            }
        }
        if (most == 0)
            return n;
        assert(n < SIM_ROWS_MAX);
        first_meetings(met, best, true);
        ret[n++] = make_row(d, best);
    }
}

uint32_t sim_rows(bool quick, sim_row ret[SIM_ROWS_MAX])
{
    uint32_t n = add_design(quick ? &quick_plain : &plain, ret, 0);
    n = add_design(quick ? &quick_special : &special, ret, n);
    return add_design(quick ? &quick_shared : &shared, ret, n);
}
