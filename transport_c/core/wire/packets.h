/* SPDX-License-Identifier: Apache-2.0
 *
 * The wire: six packet kinds, byte by byte as in PROTOCOL.md. Encoding cannot fail; decoding checks every length and
 * range that can be checked without knowing the job. All other files use these structs, and never bytes: only this
 * folder knows how long a header is, and what a cipher adds to a datagram (seal.h).
 */
#ifndef UT_WIRE_H
#define UT_WIRE_H

#include "core/base/what.h"

enum {
    UT_WIRE_VERSION = 4,
    UT_KIND_DATA = 1,
    UT_KIND_FEEDBACK = 2,
    UT_KIND_PIECE = 3,
    UT_KIND_GRANT = 4,
    UT_KIND_PATH = 5,
    UT_KIND_PARITY = 6,
    UT_COVERAGE_BITS = 11,
    UT_COVERAGE_MAX = (1 << UT_COVERAGE_BITS) - 1, /* no job has more ranks */
    UT_TIME_BITS = 22,                             /* of a send time in us: it comes round after 4.2 s */
    UT_TIME_MASK = (1 << UT_TIME_BITS) - 1,
    UT_COMMON_HEADER = 16, /* bytes with which all kinds begin; the last four of them are the checksum */
    UT_CHECKSUM_AT = 12,
    UT_DATA_HEADER = 32,
    UT_ULTIMA_HEADER = 9,
    UT_FEEDBACK_HEADER = 80,
    UT_PIECE_HEADER = UT_COMMON_HEADER,
    UT_PIECES_MAX = 8, /* of one packet */
    UT_GRANT_BYTES = 24,
    UT_PATH_BYTES = 24,
    UT_OP_RECORD = 80,
    UT_ACK_WORDS = UT_ACK_BITS / 64,
    UT_FEEDBACK_MAX = UT_FEEDBACK_HEADER + UT_OPS_MAX * UT_OP_RECORD + UT_ACK_WORDS * 8,
};

enum ut_data_flag {
    UT_FLAG_REPAIR = 0x01,
    UT_FLAG_ASK = 0x02,                      /* the sender waits for word of this packet, and of those before it */
    UT_FLAGS = UT_FLAG_REPAIR | UT_FLAG_ASK, /* that travel in a header */
    UT_FLAG_PARITY = 0x04,                   /* it is of UT_KIND_PARITY */
    UT_FLAG_REBUILT = 0x08,                  /* it did not come: this host has made it of parity */
};
enum ut_record_flag {
    UT_RECORD_RX_DONE = 0x02, /* I want no more data for the op */
    UT_RECORD_TX_DONE = 0x04, /* I send no more data for the op */
    UT_RECORD_FAILED = 0x08,  /* the op has failed here */
    UT_RECORD_RESULT = 0x10,  /* the two masks hold */
    UT_RECORD_DIGEST = 0x20,  /* the op has ended here, and the digest holds */
    UT_RECORD_SENT = 0x80,    /* I send you nothing more of stage 1: all of it came, or I gave it up */
    UT_RECORD_ACTIVE = 0x40,  /* partial jobs: the op has started here; without it: the ranks are ready for the op */
};

/* Coded jobs, in a record's `submitted`: of stage 1 the sender needs nothing more. */
enum { UT_RECORD_ENOUGH = 0x08 };

/* The ULTIMA header: the paper's nine bytes (docs/papers.md, section 1.1). */
typedef struct ut_ultima {
    uint16_t bucket;  /* op_seq mod 65536 */
    uint32_t offset;  /* bytes into the bucket */
    uint16_t timeout; /* units of 100 us; 0xffff: that or more; 0: none */
    uint8_t last;     /* Last%ile, 0 .. 15 */
    uint8_t incast;   /* 0 .. 15 */
} ut_ultima;

typedef struct ut_data {
    uint8_t flags;
    uint8_t stage;     /* 1 or 2 */
    uint16_t coverage; /* stage 1: ranks in the payload; stage 2: ranks missing from it; 0 .. UT_COVERAGE_MAX */
    uint32_t cid;
    uint32_t pn;      /* low 32 bits */
    uint64_t op_seq;  /* UT_OP_SEQ_BITS; the low 16 of them travel as `ultima.bucket` */
    uint16_t view;    /* tag: names in short under what the sender opened the op, see core/op/op_epoch.c */
    uint32_t time_us; /* low UT_TIME_BITS */
    ut_ultima ultima;
    uint32_t payload_crc; /* CRC32C of the payload alone; it does not travel, but is a part of the checksum */
    /* Where the payload of a decoded packet lies, and how many bytes it has; an encoder ignores both. */
    const uint8_t *payload;
    size_t payload_len;
} ut_data;

/* A part of a data packet that was too large for the path. */
typedef struct ut_piece {
    uint8_t index;  /* from 0 */
    uint16_t whole; /* bytes of the packet */
    uint32_t cid;
    uint32_t pn; /* number of the packet, low 32 bits */
    /* Where the packet's bytes in a decoded piece lie, and how many they are; an encoder ignores both. */
    const uint8_t *bytes;
    size_t len;
} ut_piece;

/* Credit alone: the part of a feedback that must be quick (UT_KIND_GRANT). */
typedef struct ut_grant {
    uint32_t cid;
    uint64_t number; /* from the same count as the numbers of feedbacks; its low 32 bits travel */
    uint64_t grant;
} ut_grant;

/* Asks whether a peer can be reached at an address, or answers that (UT_KIND_PATH). */
enum ut_path_what { UT_PATH_CHALLENGE = 1, UT_PATH_ANSWER = 2 };
typedef struct ut_path {
    uint8_t what; /* enum ut_path_what */
    uint32_t cid;
    uint64_t number; /* as that of a grant */
    uint64_t token;  /* of an answer: that of the challenge */
} ut_path;

typedef struct ut_record {
    uint64_t op_seq;
    uint64_t count;
    uint8_t dtype, redop, mode, flags;
    uint16_t weight;
    uint8_t field;     /* enum ut_field in which ranks of the sender's own host differ, so that the op failed; else 0 */
    uint8_t agree;     /* 1: submitted with UT_SUBMIT_AGREE */
    uint8_t algorithm; /* enum ut_algorithm */
    uint8_t collective;           /* enum ut_collective */
    uint32_t time_left_us;        /* UINT32_MAX for no end */
    uint32_t digest;              /* digest of the sender's result */
    uint64_t full_mask, any_mask; /* masks of hosts; with `field`, the two values that differ */
    /* Masks of the ranks of the sender's host that are in the op, `stale` of partial jobs alone; there before it is
     * ACTIVE of those that are ready for it. */
    uint16_t fresh, stale;
    /* Partial jobs, else 0. */
    union {
        uint32_t oldest_step; /* the oldest step in what these ranks contribute */
        uint32_t share;       /* of other jobs, if `submitted` has WEIGHTED: the sum of the weights of these ranks */
    };
    uint16_t initiator; /* host that started the op; 0xffff: none known */
    uint8_t policy;     /* enum ut_policy in force for this op */
    /* UT_SUBMIT_WORLD and UT_SUBMIT_ADAPTIVE, if it was given with them, and UT_RECORD_ENOUGH; of other jobs
     * UT_SUBMIT_WEIGHTED */
    uint8_t submitted;
    uint16_t attached; /* of all jobs: mask of the ranks of the sender's host whose trainer has not left */
    uint16_t view;     /* of all jobs: the tag of the sender's data */
    uint8_t portion;   /* of a call that is split (core/base/portion.h); else 0 */
    uint64_t epoch;    /* id of the epoch under which the sender opened the op, see core/epoch/epoch.h */
    ut_alike alike;    /* what the record's collective says beyond others, by collective */
} ut_record;

typedef struct ut_feedback {
    uint8_t records, incast;
    uint32_t cid;
    uint64_t number; /* only its low 32 bits travel; a decoded feedback has only these */
    uint64_t grant, received, rx_floor, tx_floor;
    uint32_t highest_pn;
    uint32_t ce_packets;
    uint32_t kernel_drops;
    uint32_t echo_us; /* UINT32_MAX if none */
    uint32_t hold_us;
    uint8_t ack_words;
    uint16_t loss;       /* what the sender still misses after repair, in units of 2^-15 of what was due */
    uint32_t state;      /* version of the sender's state towards the receiver, low 32 bits: core/ledger/ledger.h */
    uint32_t state_seen; /* the newest version of the receiver's state that the sender has taken in, likewise */
    ut_record record[UT_OPS_MAX];
    uint64_t ack[UT_ACK_WORDS];
} ut_feedback;

void ut_ultima_encode(uint8_t out[UT_ULTIMA_HEADER], const ut_ultima *h);
void ut_ultima_decode(ut_ultima *ret, const uint8_t in[UT_ULTIMA_HEADER]);

/* Reads the connection id of a datagram of |kind|, and nothing else: a stranger's datagram must not cost a checksum.
 * UT_ERR_MALFORMED if the datagram is too short for that kind, or of another version or kind. */
int ut_wire_peek(const uint8_t *packet, size_t len, unsigned kind, uint32_t *ret_cid);
/* The kind that a datagram claims to be, for ut_wire_peek; 0 for an empty datagram. */
static inline unsigned ut_wire_kind(const uint8_t *packet, size_t len)
{
    return len ? packet[0] & 15 : 0;
}
/* Data, whole or in sums: what has a header of UT_DATA_HEADER bytes, and a number of the same count. */
static inline bool ut_wire_is_data(unsigned kind)
{
    return kind == UT_KIND_DATA || kind == UT_KIND_PARITY;
}
/* Feedback, the half of it, or what is numbered with it: both ports take it, the feedback port nothing else. */
static inline bool ut_wire_is_feedback(unsigned kind)
{
    return kind == UT_KIND_FEEDBACK || kind == UT_KIND_GRANT || kind == UT_KIND_PATH;
}

/* The low 32 bits of the number of a datagram that ut_wire_peek has let through; they stand at the same offset in all
 * kinds. */
uint32_t ut_wire_number(const uint8_t *packet);

/* Whether a job's full data packet may have |packet_bytes|, of which a cipher takes |overhead|: the payload must hold a
 * whole number of elements of any dtype, and at least 64 bytes. */
static inline bool ut_wire_packet_valid(uint32_t packet_bytes, uint32_t overhead)
{
    return packet_bytes >= UT_PACKET_MIN + overhead && packet_bytes <= UT_PACKET_MAX && overhead % 8 == 0 &&
           (packet_bytes - UT_DATA_HEADER) % 8 == 0;
}
/* The bytes of payload in a full data packet; and the bytes of the datagram that carries |payload| bytes. */
static inline uint32_t ut_wire_payload(uint32_t packet_bytes, uint32_t overhead)
{
    return packet_bytes - UT_DATA_HEADER - overhead;
}
static inline uint32_t ut_wire_packet(uint32_t payload, uint32_t overhead)
{
    return UT_DATA_HEADER + payload + overhead;
}

/* Whether a decoder compares the checksum with the packet's bytes. It does not if a cipher has opened the packet. */
enum ut_check { UT_CHECK_SUM, UT_CHECK_NOTHING };

/* Writes the header of a data packet, with the checksum over header and payload. */
void ut_data_encode(uint8_t out[UT_DATA_HEADER], const ut_data *h, size_t payload_len);
/* Checks the packet's shape, then its checksum. After UT_ERR_MALFORMED or UT_ERR_CHECKSUM |ret| is unspecified. */
int ut_data_decode(ut_data *ret, const uint8_t *packet, size_t len, enum ut_check check);

/* The header of a data packet before its checksum, as it lies in memory, in words: a CPU that reads in words what was
 * just written in bytes waits until it has reached the cache. */
typedef struct ut_data_form {
    uint64_t word[4];
} ut_data_form;
ut_data_form ut_data_form_of(const ut_data *h);
/* Writes it, for a payload of |payload_len| bytes with |payload_crc|, and makes it that of the packet that follows. */
void ut_data_form_encode(uint8_t out[UT_DATA_HEADER], ut_data_form *form, uint32_t payload_crc, size_t payload_len);

/* Writes the header of a piece that holds |len| |bytes|, with the checksum over both. */
void ut_piece_encode(uint8_t out[UT_PIECE_HEADER], const ut_piece *h, const void *bytes, size_t len);
int ut_piece_decode(ut_piece *ret, const uint8_t *packet, size_t len, enum ut_check check);

/* Returns the bytes written, at most UT_FEEDBACK_MAX. */
size_t ut_feedback_encode(uint8_t *out, const ut_feedback *f);
int ut_feedback_decode(ut_feedback *ret, const uint8_t *packet, size_t len, enum ut_check check);

/* Whether two records say the same. Their time left aside, which runs. */
bool ut_record_is_same(const ut_record *a, const ut_record *b);

void ut_grant_encode(uint8_t out[UT_GRANT_BYTES], const ut_grant *g);
int ut_grant_decode(ut_grant *ret, const uint8_t *packet, size_t len, enum ut_check check);

void ut_path_encode(uint8_t out[UT_PATH_BYTES], const ut_path *p);
int ut_path_decode(ut_path *ret, const uint8_t *packet, size_t len, enum ut_check check);

/* By how many us |a| is later than |b|, two times, or two differences of times, of which the low UT_TIME_BITS are
 * known. It is taken for one from -2^20 on: delays grow by more than they shrink. */
static inline int32_t ut_time_after(uint32_t a, uint32_t b)
{
    const uint32_t before = 1u << (UT_TIME_BITS - 2);
    return (int32_t)((a - b + before) & UT_TIME_MASK) - (int32_t)before;
}

/* The full number nearest to |expected| whose low 32 bits are |low|. */
uint64_t ut_expand32(uint64_t expected, uint32_t low);

#endif
