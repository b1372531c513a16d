/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of the C, and nothing else: read by build_engine.py, never included. The meaning of each name is
 * told where it is defined (core/base/, core/face/, core/wire/burst.h, udp/driver.h). Nothing here can
 * drift: the compiler fills in each `...`, and cffi compares every struct's fields, offsets and size with the real ones
 * while it builds.
 *
 * When you add a field to one of these structs, add it here too; the build fails until you do.
 */

/* ---- core/base/ut.h: limits, errors, the words that cross the wire and the shared memory ---- */

#define UT_NEVER ...
#define UT_JOBS_MAX ...
#define UT_HOSTS_MAX ...
#define UT_WIRE_VERSION ...
#define UT_LOCAL_MAX ...
#define UT_SESSIONS_MAX ...
#define UT_OPS_MAX ...
#define UT_RECEIPTS_KEPT ...
#define UT_RING_ENTRIES ...
#define UT_STEPS_MAX ...
#define UT_SENT_MAX ...
#define UT_REPLAY_BITS ...
#define UT_ACK_BITS ...
#define UT_SEGMENTS_MAX ...
#define UT_PACKET_MIN ...
#define UT_PACKET_MAX ...
#define UT_EVENTS_MAX ...
#define UT_BUCKET_MAX ...

#define UT_OK ...
#define UT_ERR_ARGUMENT ...
#define UT_ERR_MALFORMED ...
#define UT_ERR_CHECKSUM ...
#define UT_ERR_UNKNOWN ...
#define UT_ERR_FULL ...
#define UT_ERR_EXISTS ...
#define UT_ERR_DESYNC ...
#define UT_ERR_DTYPE ...
#define UT_ERR_REDOP ...
#define UT_ERR_RANGE ...
#define UT_ERR_TOO_LARGE ...
#define UT_ERR_TIMEOUT ...
#define UT_ERR_SEQUENCE ...
#define UT_ERR_CLOSED ...
#define UT_ERR_SYSTEM ...
#define UT_ERR_ABSENT ...
const char *ut_strerror(int error);

#define UT_FLOAT32 ...
#define UT_FLOAT64 ...
#define UT_FLOAT16 ...
#define UT_BFLOAT16 ...
#define UT_INT32 ...
#define UT_INT64 ...
#define UT_BYTES ...
#define UT_SUM ...
#define UT_AVG ...
#define UT_MIN ...
#define UT_MAX ...
#define UT_PROD ...
#define UT_BOUNDED ...
#define UT_BEST_EFFORT ...
#define UT_RELIABLE ...
#define UT_FIELD_NONE ...
#define UT_FIELD_DTYPE ...
#define UT_FIELD_REDOP ...
#define UT_FIELD_COUNT ...
#define UT_FIELD_MODE ...
#define UT_FIELD_AGREE ...
#define UT_FIELD_ALGORITHM ...
#define UT_FIELD_COLLECTIVE ...
#define UT_FIELD_ROOT ...
#define UT_FIELD_DIVISOR ...
#define UT_FIELD_GROUP ...
#define UT_FIELD_FORM ...
#define UT_FIELD_HINT ...
#define UT_ALLREDUCE ...
#define UT_REDUCE_SCATTER ...
#define UT_ALL_GATHER ...
#define UT_BROADCAST ...
#define UT_ALL_TO_ALL ...
#define UT_BARRIER ...
#define UT_ALLREDUCE_SPARSE ...
#define UT_TAR ...
#define UT_RING ...
#define UT_BCUBE ...
#define UT_PS ...
#define UT_CC_SWIFT ...
#define UT_CC_DCTCP ...
#define UT_CC_TIMELY ...
#define UT_CC_NONE ...
#define UT_HADAMARD_OFF ...
#define UT_HADAMARD_ON ...
#define UT_HADAMARD_AUTO ...
#define UT_TIMER_RENDEZVOUS ...
#define UT_TIMER_LOCAL ...
#define UT_POLICY_NONE ...
#define UT_POLICY_FULL ...
#define UT_POLICY_SOLO ...
#define UT_POLICY_MAJORITY ...
#define UT_POLICY_QUORUM ...
#define UT_POLICY_PROBE ...
#define UT_POLICY_SEEDED ...
size_t ut_dtype_bytes(unsigned dtype);

/* ---- core/base/submission.h, core/base/receipt.h, core/face/ring.h ---- */

typedef struct ut_submission {
    uint64_t op_seq;
    uint64_t src;
    uint64_t dst;
    uint64_t count;
    uint64_t deadline_ns;
    uint8_t dtype;
    uint8_t redop;
    uint8_t mode;
    uint8_t flags;
    uint8_t collective;
    uint8_t root;
    uint16_t reserved;
    uint64_t wanted;
    uint32_t oldest_step;
    uint32_t newest_step;
} ut_submission;

#define UT_SUBMIT_AGREE ...
#define UT_SUBMIT_ADAPTIVE ...
#define UT_SUBMIT_GIVE ...
#define UT_SUBMIT_REPLACE ...
#define UT_SUBMIT_STICKY ...
#define UT_SUBMIT_NOWAIT ...
#define UT_SUBMIT_WORLD ...

typedef struct ut_submission_ring {
    uint64_t head;
    uint64_t completions_taken;
    uint64_t reserved[6];
    ut_submission entries[64];
} ut_submission_ring;

#define UT_COMPLETE ...
#define UT_PARTIAL ...
#define UT_INSUFFICIENT ...
#define UT_FAILED ...
#define UT_EMPTY ...
#define UT_OVERTAKEN ...
#define UT_SLOT_NULL ...
#define UT_SLOT_FRESH ...
#define UT_SLOT_STALE ...
#define UT_END_NONE ...
#define UT_END_COMPLETE ...
#define UT_END_DEADLINE ...
#define UT_END_ABSENT ...
#define UT_END_EARLY ...
#define UT_TROUBLE_NONE ...
#define UT_TROUBLE_SENDER ...
#define UT_TROUBLE_PATH ...
#define UT_TROUBLE_RECEIVER ...
#define UT_TROUBLE_GONE ...
#define UT_MISSING_NOTHING ...
#define UT_MISSING_ABSENT ...
#define UT_MISSING_SILENT ...
#define UT_MISSING_LOST ...
#define UT_MISSING_CLOSED ...

typedef struct ut_receipt_peer {
    uint64_t expected[2];
    uint32_t missing[2];
    uint16_t weight;
    uint8_t why;
    uint8_t trouble;
    uint32_t first_us;
    uint32_t last_us;
    uint32_t opened_us;
    uint32_t quiet_us;
    uint32_t delay_us;
    uint32_t repaired;
    uint32_t lost;
    uint32_t drops;
    uint16_t fresh;
    uint16_t stale;
    uint32_t oldest_step;
    uint32_t reserved;
} ut_receipt_peer;

typedef struct ut_receipt {
    uint64_t op_seq;
    uint32_t status;
    int32_t error;
    uint16_t hosts;
    uint16_t self;
    uint16_t culprit;
    uint8_t stage_end[2];
    uint8_t field;
    uint8_t trouble;
    uint8_t hadamard;
    uint8_t incast;
    uint32_t weight_min;
    uint64_t value_here;
    uint64_t value_there;
    uint64_t full_mask;
    uint64_t any_mask;
    uint64_t bytes_expected;
    uint64_t bytes_used;
    uint64_t bytes_missing;
    uint64_t bytes_repaired;
    uint64_t bytes_duplicate;
    uint64_t nonfinite;
    uint64_t elapsed_ns;
    uint64_t stage_ns[2];
    uint64_t drops_host;
    uint32_t t_b_us;
    uint32_t t_c_us[2];
    uint32_t agreed_seq;
    uint64_t digest;
    uint64_t differ_mask;
    uint64_t deadline_ns;
    uint64_t call_seq;
    uint64_t waited_ns;
    uint16_t initiator;
    uint16_t included;
    uint8_t policy;
    uint8_t slot;
    uint8_t kept;
    uint8_t eta;
    uint64_t owners;
    ut_receipt_peer peer[64];
} ut_receipt;

typedef struct ut_completion_ring {
    uint64_t head;
    uint64_t submissions_taken;
    uint64_t taken;
    uint64_t freed;
    uint64_t results;
    uint64_t reserved[3];
    ut_receipt entries[64];
} ut_completion_ring;

/* The trainer's side; and the engine's, for the client's fake daemon. */
int ut_ring_submit(ut_submission_ring *submissions, const ut_completion_ring *completions, const ut_submission *entry);
int ut_ring_take_completion(ut_submission_ring *submissions, const ut_completion_ring *completions, ut_receipt *ret);
int ut_ring_take_submission(const ut_submission_ring *submissions, ut_completion_ring *completions, uint64_t *taken,
                            ut_submission *ret);
int ut_ring_complete(const ut_submission_ring *submissions, ut_completion_ring *completions, uint64_t *written,
                     const ut_receipt *receipt);

/* ---- core/face/engine.h, core/base/options.h, core/base/host.h, core/wire/burst.h ---- */

struct ut_link;
typedef struct ut_engine_config {
    uint32_t packet_bytes;
    uint32_t segments_max;
    uint32_t receive_buffer;
    uint64_t seed;
    struct ut_link *link;
    uint32_t lane;
} ut_engine_config;

typedef struct ut_job_options {
    uint8_t algorithm;
    uint8_t congestion;
    uint8_t hadamard;
    uint8_t incast;
    uint8_t early_percent;
    uint8_t policy;
    uint8_t tau;
    uint8_t eta;
    uint64_t t_b_ns;
    uint64_t t_c_ns;
    uint64_t delay_target_ns;
    uint32_t quorum;
    uint32_t probes;
    uint64_t policy_seed;
    uint64_t policy_from;
    uint8_t timer_start;
    uint8_t reserved[7];
} ut_job_options;

typedef struct ut_cipher ut_cipher;
typedef struct ut_job_config {
    uint32_t hosts;
    uint32_t self;
    uint32_t local_ranks;
    uint32_t packet_bytes;
    uint32_t world;
    uint64_t bucket_bytes_max;
    uint64_t rate_bytes_per_s;
    uint64_t first_op_seq;
    uint8_t ranks_of[64];
    ut_job_options options;
    const ut_cipher *cipher;
} ut_job_config;

/* What the daemon debits to a job before it adds it. */
size_t ut_job_bytes(const ut_engine_config *engine, const ut_job_config *config);

#define UT_INCAST_MAX ...
#define UT_EARLY_PERCENT ...
#define UT_TAU ...
#define UT_ETA ...
#define UT_PROBES ...

void ut_picks(uint64_t seed, uint64_t op_seq, uint32_t world, uint32_t n, uint32_t *ret);

#define UT_EVENT_OP_DONE ...
#define UT_EVENT_DESYNC ...
#define UT_EVENT_BAD_SUBMISSION ...
#define UT_EVENT_DIVERGED ...
#define UT_EVENT_VIOLATION ...
#define UT_EVENT_PATH ...
#define UT_EVENT_READY ...
#define UT_EVENT_ACTIVATED ...

typedef struct ut_event {
    uint32_t kind;
    uint32_t job;
    uint32_t session;
    uint32_t host;
    uint64_t op_seq;
    uint64_t a, b, c, d, e;
} ut_event;

typedef struct ut_stats {
    uint64_t data_sent, data_sent_bytes, data_resent, feedback_sent, grants_sent, probes_sent, bursts_sent;
    uint64_t pieces_sent;
    uint64_t packets_received;
    uint64_t data_used;
    uint64_t data_duplicate;
    uint64_t data_late;
    uint64_t data_stashed;
    uint64_t data_refused;
    uint64_t data_pieces;
    uint64_t feedback_received;
    uint64_t feedback_old;
    uint64_t replayed;
    uint64_t unknown;
    uint64_t malformed;
    uint64_t bad_checksum;
    uint64_t stash_replayed;
    uint64_t bytes_used, bytes_late, bytes_duplicate, bytes_repaired;
    uint64_t replicas_compared, replicas_differ;
    uint64_t ops_complete, ops_partial, ops_insufficient, ops_failed;
    uint64_t lost_packets;
    uint64_t spurious_losses;
    uint64_t bad_submissions;
    uint64_t events_dropped;
    uint64_t receipts_dropped;
    uint64_t kernel_drops;
    uint64_t progress;
    uint64_t oldest_open_ns;
    uint64_t oldest_deadline_ns;
} ut_stats;

typedef struct ut_peer_stats {
    uint32_t up;
    uint32_t reserved;
    uint64_t srtt_ns;
    uint64_t sent_bytes, received_bytes, lost_bytes;
    uint64_t window_bytes;
    uint64_t base_rtt_ns;
    uint64_t ce_packets;
    uint64_t window_cuts;
    uint64_t sent_packets;
    uint64_t feedbacks_sent;
    uint64_t feedbacks_heard;
} ut_peer_stats;

/* ---- udp/driver.h ---- */

#define UT_ISA_PLAIN ...
#define UT_ISA_AVX2 ...
#define UT_ISA_AVX512 ...

typedef struct ut_driver ut_driver;

typedef struct ut_driver_config {
    const char *bind;
    uint16_t data_port;
    uint16_t feedback_port;
    uint32_t receive_buffer;
    uint32_t send_buffer;
    uint32_t packet_bytes;
    int32_t gso;
    int32_t gro;
    uint64_t seed;
    ut_driver *beside;
} ut_driver_config;

typedef struct ut_driver_info {
    uint16_t data_port, feedback_port;
    uint32_t packet_bytes;
    uint32_t receive_buffer, send_buffer;
    int32_t gso, gro;
    int32_t isa;
    int32_t event_fd;
} ut_driver_info;

typedef struct ut_driver_stats {
    ut_stats engine;
    uint64_t send_calls, receive_calls, polls;
    uint64_t send_blocked;
    uint64_t send_looks;
    uint64_t send_drain_rate;
    uint64_t send_queued_max;
    uint64_t send_errors;
    uint64_t send_errno;
    uint64_t receive_errors;
    uint64_t gro_batches;
    uint64_t cpu_ns;
    uint64_t thread_moves;
    uint64_t allocations;
} ut_driver_stats;

typedef struct ut_job_snapshot {
    uint32_t hosts;
    uint32_t reserved;
    uint64_t next_op_seq;
    ut_peer_stats peer[64];
} ut_job_snapshot;

typedef struct ut_driver_snapshot {
    ut_driver_info info;
    ut_driver_stats stats;
    ut_job_snapshot job[16];
} ut_driver_snapshot;

typedef struct ut_driver_seal {
    uint32_t suite;
    uint8_t secret[32];
    uint64_t generation;
    uint32_t lane;
    const char *job;
} ut_driver_seal;

const ut_cipher *ut_driver_cipher(void);
uint32_t ut_driver_suite(const char *name);
const char *ut_driver_suite_name(uint32_t suite);

ut_driver *ut_driver_open(const ut_driver_config *config, char *error, size_t error_len);
void ut_driver_close(ut_driver *driver);
void ut_driver_get_info(ut_driver *driver, ut_driver_info *ret);
void ut_driver_get_stats(ut_driver *driver, ut_driver_stats *ret);
void ut_driver_snapshot_take(ut_driver *driver, ut_driver_snapshot *ret);
const char *ut_driver_error(ut_driver *driver);
int ut_driver_job_add(ut_driver *driver, const ut_job_config *config);
int ut_driver_job_tune(ut_driver *driver, uint32_t job, const ut_job_options *options);
int ut_driver_job_remove(ut_driver *driver, uint32_t job);
int ut_driver_activate(ut_driver *driver, uint32_t job, uint64_t op_seq);
int ut_driver_peer_listen(ut_driver *driver, uint32_t job, uint32_t host, const ut_driver_seal *seal,
                          uint32_t *ret_cid);
int ut_driver_peer_connect(ut_driver *driver, uint32_t job, uint32_t host, const char *address, uint16_t data_port,
                           uint16_t feedback_port, uint32_t cid, const ut_driver_seal *seal);
int ut_driver_send_strange(ut_driver *d, uint32_t port, const char *address, uint16_t to, uint32_t bytes, uint32_t n);
int ut_driver_peers_blocked(ut_driver *driver, uint32_t job, uint64_t mask);
int ut_driver_peer_absent(ut_driver *driver, uint32_t job, uint32_t host);
int ut_driver_next_op_seq(ut_driver *driver, uint32_t job, uint64_t *ret);
int ut_driver_receipt(ut_driver *driver, uint32_t job, uint32_t back, ut_receipt *ret);
void *ut_driver_region_map(int fd, uint64_t bytes);
void ut_driver_region_unmap(void *region, uint64_t bytes);
int ut_driver_session_add(ut_driver *driver, uint32_t job, void *submissions, void *completions, void *arena,
                          uint64_t arena_bytes, int submit_fd, int complete_fd, uint64_t first_op_seq, uint32_t place);
int ut_driver_session_remove(ut_driver *driver, uint32_t session);
int ut_driver_poll_event(ut_driver *driver, ut_event *ret);
uint64_t ut_driver_now(void);
