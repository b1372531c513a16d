/* SPDX-License-Identifier: Apache-2.0
 *
 * On which CPU the engine's thread runs. The kernel may put a thread that a packet wakes on the CPU of the thread that
 * sent the packet, and on a busy machine it looks no further: two engines, or an engine and its trainer, then share one
 * CPU while another CPU idles (docs/log/2026-11.md). Pinning threads by hand should not be necessary, so a thread that
 * spends its time in the run queue moves to another CPU. It looks seldom. It moves by chance, so that two threads that
 * share a CPU do not both leave it. It looks at growing intervals while moving does not help: where all CPUs are busy
 * no move can help.
 */
#ifndef UT_CPU_H
#define UT_CPU_H

#include "core/base/ut.h"

typedef struct ut_cpu {
    int fd; /* the thread's schedstat: ns run, ns waited for a CPU; -1 where there is none, and then it never moves */
    uint32_t random;            /* state of the coin */
    uint64_t ran_ns, waited_ns; /* at the last look */
    ut_ns next;                 /* when to look again */
    ut_ns interval;
} ut_cpu;

/* For the calling thread. |seed| makes two engines toss different coins. */
void ut_cpu_init(ut_cpu *p, uint64_t seed);
void ut_cpu_free(ut_cpu *p);
/* Moves the thread if that is due, and returns whether it did. It may be called as often as one likes, and looks about
 * every half millisecond. */
bool ut_cpu_look(ut_cpu *p, ut_ns now);
/* The decision alone: after |ran| ns on a CPU and |waited| ns for one, does the thread move? */
bool ut_cpu_decide(ut_cpu *p, uint64_t ran, uint64_t waited);

#endif
