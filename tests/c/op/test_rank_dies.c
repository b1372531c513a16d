/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that dies while an op of its host runs: the op goes on for the host's other ranks, and each gets exactly one
 * receipt, whatever was called, by which mode, and though it be nothing that they give.
 */
#include "crew.h"

static ut_submission called(uint8_t collective, uint8_t mode, uint32_t count)
{
    ut_submission s = words(0, 0);
    bool sparse = collective == UT_ALLREDUCE_SPARSE;
    s.collective = collective;
    s.mode = mode;
    s.dtype = collective == UT_BARRIER ? UT_BYTES : UT_FLOAT32;
    s.redop = collective == UT_BARRIER ? 0 : UT_SUM;
    s.count = collective == UT_BARRIER ? 0 : count;
    if (collective == UT_BARRIER)
        s.alike.note = 7;
    else
        s.alike.sparse.group = sparse ? 1 : 0;
    return s;
}

/* Host 0 has two ranks, of which one dies; host 1's rank calls only then. */
static void die_in_op(const ut_submission *s)
{
    begin(2, 2, (ut_job_options){0});
    for (uint32_t p = 0; p < 2; p++)
        submit(0, p, *s);
    run(UT_MS);
    ut_engine_session_remove(hosts[0].engine, trainers[0][1].session, now);
    for (uint32_t p = 0; p < 2; p++)
        submit(1, p, *s);
    run(2 * UT_SECOND);
    for (uint32_t h = 0; h < 2; h++) {
        const ut_receipt r = receipt_at(h, 0);
        CHECK_MSG(r.status == UT_COMPLETE, "collective %u, mode %u, %u elements, host %u: status %u", s->collective,
                  s->mode, (unsigned)s->count, h, r.status);
    }
    end();
}

static void op__goes_on_for_the_other_ranks(void)
{
    static const uint8_t collectives[] = {UT_ALLREDUCE, UT_ALLREDUCE_SPARSE, UT_BARRIER};
    for (size_t c = 0; c < sizeof collectives; c++)
        for (uint8_t mode = UT_BOUNDED; mode < UT_MODES_END; mode++)
            for (uint32_t count = 0; count <= ELEMENTS; count += ELEMENTS) {
                if (collectives[c] == UT_BARRIER && mode != UT_RELIABLE)
                    continue;
                const ut_submission s = called(collectives[c], mode, count);
                die_in_op(&s);
            }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(op__goes_on_for_the_other_ranks);
    return check_end();
}
