/* SPDX-License-Identifier: Apache-2.0
 *
 * The event heap: ordered by (time, order of insertion). The second key makes ties deterministic, and keeps what was
 * put in first first, which the control channel relies on. A world of many hosts has tens of thousands of packets on
 * their way, so the heap moves keys of 16 bytes, four children to a node; the events themselves stay where they are.
 */
#include "sim/sim.h"

#include <stdlib.h>

enum { CHILDREN = 4, PLACE_BITS = 24 };

/* One number to compare, without a branch: which child is the least cannot be foretold. */
static unsigned __int128 key(const sim_due *a)
{
    return (unsigned __int128)a->at << 64 | a->order_place;
}

static bool before(const sim_due *a, const sim_due *b)
{
    return key(a) < key(b);
}

sim_event *sim_event_in(const sim_world *w, uint32_t i)
{
    return &w->event[w->heap[i].order_place & ((1u << PLACE_BITS) - 1)];
}

/* More places for events. Those behind what the heap holds are free: each place is named exactly once in it. */
static void grow(sim_world *w)
{
    uint32_t room = w->event_room ? 2 * w->event_room : 1024;
    w->heap = realloc(w->heap, room * sizeof *w->heap);
    w->event = realloc(w->event, room * sizeof *w->event);
    if (!w->heap || !w->event || room > 1u << PLACE_BITS) {
        fprintf(stderr, "sim: no room for %u events\n", room);
        exit(2);
    }
    for (uint32_t i = w->event_room; i < room; i++)
        w->heap[i] = (sim_due){.order_place = i};
    w->event_room = room;
}

void sim_push(sim_world *w, ut_ns at, uint32_t kind, uint32_t a, uint32_t b, uint32_t c, uint64_t d, void *p)
{
    assert(at >= w->now);
    if (w->events == w->event_room)
        grow(w);
    uint32_t i = w->events++;
    sim_event *event = sim_event_in(w, i);
    *event = (sim_event){.at = at, .kind = kind, .a = a, .b = b, .c = c, .d = d, .p = p};
    sim_due due = {.at = at, .order_place = w->event_order++ << PLACE_BITS | (uint64_t)(event - w->event)};
    while (i > 0 && before(&due, &w->heap[(i - 1) / CHILDREN])) {
        w->heap[i] = w->heap[(i - 1) / CHILDREN];
        i = (i - 1) / CHILDREN;
    }
    w->heap[i] = due;
}

bool sim_pop(sim_world *w, sim_event *ret)
{
    if (w->events == 0)
        return false;
    sim_due first = w->heap[0], last = w->heap[--w->events];
    *ret = w->event[first.order_place & ((1u << PLACE_BITS) - 1)];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = CHILDREN * i + 1, least = child, end = UT_MIN2(child + CHILDREN, w->events);
        if (child >= w->events)
            break;
        while (++child < end)
            least = before(&w->heap[child], &w->heap[least]) ? child : least;
        if (!before(&w->heap[least], &last))
            break;
        w->heap[i] = w->heap[least];
        i = least;
    }
    w->heap[i] = last;
    w->heap[w->events] = first; /* whose place is free again */
    return true;
}
