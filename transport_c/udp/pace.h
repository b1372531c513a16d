/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast data goes to the host's own link. A host that hands over as much as fits keeps a queue there, and when it
 * has rested, what the link has saved up leaves in a burst. A port of the switch to which several hosts send gets such
 * bursts at once, and hardly ever runs dry again. A host that sends just as fast as its link carries lets both drain
 * again and again.
 *
 * How fast that is, is found by trying. The first rate is the one at which a full queue was seen to drain (backlog.h).
 * Data then goes in refills, each when the rate allows it. If the last one has left by then, the rate rises by a step;
 * if some of it still stands there, the rate falls by a larger step. Steps up double while nothing is found for long,
 * since the link may have become much faster. The rate does not rise while less is sent than it allows. Where no queue
 * ever stands, nothing is paced, and neither is a link on which a refill takes long: there packets come apart, each
 * wakes a thread, and a queue lets them gather.
 * Whether a link is so slow, the drain of its queue says until there is a pace, and then the pace: the drain is
 * measured up to a burst too low, for the kernel counts a burst until all of it has left.
 *
 * The lanes of a host share its link, as other programs do, and each finds its part. When one of them stops sending,
 * the others' rates double within about a hundred refills.
 *
 * All functions are pure: what they return follows from what they are given.
 */
#ifndef UT_UDP_PACE_H
#define UT_UDP_PACE_H

#include "backlog.h"

enum {
    UT_PACE_DOWN_PART = 32,        /* a step down is such a part of the rate, */
    UT_PACE_UP_PART = 2048,        /* and a step up such a part, */
    UT_PACE_UP_DOUBLES = 32,       /* which doubles after so many steps up in a row, */
    UT_PACE_UP_DOUBLES_MOST = 5,   /* at most so often */
    UT_PACE_FLOOR_PART = 8,        /* the rate is at most such a part below that at which the queue drains */
    UT_PACE_STANDS_PART = 16,      /* such a part of a refill that has not left is a queue */
    UT_PACE_WORTH_PART = 2,        /* after which such a part of a refill must have room, or data waits */
    UT_PACE_SLOWER_PART = 16,      /* a link that is paced is slow if such a part slower than one that is not */
    UT_PACE_ROOM_NS = 1000 * 1000, /* a thread that wakes late makes up for so much of the link */
};

typedef struct ut_pace {
    uint64_t rate;  /* bytes of data a second; 0: data is not paced */
    int64_t room;   /* bytes that may go now; below 0 more went than the rate allows */
    ut_ns at;       /* when the room was counted last */
    uint32_t rises; /* steps up in a row */
    bool waits;     /* the room is used up: wait until there is some for a refill */
} ut_pace;

/* |bytes| of data were handed over. */
void ut_pace_sent(ut_pace *p, uint64_t bytes);
/* Counts the room until |now|. True if there has come to be room for a refill: then the backlog is to be looked at, and
 * ut_pace_step called, before anything is sent. */
bool ut_pace_count(ut_pace *p, const ut_backlog *b, ut_ns now);
/* Corrects the rate by what stands in the backlog: to be called when a refill is due, and when the backlog fills up. */
void ut_pace_step(ut_pace *p, const ut_backlog *b);
/* How many bytes may go now; UINT64_MAX if data is not paced. */
uint64_t ut_pace_room(const ut_pace *p);
/* When there will be room for a refill of the backlog; UT_NEVER if there is room. */
ut_ns ut_pace_wake(const ut_pace *p, const ut_backlog *b);

#endif
