/* SPDX-License-Identifier: Apache-2.0
 *
 * One peer host of one job: both directions of the path. It numbers packets, counts credit, tells which packets were
 * acknowledged and which are lost, and knows when a feedback is due. Of ops it knows only the name of the slot that
 * each packet carried.
 *
 * The files: conn.c (life of the path), conn_send.c (numbers, acknowledgements, loss), conn_recv.c (the other half).
 */
#ifndef UT_CONN_H
#define UT_CONN_H

#include "core/path/cc.h"
#include "core/path/due.h"
#include "core/path/move.h"
#include "core/path/mtu.h"
#include "core/path/parity.h"
#include "core/path/sent.h"

enum {
    UT_REORDER_PACKETS = 48, /* a number is lost when one sent this much later has come: one GSO burst and a bit */
    UT_BURST_SHORT = 8,      /* the least grant: a burst to a peer whose queue was seen to drop packets in a row, */
    UT_BURST_SPAN = 1024,    /* ... for so many packets: who loses in a row less often loses below 0.1 % */
    UT_PTO_MAX_NS = 200 * 1000 * 1000,  /* the longest such time, after doubling, where twice the first is less */
    UT_PTO_FIRST_NS = 20 * 1000 * 1000, /* that time before the first round trip was measured */
    /* How long one loss makes a sender hurry its peers. Where nothing was lost before, the last packets are missed a
     * millisecond later (UT_HOLD_NS), which is then at most a thousandth of the time. */
    UT_HURRY_NS = 1000 * 1000 * 1000,
};

enum ut_conn_state {
    UT_CONN_NEW,    /* this host may listen, but does not know the peer's address yet */
    UT_CONN_UP,     /* packets may go both ways */
    UT_CONN_ABSENT, /* the peer is known to be gone */
};

/* Sending: conn_send.c. What is FLYING is in flight; the credit used is what was sent less what is lost. */
typedef struct ut_conn_tx {
    uint64_t next;                 /* next packet number */
    uint64_t base;                 /* no packet below it is FLYING */
    uint64_t acked;                /* highest number acknowledged plus one; 0 for none */
    ut_sent_gap gap;               /* empty if there is none */
    uint64_t bytes, lost_bytes;    /* datagram bytes ever sent, and those of them that now count as lost */
    uint64_t flying, flying_bytes; /* packets in flight, and their bytes */
    uint64_t grant;                /* bytes that the peer allows to be sent in all */
    uint64_t lost_packets, spurious_losses, acked_packets;
    uint64_t ce_packets;  /* packets that arrived marked (ECN), in all */
    uint64_t asked;       /* the newest packet that asks for a feedback, plus one */
    uint64_t lost_before; /* packets that were lost, late ones not counted, before `hurry_to` was set */
    ut_ns hurry_to;       /* until when the peer is to answer the last packets soon: one was lost lately */
    uint64_t short_to;    /* packets below this number go in short bursts */
    ut_ns reorder;        /* how much later than its followers a packet may come, as far as was seen lately */
    ut_ns srtt, rttvar;   /* smoothed round trip and its variance; 0 before the first sample */
    ut_ns last;           /* when data was last sent or acknowledged: the tail timer counts from here */
    ut_ns loss_at;        /* when the oldest overtaken packet counts as lost; UT_NEVER if there is none */
    ut_ns blocked_since;  /* since when data waits for credit while nothing is in flight; UT_NEVER if it does not */
    bool stuck;           /* no more may fly, though more waits: the newest packet is the tail of what may, for now */
    uint8_t pto_doublings;
    ut_sent *sent; /* of the newest packets: of number pn at pn mod room */
    uint32_t room; /* how many those are; a power of two */
} ut_conn_tx;

/* Receiving: conn_recv.c. */
typedef struct ut_conn_rx {
    uint64_t next;                      /* highest packet number seen plus one; 0 for none */
    uint64_t bytes;                     /* datagram bytes received, each number once */
    uint64_t packets;                   /* packets received, each number once */
    ut_ns again_at;                     /* when to repeat a grant of which nothing was heard; UT_NEVER for not at all */
    uint8_t repeats;                    /* so often it was repeated since data last came */
    uint64_t granted;                   /* bytes that the peer may send in all, as the pool of the host has decided */
    uint64_t reported;                  /* `packets` when the last feedback was sent */
    uint64_t told;                      /* all numbers below it were in a feedback, as come or as missing */
    uint64_t gap_due;                   /* a feedback is due when `next` reaches it; UT_NEVER if no gap is open */
    uint32_t ce;                        /* packets that came marked */
    uint32_t time_us;                   /* send time of the newest packet; UINT32_MAX for none */
    ut_ns time_at;                      /* when that packet came */
    uint32_t least_us, next_us;         /* the least delay of the last spans and of the one that runs, clocks apart */
    ut_ns least_at;                     /* when that span began; 0: none has */
    ut_ns waited;                       /* how much longer the newest packet took than the least of late */
    ut_ns last;                         /* when a valid packet last came; 0 for never */
    uint64_t bits[UT_REPLAY_BITS / 64]; /* bit pn mod UT_REPLAY_BITS: packet number pn came */

    /* Early packets, {u16 length, bytes} each, kept until their op opens here. */
    uint8_t *stash;
    size_t stash_size, stash_len;
    uint64_t stash_bytes; /* datagram bytes in the stash: they were received, but are not granted anew */
} ut_conn_rx;

/* What the peer's feedbacks said about the peer. */
typedef struct ut_conn_peer {
    uint64_t feedback;     /* newest feedback number of the peer */
    uint64_t came[2];      /* feedbacks and grants, by the port that they came to */
    uint32_t overtaken;    /* feedbacks that came since then with older, but rising numbers */
    uint64_t overtaken_to; /* the highest of those numbers */
    ut_ns overtaken_since; /* when the first of those feedbacks came */
    /* Sealed paths: the replay window of feedbacks and grants. Highest number that came plus one; bit n mod the window:
     * number n came. */
    uint64_t control;
    uint64_t control_bits[UT_CONTROL_REPLAY_BITS / 64];
    uint32_t drops; /* datagrams that its kernel dropped in all */
    uint32_t ce;    /* packets that reached it marked (ECN) */
    uint8_t incast; /* the incast factor that the peer advertises; 0 for not known */
} ut_conn_peer;

/* When this host speaks, and what its next feedback must say. */
typedef struct ut_conn_say {
    ut_due due;
    uint64_t number; /* of the newest feedback or grant sent */
    ut_ns again;     /* when to look whether the peer must be told once more; UT_NEVER: not at all */
    bool ask;        /* the next feedback asks for an answer */
    bool along;      /* the next feedback goes behind the data that goes now */
} ut_conn_say;

typedef struct ut_conn {
    uint8_t state;           /* enum ut_conn_state */
    uint8_t listening;       /* rx_cid is valid */
    uint8_t shut;            /* something impossible came under rx_cid: nothing is believed until there is another id */
    uint8_t heard;           /* a valid feedback came since ut_conn_connect */
    uint32_t tx_cid, rx_cid; /* connection ids: on our packets, chosen by the peer; on its own, chosen by this host */
    ut_addr at[2];           /* the present addresses of the peer, by enum ut_port */
    ut_move move[2];         /* likewise */
    bool routed;             /* the daemons have chosen another way, and look after it: nobody is followed */
    ut_seal seal;            /* keys of both directions; without a cipher `cipher` is NULL */
    ut_cc cc;
    ut_mtu mtu;      /* how our packets go on a path that does not carry full ones */
    uint8_t *pieces; /* unfinished ones that came, ut_pieces_memory() bytes; NULL if the job has no large packets */
    ut_parity parity;
    ut_conn_peer peer;
    ut_conn_say say;
    ut_conn_rx rx;
    ut_conn_tx tx;
} ut_conn;

/* conn.c */
/* |stash| has ut_conn_stash_bytes(window) bytes: room for early packets of |window| bytes. */
size_t ut_conn_stash_bytes(uint64_t window);
uint32_t ut_conn_sent_room(uint32_t peers);
void ut_conn_init(ut_conn *c, uint8_t *stash, size_t stash_size, ut_sent *sent, uint32_t room);
/* Forgets everything about the path from the peer, and listens under |cid| from now on. */
void ut_conn_listen(ut_conn *c, uint32_t cid);
void ut_conn_connect(ut_conn *c, const ut_addr *data, const ut_addr *feedback, uint32_t cid, ut_ns now);
void ut_conn_absent(ut_conn *c);
/* The earliest time at which ut_conn_tick has something to do or a feedback is due. */
ut_ns ut_conn_next_wake(const ut_conn *c);

/* conn_send.c */
/* How many datagrams of |bytes| may be sent, by the credit, the congestion window, and the memory for what was sent. */
uint32_t ut_conn_may_send(const ut_conn *c, uint32_t bytes);
/* How many packets may go to the peer at a time, before it is another peer's turn. A queue that is short drops the end
 * of what several hosts send to one receiver at once, and packets that follow each other closely are lost in a row. */
static inline uint32_t ut_conn_burst(const ut_conn *c)
{
    return c->tx.next < c->tx.short_to && c->cc.peers > 1 ? UT_BURST_SHORT : UINT32_MAX;
}
/* |packets| like |first|, of which the caller gives op, step, slot and bytes, are about to be sent, each with the next
 * slot. Returns the first one's number. */
uint64_t ut_conn_sending(ut_conn *c, const ut_sent *first, uint32_t packets, bool ask, ut_ns now);
/* How many packets of |bytes| go before one that asks for a feedback: one in each quarter of what may fly, once half of
 * that does. */
uint32_t ut_conn_asks_in(const ut_conn *c, uint32_t bytes);
/* Whether no honest peer can have sent this feedback, or this grant: its number is far ahead, it acknowledges what was
 * never sent, or it grants more than any host has room for. Changes nothing. */
bool ut_conn_feedback_is_wild(const ut_conn *c, const ut_feedback *f);
bool ut_conn_grant_is_wild(const ut_conn *c, const ut_grant *g);
/* Takes a grant that is not wild. A grant that is smaller than an earlier one changes nothing. */
void ut_conn_on_grant(ut_conn *c, uint64_t grant);
/* The sender's half of a feedback that is not wild; and of one that others have overtaken: what came stays true. */
void ut_conn_on_feedback(ut_conn *c, const ut_feedback *f, ut_ns now, ut_sent_fn *fate, void *context);
void ut_conn_on_old_feedback(ut_conn *c, const ut_feedback *f, ut_sent_fn *fate, void *context);
/* Runs the timers: loss by time, and the tail probe, which takes the newest packet in flight for lost, so that its slot
 * is sent again. Returns true if it probed. */
bool ut_conn_tick(ut_conn *c, ut_ns now, ut_sent_fn *fate, void *context);
/* Data goes to another address from now on: nothing that flew will be acknowledged. */
void ut_conn_data_moved(ut_conn *c, ut_ns now, ut_sent_fn *fate, void *context);
/* How long a receiver keeps an answer to itself that was asked for. The sender counts on UT_TIMER_MIN_NS, for both ends
 * may know different round trips. */
ut_ns ut_conn_hold_asked(const ut_conn *c);
/* How long it hears nothing more before it speaks of data of which its sender has not asked to hear: a quarter of a
 * window takes a quarter of a round trip, in which a sender that goes on asks. */
ut_ns ut_conn_hold(const ut_conn *c);
/* How long an answer may take: a round trip, its variance, and what the peer may hold back. */
ut_ns ut_conn_silence(const ut_conn *c);
/* The same time, doubled with every probe that was not answered. */
ut_ns ut_conn_pto(const ut_conn *c);

/* conn_recv.c */
enum ut_pn { UT_PN_NEW, UT_PN_SEEN, UT_PN_WILD };
/* Expands the number on the wire and tells whether it is new. WILD: no sender can have come so far. Changes nothing. */
enum ut_pn ut_conn_check_pn(const ut_conn *c, uint32_t low, uint64_t *ret_pn);
/* The same for the number of a feedback or grant of a sealed path. */
enum ut_pn ut_conn_check_control(const ut_conn *c, uint32_t low, uint64_t *ret_number);
/* Such a number came, in a packet that its sealer has made. */
void ut_conn_control_came(ut_conn *c, uint64_t number);
/* All 64 bits of the number of a feedback or grant. */
static inline uint64_t ut_conn_feedback_number(const ut_conn *c, uint32_t low)
{
    return ut_expand32(c->peer.feedback, low);
}
/* Whether a feedback is newer than all before it. */
bool ut_conn_feedback_is_newer(const ut_conn *c, uint64_t number);
/* A feedback came that is not newer. Returns true if so many have come since the newest one, with rising numbers, that
 * the newest cannot have been the peer's own: a forged one shuts out the true ones. */
bool ut_conn_feedback_overtaken(ut_conn *c, uint64_t number, ut_ns now);
/* A packet came that is new, or so many with numbers from |pn| on that are newer than all before them. */
void ut_conn_received(ut_conn *c, uint64_t pn, const ut_came *came, ut_ns now);
/* Keeps an early datagram. False if there is no room: the datagram must then not be acknowledged. */
bool ut_conn_stash(ut_conn *c, const uint8_t *packet, size_t len);
/* There is news for the peer: the next feedback goes at |at| or earlier. */
static inline void ut_conn_speak_at(ut_conn *c, ut_ns at)
{
    ut_due_at(&c->say.due, UT_DUE_STATE, at);
}
/* The last data goes to the peer for now: what is to be told soon goes with it, once all data has gone that may go. */
void ut_conn_answer_along(ut_conn *c, ut_ns now);
/* Whether what leaves now takes a feedback to the peer along that is due within |slack| (core/path/due.h). */
static inline bool ut_conn_speaks_within(const ut_conn *c, ut_ns slack, ut_ns now)
{
    return c->state == UT_CONN_UP && ut_due_next(&c->say.due, UT_DUE_FEEDBACK) <= now + slack;
}
/* Whether a feedback goes in place of a grant: one is due soon, or has more to tell than a message of its own is worth.
 */
static inline bool ut_conn_grant_takes_along(const ut_conn *c, ut_ns now)
{
    return ut_conn_speaks_within(c, UT_TIMER_MIN_NS, now) || c->rx.packets - c->rx.reported >= UT_REPORT_PACKETS;
}
/* Whether a grant or a feedback is due. */
static inline bool ut_conn_speaks(const ut_conn *c, ut_ns now)
{
    return c->state == UT_CONN_UP && ut_due_next(&c->say.due, UT_DUE_CREDIT) <= now;
}
/* The cipher and keys for bursts to the peer; NULL without a cipher. */
static inline const ut_seal *ut_conn_seal(const ut_conn *c)
{
    return c->seal.cipher ? &c->seal : NULL;
}
/* Bytes that the peer was granted and that have not come. */
static inline uint64_t ut_conn_outstanding(const ut_conn *c)
{
    return c->rx.granted - UT_MIN2(c->rx.granted, c->rx.bytes);
}
/* The peer may send |granted| bytes in all. |urgent|: it may be waiting for that, and is told at once. */
void ut_conn_grant(ut_conn *c, uint64_t granted, bool urgent, ut_ns now);
/* The peer has data for this host and credit, and nothing came for a round trip and more: perhaps the grant was lost.
 * Says it again, ever more seldom. Returns when to look next. */
ut_ns ut_conn_grant_again(ut_conn *c, ut_ns now);
void ut_conn_fill_grant(ut_conn *c, ut_grant *ret);
/* Fills in the fields of a feedback that the path knows, and notes that none is due; or that another is due at once, if
 * more numbers are new than one feedback reports on. Returns whether it is to ask for an answer. */
bool ut_conn_fill_feedback(ut_conn *c, ut_feedback *ret, ut_ns now);

#endif
