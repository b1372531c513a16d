/* SPDX-License-Identifier: Apache-2.0
 *
 * The event heap: a binary heap by (time, order of insertion). The second key makes ties deterministic, and keeps what
 * was put in first first, which the control channel relies on.
 */
#include "sim/sim.h"

#include <stdlib.h>

static bool before(const sim_event *a, const sim_event *b)
{
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

void sim_push(sim_world *w, ut_ns at, uint32_t kind, uint32_t a, uint32_t b, uint32_t c, uint64_t d, void *p)
{
    assert(at >= w->now);
    if (w->events == w->event_room) {
        w->event_room = w->event_room ? 2 * w->event_room : 1024;
        w->heap = realloc(w->heap, w->event_room * sizeof *w->heap);
        if (!w->heap) {
            fprintf(stderr, "sim: out of memory for %u events\n", w->event_room);
            exit(2);
        }
    }
    sim_event event = {.at = at, .order = w->event_order++, .kind = kind, .a = a, .b = b, .c = c, .d = d, .p = p};
    uint32_t i = w->events++;
    while (i > 0 && before(&event, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = event;
}

bool sim_pop(sim_world *w, sim_event *ret)
{
    if (w->events == 0)
        return false;
    *ret = w->heap[0];
    sim_event last = w->heap[--w->events];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= w->events)
            break;
        if (child + 1 < w->events && before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    if (w->events)
        w->heap[i] = last;
    return true;
}
