/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of the network inside one process (lan.h), and of the engines in it (core/face/engine.h): read by
 * build_simulator.py, never included. The structs are those of engine.cdef.h.
 */

#define UT_LAN_SURE ...

typedef struct ut_engine ut_engine;
typedef struct ut_session_memory {
    ut_submission_ring *submissions;
    ut_completion_ring *completions;
    uint8_t *arena;
    uint64_t arena_bytes;
    uint32_t place;
    uint32_t reserved;
} ut_session_memory;

int ut_engine_peer_listen(ut_engine *engine, uint32_t job, uint32_t host, uint32_t *ret_cid);
void ut_engine_peer_absent(ut_engine *engine, uint32_t job, uint32_t host, uint64_t now);
int ut_engine_epoch(ut_engine *engine, uint32_t job, const ut_epoch *epoch, uint64_t now);
int ut_engine_activate(ut_engine *engine, uint32_t job, uint64_t op_seq, uint64_t now);
uint64_t ut_engine_next_op_seq(const ut_engine *engine, uint32_t job);
int ut_engine_session_add(ut_engine *engine, uint32_t job, const ut_session_memory *memory, uint64_t first_op_seq,
                          uint32_t *ret_session);
void ut_engine_session_remove(ut_engine *engine, uint32_t session, uint64_t now);
bool ut_engine_has_let_go(const ut_engine *engine, uint32_t job);
bool ut_engine_poll_event(ut_engine *engine, ut_event *ret);

typedef struct ut_lan ut_lan;
typedef struct ut_lan_path {
    uint64_t delay;
    uint32_t lost;
    uint32_t reserved;
} ut_lan_path;

ut_lan *ut_lan_open(uint32_t hosts, uint64_t seed);
void ut_lan_close(ut_lan *lan);
ut_engine *ut_lan_engine(ut_lan *lan, uint32_t host);
int ut_lan_job_add(ut_lan *lan, uint32_t host, uint32_t job, const ut_job_config *config);
void ut_lan_job_remove(ut_lan *lan, uint32_t host, uint32_t job, uint64_t now);
int ut_lan_connect(ut_lan *lan, uint32_t job, uint32_t from, uint32_t to, uint32_t cid, uint64_t now);
void ut_lan_set_path(ut_lan *lan, uint32_t from, uint32_t to, const ut_lan_path *path);
void ut_lan_ring(ut_lan *lan, uint32_t host, uint32_t session);
void ut_lan_touched(ut_lan *lan, uint32_t host);
uint64_t ut_lan_run(ut_lan *lan, uint64_t now);
uint64_t ut_lan_now(const ut_lan *lan);
uint64_t ut_lan_take_wakeups(ut_lan *lan, uint32_t host);
