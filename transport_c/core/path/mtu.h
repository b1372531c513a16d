/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether full packets get through to a peer. A path may carry less than both ends believe: a switch with a smaller
 * MTU, a tunnel, a link that was changed while it ran. Fragments are forbidden, so a datagram that is too large
 * vanishes, and no message about it can be trusted (an ICMP message can be forged, and is often filtered). What can be
 * seen is that small packets and the peer's own packets come through, while no large packet is acknowledged.
 *
 * There are two sizes: the job's full packet, and the size that every path must carry (IPv6 demands 1280 bytes of a
 * link). A search between them would win a few percent on odd paths and cost rounds of loss on all of them. When full
 * packets do not get through, they go in pieces (pieces.h): the slots of running ops stay as they are, and other paths
 * of the job are not affected. Every few seconds one packet goes whole again, to see whether the path carries more now.
 */
#ifndef UT_MTU_H
#define UT_MTU_H

#include "core/base/ut.h"

enum {
    UT_MTU_LOST_MIN = 4,            /* large packets lost in a row ... */
    UT_MTU_PATIENCE_US = 100000,    /* ... that were sent over this time, before the size is blamed */
    UT_MTU_RAISE_US = 10 * 1000000, /* time between two packets that go whole to see whether they get through now */
};

/* Times are microseconds of the sender's clock, low 32 bits, as in ut_sent. All zero is a fresh path. */
typedef struct ut_mtu {
    bool pieces;     /* full packets do not get through: they go in pieces */
    uint32_t lost;   /* large packets lost in a row, of those sent in the present way */
    uint32_t since;  /* when the first of them was sent */
    uint32_t looked; /* pieces: when a packet was last sent whole */
} ut_mtu;

/* Takes the fate of a packet of |bytes|, sent at |sent_us| whole or in pieces. |heard_us| is when the peer was last
 * heard. Returns true if packets go in the other way from now on. */
bool ut_mtu_fate(ut_mtu *m, uint32_t bytes, bool in_pieces, bool acked, uint32_t sent_us, uint32_t heard_us);
/* Whether a packet of |bytes| goes whole now. If it goes whole to see whether it gets through, the next ones go in
 * pieces.
 */
bool ut_mtu_whole(ut_mtu *m, uint32_t bytes, uint32_t now_us);

#endif
