/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the engine's thread runs. The kernel may place a thread that a packet wakes beside the one that sent it, and on
 * a busy machine looks no further: two engines, or an engine and its trainer, then share one CPU while another idles
 * (docs/performance.md). Nobody should have to pin threads by hand for this, so a thread that spends its time in the
 * run queue moves over. It asks seldom, moves by chance, so that two who share a CPU do not both leave it, and asks
 * ever more seldom while moving does not help: where all CPUs are busy there is nothing to be had.
 */
#ifndef UT_PLACE_H
#define UT_PLACE_H

#include "core/base/ut.h"

typedef struct ut_place {
    int fd; /* the thread's schedstat: ns run, ns waited for a CPU; -1 where there is none, then nothing is done */
    uint32_t random;            /* state of the coin */
    uint64_t ran_ns, waited_ns; /* at the last look */
    ut_ns next;                 /* when to look again */
    ut_ns interval;
    uint64_t moves;
} ut_place;

/* For the calling thread. |seed| makes two engines toss different coins. */
void ut_place_init(ut_place *p, uint64_t seed);
void ut_place_free(ut_place *p);
/* Called as often as one likes; looks about every half millisecond at the most. */
void ut_place_look(ut_place *p, ut_ns now);
/* The decision alone: after |ran| ns on a CPU and |waited| ns for one, does the thread move? */
bool ut_place_decide(ut_place *p, uint64_t ran, uint64_t waited);

#endif
