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
    /* Large packets in a row that get through in the present way before anybody is told of it. Where a tenth of all
     * packets is lost at random, 16 in a row get through in pieces, of which each packet has two, in 3 of 100 tries. */
    UT_MTU_PROOF = 16,
};

/* Times are microseconds of the sender's clock, low 32 bits, as in ut_sent. All zero is a fresh path. */
typedef struct ut_mtu {
    bool pieces;     /* full packets do not get through: they go in pieces */
    bool told;       /* the way that was told of last: see ut_mtu_proved */
    uint32_t lost;   /* large packets lost in a row, of those sent in the present way */
    uint32_t came;   /* large packets acknowledged in a row, of those sent in the present way; UT_MTU_PROOF at most */
    uint32_t since;  /* when the first of them was sent */
    uint32_t looked; /* pieces: when a packet was last sent whole */
} ut_mtu;

/* Takes the fate of a packet of |bytes|, sent at |sent_us| whole or in pieces. |heard_us| is when the peer was last
 * heard. Returns true if packets go in the other way from now on. */
bool ut_mtu_fate(ut_mtu *m, uint32_t bytes, bool in_pieces, bool acked, uint32_t sent_us, uint32_t heard_us);
/* True once each time that another way than was told of last has proved to be the one that works: only then is the size
 * of packets what is wrong, or well again. While nothing gets through, or much is lost at random, packets go this way
 * and that, and that says nothing of the path's MTU. */
bool ut_mtu_proved(ut_mtu *m);
/* Whether a packet of |bytes| goes whole now. If it goes whole to see whether it gets through, the next ones go in
 * pieces.
 */
bool ut_mtu_whole(ut_mtu *m, uint32_t bytes, uint32_t now_us);

#endif
