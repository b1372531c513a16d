/* SPDX-License-Identifier: Apache-2.0
 *
 * What all hosts of a job must hold alike in an op: which hosts are in it, which of them own a shard, and the options
 * that decide how contributions travel. The daemons agree on it, one epoch after the other, and hand each to the core
 * with the op from which it holds. The core believes its own daemon, and nothing that a peer says of epochs.
 *
 * An op takes its epoch when it opens and keeps a copy until it is over, whatever comes meanwhile. Hosts may be handed
 * an epoch at different times, or different epochs. So data names the epoch of the op that it is sent for by the tag,
 * the low half of which is in every packet, and a record names it by the whole id (op_recv.c). What was made under
 * another epoch is refused: then bytes are missing, and no value is wrong.
 */
#ifndef UT_EPOCH_H
#define UT_EPOCH_H

#include "core/base/options.h"

enum {
    UT_EPOCH_OPTIONS = 4,
    /* Another host may have opened an op that this one has yet to open, under an epoch before the newest. Hosts are a
     * few ops apart, and each epoch holds from an op that no host had opened. */
    UT_EPOCHS_KEPT = 16,
};

/* What else is agreed on, by what hosts measure: places in ut_epoch.option. Each is a number from 0 to the `most` that
 * the job gave. */
enum ut_epoch_option {
    UT_EPOCH_CODEC, /* how contributions travel: enum ut_codec_id */
};

/* A slot is a number that a host has while it is a member; in a job whose hosts are fixed it is the host's index. */
typedef struct ut_epoch {
    uint64_t number;          /* one more than its parent's; 0: what a job begins with */
    uint64_t id;              /* names all of it; of number 0: its options, 0 if all of them are 0 */
    uint64_t from;            /* op_seq from which it holds */
    uint64_t members, owners; /* masks of slots; owners are members that own a shard */
    uint16_t option[UT_EPOCH_OPTIONS];
    ut_job_options options; /* as people ask for them: ut_epochs_keep_fixed */
    uint32_t world;         /* ranks that a whole result has: of the job, or where hosts come and go, of the members */
    uint8_t ranks_of[UT_HOSTS_MAX]; /* on each host, member or not; all 0: as the job says */
} ut_epoch;

typedef struct ut_epochs {
    ut_epoch whole;                /* number 0 and id 0: all hosts, no option. Ops that need every host run under it */
    ut_epoch kept[UT_EPOCHS_KEPT]; /* the newest first; each ends where the one before it in this order begins */
    uint16_t most[UT_EPOCH_OPTIONS]; /* the largest value of each option */
    uint64_t on_paths;               /* number of the epoch whose options the paths have */
    uint64_t held_from;              /* ops from this one on are not opened ...; UINT64_MAX: there is no hold */
    ut_ns held_until;                /* ... before then */
} ut_epochs;

/* The job begins with |first|, of which all hosts are members and owners. Its number, its id, and the op from which it
 * holds are not read. */
void ut_epochs_init(ut_epochs *e, const ut_epoch *first, const uint16_t most[UT_EPOCH_OPTIONS]);
/* Takes |given|, which holds from the next op on that opens here, |next_open|, if it is to hold from an earlier one.
 * Ops before that keep what they have. It ends a hold that has an end: one without is for a job with too few hosts, and
 * only another hold takes its place.
 * UT_ERR_SEQUENCE, and nothing is changed: |given| is neither newer than the newest nor the newest again.
 * UT_ERR_ARGUMENT: it cannot be one of this job. */
int ut_epochs_take(ut_epochs *e, const ut_epoch *given, uint64_t next_open);
/* Takes over into |given| what a running job cannot change of the options that it began with; of options that are all
 * 0, everything. */
void ut_epochs_keep_fixed(const ut_epochs *e, ut_epoch *given);
/* Returns what holds in op |op_seq|, as far as this host knows. */
static inline const ut_epoch *ut_epoch_at(const ut_epochs *e, uint64_t op_seq)
{
    unsigned at = 0;
    while (op_seq < e->kept[at].from && at < UT_EPOCHS_KEPT - 1)
        at++;
    assert(e->kept[at].owners);
    return &e->kept[at];
}

/* Ops from |op_seq| on are not opened before |until|. It takes the place of an earlier hold. */
static inline void ut_epochs_hold(ut_epochs *e, uint64_t op_seq, ut_ns until)
{
    e->held_from = op_seq;
    e->held_until = until;
}
/* Returns when the hold is over that is in force; UT_NEVER: there is none, or it has no end. */
static inline ut_ns ut_epochs_hold_ends(const ut_epochs *e)
{
    return e->held_from == UINT64_MAX ? UT_NEVER : e->held_until;
}
/* Returns when op |op_seq| may be opened; 0: at once. */
static inline ut_ns ut_epochs_open_at(const ut_epochs *e, uint64_t op_seq)
{
    return op_seq < e->held_from ? 0 : e->held_until;
}

#endif
