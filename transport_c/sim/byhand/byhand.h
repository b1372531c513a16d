/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds that are not drawn from a seed, and the simulator's own test: what the command line (main.c) calls.
 */
#ifndef SIM_BYHAND_H
#define SIM_BYHAND_H

#include <stdint.h>

int sim_blame(uint64_t seed); /* blame.c: 0 if each host in trouble was named */

/* study.c: a world by "name=number" arguments, told as JSON. Returns an exit status. */
int sim_study_main(int argc, char **argv);
/* matrix.c: many of them with verdicts. Returns an exit status. */
int sim_matrix(const char *self, int argc, char **argv);
/* skew.c: partial collectives of ranks that arrive one after the other, as JSON. Returns an exit status. */
int sim_skew(int argc, char **argv);

/* selftest.c: the simulator's own parts. Returns the number of failures, each printed. */
int sim_selftest(void);

#endif
