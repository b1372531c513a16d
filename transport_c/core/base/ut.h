/* SPDX-License-Identifier: Apache-2.0
 *
 * What every file of the core shares: time, limits, errors, and the numbers of the wire that also cross to Python.
 *
 * The core does no I/O. It makes no system call, reads no clock, allocates nothing and logs nothing: packets and the
 * present time come in as arguments, and bursts to send, the next time to wake up and events go out. The UDP driver and
 * the simulator are its two shells, which drive it.
 */
#ifndef UT_H
#define UT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Nanoseconds of a monotonic clock that only goes forward. UT_NEVER is later than any time. */
typedef uint64_t ut_ns;
#define UT_NEVER UINT64_MAX
#define UT_US ((ut_ns)1000)
#define UT_MS ((ut_ns)1000000)
#define UT_SECOND ((ut_ns)1000000000)

/* Limits on everything, on one page. A daemon prints them at start. */
enum {
    UT_JOBS_MAX = 16,                      /* jobs that one engine serves */
    UT_HOSTS_MAX = 64,                     /* hosts of one job, this one included; host sets travel as 64-bit masks */
    UT_LOCAL_MAX = 16,                     /* ranks of one job on one host */
    UT_SESSIONS_MAX = 64,                  /* attached trainers of one engine; wake-ups are a 64-bit mask */
    UT_LANES_MAX = 4,                      /* engines of one host that share its link, each with a thread of its own */
    UT_OPS_MAX = 4,                        /* ops of one job that are open or lingering at once */
    UT_RECEIPTS_KEPT = 64,                 /* newest receipts of a job that are kept for questions afterwards */
    UT_RING_ENTRIES = 64,                  /* entries of a submission or completion ring; a power of two */
    UT_STEPS_MAX = 4 * (UT_HOSTS_MAX - 1), /* steps of one schedule */
    UT_SENT_MAX = 32768,                   /* packets in flight to one peer: what 1 Gbit/s holds in 0.3 s, and more */
    UT_SENT_MIN = 4096,                    /* ... of a host with many peers; all of these are powers of two */
    UT_SENT_ALL = 65536,                   /* to all its peers, but of each the least */
    UT_REPLAY_BITS = 1 << 17,              /* how far below the highest packet number a receiver tells numbers apart */
    UT_CONTROL_REPLAY_BITS = 2048,         /* the same for feedbacks and grants of sealed paths */
    UT_ACK_BITS = 1024,                    /* packet numbers that one feedback reports on */
    UT_SEGMENTS_MAX = 64,                  /* packets in one burst */
    UT_PACKET_MIN = 96,                    /* bytes of a full data packet: its header and 64 of payload at least */
    UT_PACKET_MAX = 9216,                  /* bytes of one datagram, jumbo frames included */
    UT_BURST_BYTES = 65507,                /* bytes of one burst: what one message of UDP holds */
    UT_PATH_MIN = 1232,                    /* bytes of a datagram that every path carries: 1280 less IPv6 and UDP */
    UT_RECEIVE_BUFFER_MIN = 4 * UT_PACKET_MAX, /* bytes of the kernel's buffer: less leaves no room for credit */
    UT_EVENTS_MAX = 256,                       /* events that wait for the daemon; newer ones are dropped and counted */
};
/* Ranges around what is known. A number from outside that lies beyond its range is not believed: one packet, forged or
 * from a peer that lies, must not move anything so far that the truth cannot catch up. */
enum {
    UT_LAG_MAX = 1 << 20,          /* ops between this host's next op and the newest of which a peer may speak */
    UT_EARLY_MAX = 4 * UT_OPS_MAX, /* the same for data that is kept until its op opens, unless the job is partial */
    UT_NUMBER_JUMP_MAX = 1 << 16,  /* feedbacks in a row that may be lost */
    UT_PACKET_JUMP_MAX = 1 << 20,  /* data packets in a row that may be lost */
    UT_GRANT_AHEAD_MAX = 64 << 20, /* bytes beyond what this host has sent that a peer may let it send */
    UT_OVERTAKEN_MAX = 64, /* old feedbacks in a row, over a round trip, before the newest is taken for forged */
};
/* The last number of an op: whole numbers travel with data. 2^44 ops are 557 years of 1000 ops a second, and the
 * attempts at all 2^32 steps of a coded job (ext/coded/coded.h). A call beyond it is refused. */
enum { UT_OP_SEQ_BITS = 44 };
#define UT_OP_SEQ_MAX ((UINT64_C(1) << UT_OP_SEQ_BITS) - 1)
#define UT_BUCKET_MAX UINT32_MAX /* bytes of one bucket: the ULTIMA header's offset has 32 bits */

/* Errors. 0 is success. A malformed packet is an error and never fails an assert; a mistake of our own always does. */
enum ut_error {
    UT_OK = 0,
    UT_ERR_ARGUMENT = -1,   /* the caller gave a value outside its range */
    UT_ERR_MALFORMED = -2,  /* a datagram too short, of another version, or inconsistent in itself */
    UT_ERR_CHECKSUM = -3,   /* CRC32C does not match */
    UT_ERR_UNKNOWN = -4,    /* no such job, host, session or connection id */
    UT_ERR_FULL = -5,       /* a limit of this page is reached */
    UT_ERR_EXISTS = -6,     /* the id is taken */
    UT_ERR_DESYNC = -7,     /* another rank called this op with another dtype, op, count or mode */
    UT_ERR_DTYPE = -8,      /* a dtype number that does not exist */
    UT_ERR_REDOP = -9,      /* a reduction number that does not exist, or one that needs the reliable mode */
    UT_ERR_RANGE = -10,     /* a buffer that lies outside the arena */
    UT_ERR_TOO_LARGE = -11, /* a bucket over the job's limit */
    UT_ERR_TIMEOUT = -12,   /* a reliable op did not finish by its deadline */
    UT_ERR_SEQUENCE = -13,  /* an op_seq that is not the next one of this session */
    UT_ERR_CLOSED = -14,    /* the job is going away */
    UT_ERR_SYSTEM = -15,    /* a system call failed; the driver keeps errno and a sentence */
    UT_ERR_ABSENT = -16,    /* a reliable op cannot finish: a host or a rank is gone */
};
const char *ut_strerror(int error);

/* These numbers cross the wire and the shared memory: they are never reused. */
/* generated: words of the wire (schema/) */
/* The type of an element. Those below UT_DTYPES_END can be reduced. */
enum ut_dtype {
    UT_FLOAT32 = 1,
    UT_FLOAT64 = 2,
    UT_FLOAT16 = 3,
    UT_BFLOAT16 = 4,
    UT_INT32 = 5,
    UT_INT64 = 6,
    UT_DTYPES_END,
    UT_BYTES = 7, /* bytes of any meaning: they are moved, never reduced */
};
/* How elements are reduced. */
enum ut_redop {
    UT_SUM = 1,
    UT_AVG = 2,
    UT_MIN = 3,
    UT_MAX = 4,
    UT_PROD = 5,
    UT_REDOPS_END,
};
/* What becomes of losses. */
enum ut_mode {
    UT_BOUNDED = 1,     /* losses are repaired as long as there is time */
    UT_BEST_EFFORT = 2, /* nothing is sent again */
    UT_RELIABLE = 3,    /* the op is complete, or fails */
    UT_MODES_END,
};
/* In what the calls of an op differ. */
enum ut_field {
    UT_FIELD_NONE = 0,
    UT_FIELD_DTYPE = 1,
    UT_FIELD_REDOP = 2,
    UT_FIELD_COUNT = 3,
    UT_FIELD_MODE = 4,
    UT_FIELD_AGREE = 5,
    UT_FIELD_ALGORITHM = 6,
    UT_FIELD_COLLECTIVE = 7,
    UT_FIELD_ROOT = 8,
    UT_FIELD_DIVISOR = 9,
    UT_FIELD_GROUP = 10, /* this and the next two: of sparse allreduces */
    UT_FIELD_FORM = 11,
    UT_FIELD_HINT = 12,
    UT_FIELD_SPLIT = 13,  /* into portions (core/base/portion.h) */
    UT_FIELD_VIEW = 14,   /* the id of the epoch (core/epoch/epoch.h) */
    UT_FIELD_WIRE = 15,   /* forms of a quantised allreduce, as core/base/what.h has them; 0: a dense one */
    UT_FIELD_WEIGHT = 16, /* whether contributions have one */
    UT_FIELD_DOWN = 17,   /* of sparse allreduces: the form of answers, where it is not that of contributions */
};
/* What an op does with the ranks' buffers (sched_shard.c). All but the first are reliable. */
enum ut_collective {
    UT_ALLREDUCE = 0,
    UT_REDUCE_SCATTER = 1,
    UT_ALL_GATHER = 2,
    UT_BROADCAST = 3,
    UT_ALL_TO_ALL = 4,
    UT_BARRIER = 5,          /* an all-gather of a byte of each host */
    UT_ALLREDUCE_SPARSE = 6, /* an allreduce to which ranks give indices and values */
    UT_ALLREDUCE_QUANT = 7,  /* an allreduce that travels in few bits an element */
    UT_COLLECTIVES_END = 6,
};
/* generated: end */
/* generated: words of options (schema/) */
/* The schedule of a job's allreduces. */
enum ut_algorithm {
    UT_TAR = 1, /* every host owns a shard */
    UT_RING = 2,
    UT_BCUBE = 3,
    UT_PS = 4, /* a parameter server */
    UT_ALGORITHMS_END,
    UT_TREE = 5, /* that of coded jobs with children; it cannot be asked for */
};
/* What makes a host send more slowly. */
enum ut_congestion {
    UT_CC_SWIFT = 1,  /* delay */
    UT_CC_DCTCP = 2,  /* congestion marks */
    UT_CC_TIMELY = 3, /* delay */
    UT_CC_NONE = 4,   /* the receiver's credit alone */
    UT_CC_END,
};
/* Whether buckets travel transformed. */
enum ut_hadamard {
    UT_HADAMARD_OFF = 1,
    UT_HADAMARD_ON = 2,
    UT_HADAMARD_AUTO = 3, /* according to the loss that is left after repair */
    UT_HADAMARD_END,
};
/* When t_B begins to run. */
enum ut_timer_start {
    UT_TIMER_RENDEZVOUS = 1, /* when all hosts that are up were heard to have called the op */
    UT_TIMER_LOCAL = 2,      /* the host's own call, as in the paper */
    UT_TIMER_END,
};
/* What starts the ops of a job (activate.c). All but NONE make the job partial: an op takes what the ranks have given
 * when it starts, and goes on without ranks that have given nothing. */
enum ut_policy {
    UT_POLICY_NONE = 1,     /* every rank calls every op */
    UT_POLICY_FULL = 2,     /* only the ranks themselves: each host joins when all its ranks have given */
    UT_POLICY_SOLO = 3,     /* the first rank that has given (eager-SGD) */
    UT_POLICY_MAJORITY = 4, /* one rank, drawn anew for each op from the job's seed (eager-SGD) */
    UT_POLICY_QUORUM = 5,   /* as many ranks that have given as `quorum` says */
    /* The first of `probes` ranks that the job's controller, a daemon, finds ready (RNA). */
    UT_POLICY_PROBE = 6,
    /* The first ready of `probes` ranks drawn from the job's seed, without a controller. */
    UT_POLICY_SEEDED = 7,
    /* The first rank that has given; who gives while the op runs is in, until the sum can be had (CodedReduce). */
    UT_POLICY_CODED = 8,
    UT_POLICIES_END,
};
/* How the ranks of a coded job share its data. */
enum ut_code {
    UT_CODE_GROUPS = 1, /* each rank of a group computes the same data: one of them is enough */
    UT_CODE_LINEAR = 2, /* each rank sends a combination of several parts; the sum is one of these */
    UT_CODES_END,
};
/* What becomes of an op of a coded job when the sum over all data cannot be had. */
enum ut_exact {
    UT_EXACT_YES = 1, /* the step fails */
    UT_EXACT_NO = 2,  /* the step ends with an estimate of the sum */
    UT_EXACT_END,
};
/* Whether large calls are split over the lanes of the job. Trainers do it; an engine knows portions alone. */
enum ut_split {
    UT_SPLIT_AUTO = 1,   /* they are */
    UT_SPLIT_NEVER = 2,  /* they are not; the job has as many lanes as with AUTO */
    UT_SPLIT_ALWAYS = 3, /* they are; the job has as many lanes as each host has */
    UT_SPLIT_END,
};
/* Whether sums have the same bits whatever order contributions come in. */
enum ut_deterministic {
    UT_DETERMINISTIC_NO = 1,
    UT_DETERMINISTIC_YES = 2,
    UT_DETERMINISTIC_END,
};
/* generated: end */

/* Bytes of one element of |dtype|, which must be valid; and of one element of its accumulator (float32 for the halves).
 */
size_t ut_dtype_bytes(unsigned dtype);
size_t ut_dtype_acc_bytes(unsigned dtype);

#define UT_MIN2(a, b) ((a) < (b) ? (a) : (b))
#define UT_MAX2(a, b) ((a) > (b) ? (a) : (b))

#endif
