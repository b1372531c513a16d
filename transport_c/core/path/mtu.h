/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether full packets get through to a peer. A path may carry less than both ends believe: a switch with a smaller
 * MTU, a tunnel, a link that was changed while it ran. We forbid fragments, so what is too large vanishes, and nothing
 * says so that could be trusted (an ICMP message can be forged, and is often filtered). What can be seen is that small
 * packets and the peer's own come through, while no large one is acknowledged.
 *
 * There are two sizes: the job's full packet, and what every path must carry (IPv6 demands 1280 of a link). A search
 * between them would win a few percent on odd paths and cost rounds of loss on all of them. When full packets die,
 * they go in pieces (pieces.h): the slots of running ops stay as they are, and no other path of the job has a part in
 * it. Every few seconds one packet goes whole again, to see whether the path has grown.
 */
#ifndef UT_MTU_H
#define UT_MTU_H

#include "core/base/ut.h"

enum {
    UT_MTU_LOST_MIN = 4,            /* large packets lost in a row ... */
    UT_MTU_PATIENCE_US = 100000,    /* ... that were sent over this time, before the size is blamed */
    UT_MTU_RAISE_US = 10 * 1000000, /* between two looks whether full packets get through by now */
};

/* Times are microseconds of the sender's clock, low 32 bits, as in ut_sent. All zero is a fresh path. */
typedef struct ut_mtu {
    bool pieces;     /* full packets die: they go in pieces */
    uint32_t lost;   /* large packets lost in a row, of those sent in the present way */
    uint32_t since;  /* when the first of them was sent */
    uint32_t looked; /* pieces: when a packet was last sent whole */
} ut_mtu;

/* The fate of a packet of |bytes|, sent at |sent_us| whole or in pieces. |heard_us|: when the peer was last heard.
 * Returns true if the way has changed. */
bool ut_mtu_fate(ut_mtu *m, uint32_t bytes, bool in_pieces, bool acked, uint32_t sent_us, uint32_t heard_us);
/* Whether a packet of |bytes| goes whole now. If it is one to look with, the next ones go in pieces again. */
bool ut_mtu_whole(ut_mtu *m, uint32_t bytes, uint32_t now_us);

#endif
