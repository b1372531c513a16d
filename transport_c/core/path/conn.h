/* SPDX-License-Identifier: Apache-2.0
 *
 * One peer host of one job: both directions of the path. It numbers packets, counts credit, tells what was acknowledged
 * and what is lost, and knows when it wants to speak. It knows nothing of ops but the name of the slot that a packet
 * carried.
 *
 * Cut by the packet's way: conn.c (life), conn_send.c (numbers, acknowledgements, loss), conn_recv.c (window, stash,
 * feedback).
 */
#ifndef UT_CONN_H
#define UT_CONN_H

#include "core/path/cc.h"
#include "core/path/mtu.h"
#include "core/path/pacer.h"
#include "core/wire/burst.h"

enum {
    UT_REORDER_PACKETS = 48,     /* a number is lost when one sent this much later has come: one GSO burst and a bit */
    UT_QUANTUM_BYTES = 96 << 10, /* of news, unless the window is small: 65 full packets */
    UT_HOLD_NS = 1000 * 1000,    /* a receiver keeps news to itself at most this long */
    UT_PTO_MIN_NS = 1000 * 1000, /* least time before a sender probes */
    UT_PTO_MAX_NS = 200 * 1000 * 1000,  /* most, after doubling */
    UT_PTO_FIRST_NS = 20 * 1000 * 1000, /* before the first round trip was measured */
};

enum ut_conn_state {
    UT_CONN_NEW,    /* we may listen, but do not know where the peer is */
    UT_CONN_UP,     /* packets may go both ways */
    UT_CONN_ABSENT, /* known to be gone */
};

/* What a packet number carried. */
typedef struct ut_sent {
    uint32_t op_seq; /* low 32 bits */
    uint32_t slot;
    uint32_t time_us;   /* low 32 bits of the sender's clock */
    uint16_t bytes;     /* of the datagram */
    uint8_t step;       /* index in the op's schedule */
    uint8_t state : 2;  /* enum ut_sent_state */
    uint8_t pieces : 1; /* went in pieces */
} ut_sent;
enum ut_sent_state { UT_SENT_NONE, UT_SENT_FLYING, UT_SENT_LOST };

/* Called for each packet whose fate is decided. |acked|: it came; otherwise it is lost. */
typedef void ut_sent_fn(void *context, const ut_sent *sent, bool acked);

/* Sending: conn_send.c. Invariant: in flight = packets FLYING; credit used = sent - lost. */
typedef struct ut_conn_tx {
    uint64_t next;       /* next packet number */
    uint64_t base;       /* no packet below it is FLYING */
    uint64_t acked;      /* highest number acknowledged plus one; 0 for none */
    uint64_t bytes;      /* datagram bytes ever sent */
    uint64_t lost_bytes; /* of those, now counted as lost */
    uint64_t flying;     /* packets */
    uint64_t flying_bytes;
    uint64_t grant; /* what the peer allows in all */
    uint64_t lost_packets, spurious_losses, acked_packets;
    uint64_t ce_packets; /* marked, in all */
    ut_ns srtt, rttvar;  /* 0 before the first sample */
    ut_ns last;          /* newest data sent, or newest progress: the tail timer counts from here */
    ut_ns loss_at;       /* when the oldest overtaken packet becomes lost; UT_NEVER if none */
    ut_ns blocked_since; /* data waits, no credit, nothing flies; UT_NEVER if not */
    uint8_t pto_doublings;
    ut_sent sent[UT_SENT_MAX];
} ut_conn_tx;

/* Receiving: conn_recv.c. */
typedef struct ut_conn_rx {
    uint64_t next;                      /* highest packet number seen plus one; 0 for none */
    uint64_t bytes;                     /* datagram bytes received, each number once */
    uint64_t window;                    /* bytes that we let the peer have in flight or stashed */
    uint64_t reported;                  /* `bytes` when the last feedback went */
    uint64_t quantum;                   /* bytes after which a feedback is due */
    uint64_t gap_due;                   /* a feedback is due when `next` reaches it; UT_NEVER if no gap is open */
    uint32_t ce;                        /* packets that came marked */
    uint32_t time_us;                   /* newest packet's send time; UINT32_MAX for none */
    ut_ns time_at;                      /* and when it came */
    ut_ns last;                         /* when anything valid came; 0 for never */
    uint64_t bits[UT_REPLAY_BITS / 64]; /* bit pn mod UT_REPLAY_BITS: came */

    /* Early packets, {u16 length, bytes} each, kept until their op opens here. */
    uint8_t *stash;
    size_t stash_size, stash_len;
    uint64_t stash_bytes; /* datagram bytes in it: received, but not granted anew */
} ut_conn_rx;

/* What the peer's feedbacks said of itself. */
typedef struct ut_conn_peer {
    uint64_t feedback;     /* newest feedback number of the peer */
    uint32_t overtaken;    /* feedbacks since it with older, but rising numbers */
    uint64_t overtaken_to; /* the highest of those */
    ut_ns overtaken_since; /* when the first of them came */
    uint32_t drops;        /* datagrams that its kernel dropped in all */
    uint32_t ce;           /* packets marked */
    uint8_t incast;        /* factor that the peer advertises; 0 for not known */
} ut_conn_peer;

/* When this host speaks next, and what it must say. */
typedef struct ut_conn_say {
    ut_ns at;        /* when to send the next feedback; UT_NEVER if nothing is to be said */
    uint64_t number; /* of feedbacks */
    bool ask;        /* the next feedback asks for an answer */
} ut_conn_say;

typedef struct ut_conn {
    uint8_t state;     /* enum ut_conn_state */
    uint8_t listening; /* rx_cid is valid */
    uint8_t shut;      /* what came under it could not be true: nothing is believed before there is another */
    uint8_t heard;     /* a valid feedback came since connect */
    uint32_t tx_cid;   /* the peer's choice, on our packets */
    uint32_t rx_cid;   /* our choice, on its packets */
    ut_addr data, feedback;
    ut_seal seal; /* of both directions; without a cipher: NULL in `cipher` */
    ut_cc cc;
    ut_pacer pacer;
    /* Packets too large for a path: how ours go, and the unfinished ones that came. */
    ut_mtu mtu;
    uint8_t *pieces; /* ut_pieces_memory() bytes; NULL if the job has no large packets */
    ut_conn_peer peer;
    ut_conn_say say;
    ut_conn_rx rx;
    ut_conn_tx tx;
} ut_conn;

/* conn.c */
/* |stash| holds ut_conn_stash_bytes(window). */
size_t ut_conn_stash_bytes(uint64_t window);
void ut_conn_init(ut_conn *c, uint64_t window, uint8_t *stash, size_t stash_size);
/* Forgets all of the path from the peer; it listens under |cid| from now on. */
void ut_conn_listen(ut_conn *c, uint32_t cid);
/* The peer will have |window| bytes in flight: a feedback is due after a quarter of it, but not for few packets. */
void ut_conn_expect(ut_conn *c, uint64_t window);
void ut_conn_connect(ut_conn *c, const ut_addr *data, const ut_addr *feedback, uint32_t cid, ut_ns now);
void ut_conn_absent(ut_conn *c);
/* Earliest time at which ut_conn_tick or a feedback has something to do. */
ut_ns ut_conn_next_wake(const ut_conn *c);

/* conn_send.c */
/* Datagrams of |bytes| that may go: by credit, by the congestion window, by the memory of what was sent. */
uint32_t ut_conn_may_send(const ut_conn *c, uint32_t bytes);
/* Gives the packet its number. */
uint64_t ut_conn_sending(ut_conn *c, uint32_t op_seq, uint8_t step, uint32_t slot, uint32_t bytes, ut_ns now);
/* A feedback of this path that no honest peer can have sent: its number is far ahead, it acknowledges what was never
 * sent, or grants what nobody has room for. Changes nothing. */
bool ut_conn_feedback_is_wild(const ut_conn *c, const ut_feedback *f);
/* The same of a grant alone. */
bool ut_conn_grant_is_wild(const ut_conn *c, const ut_grant *g);
/* Takes a grant that is not wild; one that is smaller than another before it changes nothing. */
void ut_conn_on_grant(ut_conn *c, uint64_t grant);
/* Takes the sender's half of a feedback that is not wild. */
void ut_conn_on_feedback(ut_conn *c, const ut_feedback *f, ut_ns now, ut_sent_fn *fate, void *context);
/* Timers: time-based loss, and the tail probe (declares the newest flying packet lost, so that it goes again). Returns
 * true if it probed. */
bool ut_conn_tick(ut_conn *c, ut_ns now, ut_sent_fn *fate, void *context);
/* How long an answer may take: a round trip, its variance, and what the peer may hold back. */
ut_ns ut_conn_silence(const ut_conn *c);
/* The same, doubled with every probe in vain. */
ut_ns ut_conn_pto(const ut_conn *c);

/* conn_recv.c */
enum ut_pn { UT_PN_NEW, UT_PN_SEEN, UT_PN_WILD };
/* Expands the number on the wire and tells whether it is new; WILD: no sender can have come so far. Changes nothing. */
enum ut_pn ut_conn_check_pn(const ut_conn *c, uint32_t low, uint64_t *ret_pn);
/* All 64 bits of the number of a feedback or grant. */
static inline uint64_t ut_conn_feedback_number(const ut_conn *c, uint32_t low)
{
    return ut_expand32(c->peer.feedback, low);
}
/* A feedback is newer than all before it. */
bool ut_conn_feedback_is_newer(const ut_conn *c, uint64_t number);
/* One came that is not. True if so many did since the newest, with numbers that rise, that the newest cannot have been
 * the peer's own: it shuts out the true ones. */
bool ut_conn_feedback_overtaken(ut_conn *c, uint64_t number, ut_ns now);
void ut_conn_received(ut_conn *c, uint64_t pn, uint32_t bytes, uint32_t time_us, bool ce, ut_ns now);
/* Keeps an early datagram. False if there is no room: then it must not be acknowledged. */
bool ut_conn_stash(ut_conn *c, const uint8_t *packet, size_t len);
/* A feedback goes out at |at| or earlier. */
static inline void ut_conn_speak_at(ut_conn *c, ut_ns at)
{
    c->say.at = UT_MIN2(c->say.at, at);
}
/* What a burst to the peer is sealed with; NULL for nothing. */
static inline const ut_seal *ut_conn_seal(const ut_conn *c)
{
    return c->seal.cipher ? &c->seal : NULL;
}
/* Fills the conn's half of a feedback and forgets that it was due. */
void ut_conn_fill_feedback(ut_conn *c, ut_feedback *ret, ut_ns now);

#endif
