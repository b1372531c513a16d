/* SPDX-License-Identifier: Apache-2.0
 *
 * How far a coded job is, by what other hosts say. Their floors say which steps are over there; one of them may lie.
 */
#include "core/base/bits.h"
#include "ext/coded/coded.h"

/* What the hosts |among| say of |fact|, as far as it is believed: one alone up to op |alone|. */
static uint64_t believed(const ut_job *j, enum ut_fact fact, uint64_t among, uint64_t alone)
{
    return ut_ledger_confirmed(&j->ledger, fact, among, ut_bits_count(ut_job_up(j)) <= 1, alone);
}

/* Below which op every op is over, by what the hosts |among| say. One host can be alone with the result of the very
 * next step, for the one after that needs the shards of all. In a tree it is the root that has every result. */
static uint64_t over_among(const ut_job *j, uint64_t among)
{
    uint64_t over = believed(j, UT_FACT_ENDED, among, ut_step_first_op(ut_coded_of(j)->at + 1));
    if (ut_coded_of(j)->sums.children && ut_bits_have(among, 0))
        over = UT_MAX2(over, j->ledger.row[0].rx_floor);
    return UT_MIN2(over, UT_STEP_NUMBERS);
}

uint64_t ut_coded_over_elsewhere(const ut_job *j)
{
    return over_among(j, ut_bits_below(j->config.hosts) & ~ut_bit(j->config.self));
}

bool ut_coded_was_over(const ut_job *j, const ut_op *op)
{
    uint64_t out = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        out |= h != j->config.self && !ut_op_record_of(j, op, h) ? ut_bit(h) : 0;
    return out && over_among(j, out) >= ut_step_first_op((uint64_t)op->what.step + 1);
}

bool ut_coded_reaches(const ut_job *j, uint32_t host, uint64_t seq)
{
    uint64_t others = ut_bits_below(j->config.hosts) & ~ut_bit(j->config.self);
    uint64_t reach = believed(j, UT_FACT_SPOKEN, others, ut_step_first_op(ut_coded_of(j)->at + 2));
    return seq < reach || (ut_coded_of(j)->sums.children && host == 0);
}
