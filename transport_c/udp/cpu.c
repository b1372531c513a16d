/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cpu.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum {
    INTERVAL_MIN_NS = 500 * 1000,
    INTERVAL_MAX_NS = 100 * 1000 * 1000,
    RAN_MIN_NS = 100 * 1000, /* below that an interval says nothing */
};

static bool read_schedstat(const ut_cpu *p, uint64_t *ran, uint64_t *waited)
{
    char text[96];
    ssize_t n = pread(p->fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return false;
    text[n] = 0;
    unsigned long long a, b;
    if (sscanf(text, "%llu %llu", &a, &b) != 2)
        return false;
    *ran = a;
    *waited = b;
    return true;
}

void ut_cpu_init(ut_cpu *p, uint64_t seed)
{
    *p = (ut_cpu){.random = (uint32_t)(seed ^ seed >> 32) | 1, .interval = INTERVAL_MIN_NS};
    p->fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (p->fd >= 0 && !read_schedstat(p, &p->ran_ns, &p->waited_ns))
        ut_cpu_free(p);
}

void ut_cpu_free(ut_cpu *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

static bool coin(ut_cpu *p)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 17;
    p->random ^= p->random << 5;
    return p->random >> 31;
}

bool ut_cpu_decide(ut_cpu *p, uint64_t ran, uint64_t waited)
{
    if (ran < RAN_MIN_NS)
        return false;
    if (waited < ran / 4) {
        p->interval = INTERVAL_MIN_NS;
        return false;
    }
    bool move = coin(p);
    if (move)
        p->interval = UT_MIN2(2 * p->interval, (ut_ns)INTERVAL_MAX_NS);
    return move;
}

/* To any other CPU that the thread may use; after that it may use all of them again. */
static bool move_over(void)
{
    cpu_set_t allowed, others;
    int here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof allowed, &allowed) < 0 || CPU_COUNT(&allowed) < 2)
        return false;
    others = allowed;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == CPU_COUNT(&allowed) || sched_setaffinity(0, sizeof others, &others) < 0)
        return false;
    return sched_setaffinity(0, sizeof allowed, &allowed) == 0;
}

bool ut_cpu_look(ut_cpu *p, ut_ns now)
{
    if (p->fd < 0 || now < p->next)
        return false;
    p->next = now + p->interval;
    uint64_t ran, waited;
    if (!read_schedstat(p, &ran, &waited)) {
        ut_cpu_free(p);
        return false;
    }
    bool move = ut_cpu_decide(p, ran - p->ran_ns, waited - p->waited_ns);
    p->ran_ns = ran;
    p->waited_ns = waited;
    if (!move)
        return false;
    bool moved = move_over();
    if (!moved)
        ut_cpu_free(p); /* one CPU, or a sandbox that forbids it: never again */
    return moved;
}
