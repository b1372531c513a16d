/* SPDX-License-Identifier: Apache-2.0
 *
 * One collective on one host.
 *
 * An op's life: FREE -> GATHERING (some local ranks have called) -> OPENING (their buffers are combined and encoded) ->
 * RUNNING (packets flow) -> ENDING (the result is finished and copied out) -> LINGERING (its trainers have their
 * receipts; peers may still need repairs of our shard) -> FREE. What passes over the whole bucket may take several
 * turns of the engine (work.h); the op then stays OPENING, RUNNING or ENDING meanwhile.
 *
 * Each op_*.c has the part of an op's life that its name says; the prototypes below stand under the name of their file.
 * gathering.c says whose contributions an op waits for. What slots hold is core/fold/, how contributions travel
 * core/codec/, who held an op up and what is told of it core/account/.
 */
#ifndef UT_OP_H
#define UT_OP_H

#include "core/base/calls.h"
#include "core/op/job.h"
#include "core/op/variant.h"
#include "core/wire/run.h"

/* Its schedule and transfers hold, and peers may still be sent something of it. */
static inline bool ut_op_sends(const ut_op *op)
{
    return op->state >= UT_OP_RUNNING;
}

/* Nothing more is wanted of peers: it has its result, or there is none. */
static inline bool ut_op_is_over(const ut_op *op)
{
    return op->state == UT_OP_FREE || op->state >= UT_OP_ENDING;
}

/* The newest record of |host| if it is of this op, and the op has started there; else NULL. */
static inline const ut_record *ut_op_record_of(const ut_job *j, const ut_op *op, uint32_t host)
{
    const ut_record *r = ut_ledger_record(&j->ledger, host, op->seq);
    uint8_t started = j->gathering->record_flags;
    return r && (r->flags & started) == started ? r : NULL;
}

/* op.c */
/* The place of op |s|->op_seq, which is free, holds that op from now on: GATHERING, with the shape that |s| says. */
ut_op *ut_op_gather(ut_job *j, const ut_submission *s, ut_ns now);
/* Holds what another local rank says of the op against what the op is, as ut_op_agrees does. */
bool ut_op_agrees_here(ut_job *j, ut_op *op, const ut_submission *s, ut_ns now);
/* The host has gone on without this call: it is to be answered by ut_op_answer_late. */
bool ut_op_is_late(const ut_job *j, const ut_submission *s);
/* A local rank's call that is not late; the submission was checked. |session| belongs to the job. */
void ut_op_call(ut_job *j, uint32_t session, const ut_submission *s, const uint8_t *src, uint8_t *dst, ut_ns now);
/* True if this submission, which waits |since| then, can be taken now. May end a lingering op to make room. */
bool ut_op_has_room(ut_job *j, const ut_submission *s, ut_ns since, ut_ns now);
/* When it can be at the latest; UT_NEVER if only the end of an open op makes room. */
ut_ns ut_op_room_at(const ut_job *j, const ut_submission *s, ut_ns since);
/* The only ranks of this host that could have called op |seq| were refused: peers need not wait for us. */
void ut_op_skip(ut_job *j, uint64_t seq, ut_ns now);
/* The host goes on without this rank's call: it gets its own value back, which lies in its dst by now, or a reason in
 * reliable mode. */
void ut_op_answer_late(ut_job *j, uint32_t session, const ut_submission *s, ut_ns now);
/* If a hold is over, lets go what it kept from opening, and returns true. */
bool ut_job_hold_over(ut_job *j, ut_ns now);
/* For ut_gathering.gone of ordinary jobs. */
void ut_op_session_gone(ut_job *j, uint32_t session, ut_ns now);
void ut_op_host_absent(ut_job *j, uint32_t host, ut_ns now);
/* op_agree.c */
/* Ends the op with UT_ERR_DESYNC: ranks of |host| said |there| for |field|, others |here|. */
void ut_op_desync(ut_job *j, ut_op *op, uint32_t host, unsigned field, uint64_t here, uint64_t there, ut_ns now);
/* Holds what |host| says of the op against ours. False: they differ, and the op has failed with UT_ERR_DESYNC. */
bool ut_op_agrees(ut_job *j, ut_op *op, uint32_t host, const ut_record *theirs, ut_ns now);
/* Time passes. */
void ut_op_tick(ut_job *j, ut_op *op, ut_ns now);
ut_ns ut_op_next_wake(const ut_job *j, const ut_op *op);

/* Nothing but the masks of |host|'s shard is missing: it must be asked, for it may think that all is said. */
static inline bool ut_op_waits_for_masks(const ut_op *op, uint32_t host)
{
    return op->state == UT_OP_RUNNING && op->time.stage_end[1] != UT_END_NONE &&
           (op->fold.result.short_hosts & ~op->peers.peer_masks & ~op->peers.masks_waived & ut_bit(host));
}

/* op_open.c */
/* All ranks of this host that will call have: the op is OPENING from here on. */
void ut_op_open(ut_job *j, ut_op *op, ut_ns now);
/* An OPENING op goes on. */
void ut_op_open_on(ut_job *j, ut_op *op, ut_ns now);

/* Goes on with what passes over the whole bucket, as far as the turn allows. */
void ut_op_work_on(ut_job *j, ut_op *op, ut_ns now);
static inline bool ut_op_has_work(const ut_op *op)
{
    return op->state == UT_OP_OPENING || op->state == UT_OP_ENDING ||
           (op->state == UT_OP_RUNNING && op->work.unsettled);
}
/* An OPENING op begins its work once more. */
static inline void ut_op_restart(ut_op *op)
{
    op->work = (ut_progress){0};
}
/* The op has come to the next step of its work. */
static inline void ut_op_next_step(ut_op *op)
{
    op->work.step++;
    op->work.index = 0;
    op->work.at = 0;
}

/* op_time.c */
enum { UT_ADAPTIVE_MAX_S = 30 }; /* an adaptive deadline is put off no further, unless the caller says so */
/* A local rank's call: what it says of the deadline. */
void ut_op_time_call(const ut_job *j, ut_op *op, const ut_submission *s, bool first);
/* The op opens: where its epoch came since the call, the options of that bound the op. */
void ut_op_time_epoch(const ut_job *j, ut_op *op);
void ut_op_time_gather(const ut_job *j, ut_op *op); /* and so, how long the others of this host are waited for */
void ut_op_time_open(ut_job *j, ut_op *op, ut_ns now);
/* Another host was heard to have called the op, which runs here; or, not |called|, it has gone. */
void ut_op_time_host(const ut_job *j, ut_op *op, bool called, ut_ns now);
/* When the present stage ends if nothing more comes, and how (enum ut_stage_end). For a RUNNING op. */
ut_ns ut_op_stage_due(const ut_op *op, unsigned *ret_how);
/* What time asks of a RUNNING op. IS_CUT: its stage ends, |ret_how| says why (enum ut_stage_end); IS_LAST: the op ends
 * with what it has; FAILS: it must not end so. */
enum ut_stage_over { UT_STAGE_GOES_ON, UT_STAGE_IS_CUT, UT_STAGE_IS_LAST, UT_STAGE_FAILS };
enum ut_stage_over ut_op_stage_over(const ut_job *j, ut_op *op, ut_ns now, unsigned *ret_how);
/* |host| sends nothing more of stage 1: what has not come is lost, or just behind this word. */
void ut_op_time_sent(ut_op *op, uint32_t host, ut_ns now);
/* A packet that was new came for |t|. */
void ut_op_packet_time(ut_job *j, ut_op *op, uint32_t host, const ut_data *h, ut_transfer *t, ut_ns now);
/* |stage| (0 or 1) has ended. */
void ut_op_stage_measured(ut_job *j, ut_op *op, unsigned stage);
/* True if a lost slot for |host| is worth sending again, behind |slots| others. */
bool ut_op_repair_in_time(const ut_job *j, const ut_op *op, uint32_t host, uint32_t slots, ut_ns now);

/* op_end.c */
/* When the next round of stage 1 gives up, where sums are forwarded; UT_NEVER for no more. */
ut_ns ut_op_round_cut_at(const ut_op *op);
void ut_op_cut_round(ut_job *j, ut_op *op, ut_ns now);
/* A RUNNING op's stage gives up on what is missing, |how| says why; the op ends with what it has. */
void ut_op_cut(ut_job *j, ut_op *op, unsigned how, ut_ns now);
void ut_op_deadline(ut_job *j, ut_op *op, ut_ns now);
/* An ENDING op goes on. */
void ut_op_end_on(ut_job *j, ut_op *op, ut_ns now);
/* The call into whose buffer an ENDING op was writing has gone, or one before it: what was written is written again. */
void ut_op_end_again(ut_op *op);
/* Looks whether anything is finished, and finishes it. Cheap when nothing is. */
void ut_op_check(ut_job *j, ut_op *op, ut_ns now);
void ut_op_fail(ut_job *j, ut_op *op, int error, ut_ns now);

/* op_incast.c */
void ut_job_incast_init(ut_job *j);
/* The factor that this host advertises: its option, or the dynamic factor. */
uint8_t ut_job_incast_own(const ut_job *j);
/* The factor in force: the least that any host that is up advertises, at least 1. */
uint8_t ut_job_incast(const ut_job *j);
/* An op has ended here: the dynamic factor follows what it lacked. */
void ut_op_incast_learn(ut_job *j, const ut_op *op);
void ut_job_incast_tick(ut_job *j, ut_ns now); /* gives full credit to those whose turn it is */
ut_ns ut_job_incast_next_wake(const ut_job *j);

/* op_credit.c */
ut_ns ut_job_patience(const ut_conn *c); /* how long a sender that has credit may send nothing and still count */
/* What each peer that is up has outstanding and may want, one inlet each, owned by its path. Returns their number.
 * |look_at|, when to say a grant again, and |silent|, when one of them stops counting, are lowered to it. */
uint32_t ut_job_inlets(ut_job *j, ut_ns now, ut_inlet *ret, ut_ns *look_at, ut_ns *silent);

/* op_recv.c */
enum ut_taken {
    UT_TAKEN_USED,
    UT_TAKEN_DUPLICATE,
    UT_TAKEN_LATE,
    UT_TAKEN_REFUSED,
    UT_TAKEN_EARLY,
    UT_TAKEN_AHEAD, /* of an op for which nothing is kept yet: not acknowledged, so that its sender repeats it */
    UT_TAKEN_PARITY
};
/* Counts one data packet of |payload| bytes in its class. */
void ut_taken_count(ut_stats *stats, enum ut_taken taken, size_t payload);
/* A data packet from |host| whose path checks are done. EARLY: keep it, its op is not open. */
enum ut_taken ut_op_data(ut_job *j, uint32_t host, const ut_data *h, ut_ns now);
/* So many packets of |r|, from the first on, were used, none of which is a repair; the others are to be given singly.
 */
uint32_t ut_op_data_run(ut_job *j, uint32_t host, const ut_data_run *r, ut_ns now);
/* The op's half of a feedback speaks of ops to which no peer can have come, or takes back words. Changes nothing. */
bool ut_op_feedback_is_wild(const ut_job *j, uint32_t host, const ut_feedback *f);
/* The op's half of a feedback that is not wild: records and floors. */
void ut_op_feedback(ut_job *j, uint32_t host, const ut_feedback *f, ut_ns now);
/* Applies what |host|'s stored record says about |op|. */
void ut_op_record(ut_job *j, ut_op *op, uint32_t host, ut_ns now);
/* Looks again at what |host| sent early: an op has opened. */
void ut_op_unstash(ut_job *j, uint32_t host, ut_ns now);

/* op_send.c */
/* Something is still to come from |host| in |stage| (0 or 1). */
bool ut_op_receives(const ut_op *op, unsigned stage, uint32_t host);
/* Packets that a running op still waits for in the stage that lacks fewest of them; 0 if it waits for none. */
uint64_t ut_op_awaited(const ut_op *op);
/* Fills a burst with data: repairs of stage 2, those of stage 1, then fresh slots by op and schedule. */
bool ut_op_output(ut_job *j, ut_ns now, ut_burst *burst);
/* Adds what this host says of the job's ops: op records and floors. |asks|: an answer is wanted. */
void ut_op_fill_feedback(ut_job *j, uint32_t host, bool asks, ut_feedback *ret, ut_ns now);
/* What was said to |host| is said again if that is due, or when it will be due is noted (`conn.say.again`). */
void ut_op_say_again(ut_job *j, uint32_t host, ut_ns now);
/* ut_sent_fn; context is a ut_fate. */
typedef struct ut_fate {
    ut_job *job;
    uint32_t host;
    ut_ns now;
} ut_fate;
void ut_op_fate(void *context, const ut_sent *sent, uint32_t packets, bool acked);
/* All sends to this peer are acknowledged, given up or closed; of |stage| 1 or 2 alone, or with 0 of both. */
bool ut_op_sent_all(const ut_op *op, uint32_t host, unsigned stage);

/* op_linger.c */
/* A member of the op's epoch that is up has not got all of what this host holds of the op, or has not seen its record.
 */
bool ut_op_still_needed(const ut_job *j, const ut_op *op);
/* A LINGERING op becomes FREE if its time is over or nobody needs it. */
void ut_op_linger(ut_job *j, ut_op *op, ut_ns now);

/* The op as its codec sees it. */
static inline ut_codec_op ut_op_seen_by_codec(ut_job *j, ut_op *op)
{
    return (ut_codec_op){.seq = op->seq,
                         .hosts = j->config.hosts,
                         .self = j->config.self,
                         .world = j->world,
                         .payload = j->payload,
                         .ranks = op->what.weighted ? 1 : op->local.weight,
                         .what = &op->what,
                         .plan = &op->plan,
                         .memory = &op->memory,
                         .variant = op->variant_memory,
                         .turn = j->host->turn,
                         .way = &op->work};
}

/* op_receipt.c: hosts that have started the op, by their newest record. */
uint64_t ut_op_started(const ut_job *j, const ut_op *op);
void ut_op_receipt(const ut_job *j, const ut_op *op, ut_ns now, ut_receipt *ret);
/* The op has ended here with a result: its digest is final, and is held against those that were heard. */
void ut_op_replica_ended(ut_job *j, ut_op *op);
/* |host| tells its digest of some op. */
void ut_op_replica_heard(ut_job *j, uint32_t host, const ut_record *theirs);

/* By which a transfer is known on its path: that of a receive from a host, or of a send to it. */
static inline ut_parity_name ut_op_parity_name(const ut_op *op, const ut_step *s)
{
    return (ut_parity_name){op->seq, (uint32_t)(s - op->plan.schedule.step)};
}

#endif
