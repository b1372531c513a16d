/* SPDX-License-Identifier: Apache-2.0
 *
 * The matrix: worlds by hand over the range of networks that the transport must serve, each with what it may take and
 * lose (rows.c), run side by side, with a verdict for each (matrix.c). A row that is known to miss what is asked has
 * the reason and a bound of its own, so that it gets no worse unnoticed.
 */
#ifndef SIM_MATRIX_H
#define SIM_MATRIX_H

#include "sim/byhand/study.h"

enum { SIM_ROWS_MAX = 96 };

/* What is unusual in a row. */
enum sim_special {
    SIM_PLAIN = 1,
    SIM_LOSS_1, /* 1 % of packets are lost, each for itself */
    SIM_LOSS_5,
    SIM_APART, /* calls up to 3 ms apart */
    SIM_LATE,  /* hosts wake up to 1 ms late */
    SIM_SLOW,  /* one link has a quarter of the rate */
    SIM_RIVAL, /* a TCP flow shares a link */
    SIM_TWO,   /* two jobs alike on the same hosts */
    SIM_CORE,  /* two groups of hosts, and between them half of what they could send */
    SIM_SPECIALS
};

typedef struct sim_limits {
    double ratio_most, lost_most, healthy_most, share_least, share_most; /* 0: not judged by this */
    double goal_most, first_most, feedback_most;
} sim_limits;

typedef struct sim_row {
    sim_study study;
    enum sim_special special;
    uint32_t seeds; /* the worst of so many counts; 0: one, but for what is lost (matrix.c) */
    sim_limits asked;
    const char *shortfall; /* why it is known to miss what is asked; NULL for the others */
    sim_limits known;      /* of such a row: what it must hold all the same */
} sim_row;

/* The rows, in order. Returns their number. */
uint32_t sim_rows(bool quick, sim_row ret[SIM_ROWS_MAX]);
/* Those with distance (wan.c). */
uint32_t sim_rows_far(bool quick, sim_row ret[SIM_ROWS_MAX]);
/* The host of every row: one that keeps up with 100 Gbit/s, where a packet comes every 121 ns, even if each comes
 * alone. Only times count. */
void sim_row_host(sim_study *s);
/* Puts beside the job what |row| has beside it. */
void sim_row_shared(sim_row *row);

#endif
