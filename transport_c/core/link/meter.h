/* SPDX-License-Identifier: Apache-2.0
 *
 * What a host's own link carries: the one meter of all jobs of an engine and, through ut_link, of all lanes of the
 * host.
 *
 * It counts what peers acknowledged, and what is known to be lost, within a pulse of 20 ms; a host's output dips for
 * shorter times. The best pulse is remembered and fades over seconds. The meter knows no jobs and no paths: whoever
 * owns those adds bytes, and says whether there was anything to carry.
 */
#ifndef UT_METER_H
#define UT_METER_H

#include "core/base/ut.h"

enum { UT_PULSE_NS = 20 * 1000 * 1000 };

/* All zero: nothing is known. */
typedef struct ut_meter {
    uint64_t acked; /* bytes in the pulse that runs, by all peers */
    uint64_t gone;  /* the same and those that were lost */
    uint64_t best;  /* bytes acknowledged in UT_PULSE_NS, the most of late */
    ut_ns since;    /* the pulse's start */
    bool begun;     /* something began to send with it, after a pause */
    bool dry;       /* there was a moment in it in which there was nothing to carry */
} ut_meter;

/* A pulse that has ended. */
typedef struct ut_pulse {
    uint64_t acked; /* bytes per UT_PULSE_NS */
    uint64_t gone;  /* bytes per second */
    uint64_t sent;  /* bytes acknowledged in the pulse, however long it was */
    ut_ns lasted;
    bool idle; /* the link had nothing to carry for a time in it, or just before */
} ut_pulse;

/* A pulse starts. |begun|: after a pause, which says nothing of the link. */
void ut_meter_begin(ut_meter *m, bool begun, ut_ns now);
/* The pulse has passed. |news|: a feedback just told what came through, so the pulse ends where its bytes do; without
 * it, a pulse is waited for twice as long. */
static inline bool ut_meter_due(const ut_meter *m, bool news, ut_ns now)
{
    return now - m->since >= (news ? 1 : 2) * (ut_ns)UT_PULSE_NS;
}
/* Ends the pulse, which is due, and takes what it says of the link; the next one starts. |full|: data waited in it. */
ut_pulse ut_meter_end(ut_meter *m, bool full, ut_ns now);

#endif
