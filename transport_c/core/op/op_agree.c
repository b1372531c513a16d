/* SPDX-License-Identifier: Apache-2.0
 *
 * Do all ranks mean the same op? What another host or rank says of it is held against what the op is here.
 */
#include "core/op/op.h"

void ut_op_desync(ut_job *j, ut_op *op, uint32_t host, unsigned field, uint64_t here, uint64_t there, ut_ns now)
{
    op->account.culprit = (uint16_t)host;
    op->account.field = (uint8_t)field;
    op->account.value_here = here;
    op->account.value_there = there;
    j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_DESYNC,
                                                .job = j->number,
                                                .session = UINT32_MAX,
                                                .host = host,
                                                .op_seq = op->seq,
                                                .a = field,
                                                .b = here,
                                                .c = there});
    ut_op_fail(j, op, UT_ERR_DESYNC, now);
}

/* Dense and quantised calls are the same call, in other forms. */
static unsigned apart_from_wire(unsigned collective)
{
    return collective == UT_ALLREDUCE_QUANT ? UT_ALLREDUCE : collective;
}

static unsigned wire_of(unsigned collective, const ut_alike *alike)
{
    return collective == UT_ALLREDUCE_QUANT ? alike->quant.forms : 0;
}

bool ut_op_agrees(ut_job *j, ut_op *op, uint32_t host, const ut_record *theirs, ut_ns now)
{
    enum { EVERY = UINT8_MAX };
    const ut_alike *here = &op->what.alike, *there = &theirs->alike;
    const struct {
        uint8_t of; /* enum ut_collective whose calls alone say it; EVERY: all do */
        uint8_t field;
        uint64_t here, there;
    } rows[] = {
        {EVERY, UT_FIELD_COLLECTIVE, apart_from_wire(op->what.told), apart_from_wire(theirs->collective)},
        {UT_BROADCAST, UT_FIELD_ROOT, here->root, there->root},
        {EVERY, UT_FIELD_DTYPE, op->what.dtype, theirs->dtype},
        {EVERY, UT_FIELD_REDOP, op->what.redop, theirs->redop},
        {EVERY, UT_FIELD_SPLIT, op->what.portion, theirs->portion},
        {EVERY, UT_FIELD_WIRE, wire_of(op->what.told, here), wire_of(theirs->collective, there)},
        {EVERY, UT_FIELD_COUNT, ut_op_told_count(&op->what), theirs->count},
        {UT_BARRIER, UT_FIELD_COUNT, here->note, there->note},
        {EVERY, UT_FIELD_MODE, op->what.mode, theirs->mode},
        {EVERY, UT_FIELD_AGREE, op->what.agree, theirs->agree},
        {EVERY, UT_FIELD_ALGORITHM, ut_job_algorithm(j), theirs->algorithm},
        {EVERY, UT_FIELD_DIVISOR, op->what.by_world, !!(theirs->submitted & UT_SUBMIT_WORLD)},
        {EVERY, UT_FIELD_WEIGHT, op->what.weighted, !!(theirs->submitted & UT_SUBMIT_WEIGHTED)},
        {UT_ALLREDUCE_SPARSE, UT_FIELD_GROUP, here->sparse.group, there->sparse.group},
        {UT_ALLREDUCE_SPARSE, UT_FIELD_FORM, here->sparse.form, there->sparse.form},
        {UT_ALLREDUCE_SPARSE, UT_FIELD_DOWN, here->sparse.down, there->sparse.down},
        {UT_ALLREDUCE_SPARSE, UT_FIELD_HINT, here->sparse.hint, there->sparse.hint},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((rows[i].of == EVERY || rows[i].of == op->what.told) && rows[i].here != rows[i].there) {
            ut_op_desync(j, op, host, rows[i].field, rows[i].here, rows[i].there, now);
            return false;
        }
    return true;
}

/* Those flags of a submission that all ranks must say alike. */
static uint8_t told_flags(unsigned collective)
{
    return UT_SUBMIT_WORLD | (collective == UT_ALLREDUCE_SPARSE ? 0 : UT_SUBMIT_WEIGHTED);
}

/* Ranks of one host that disagree are a desync too: the host itself is the culprit. */
bool ut_op_agrees_here(ut_job *j, ut_op *op, const ut_submission *s, ut_ns now)
{
    ut_record theirs = {.count = s->count,
                        .dtype = s->dtype,
                        .redop = s->redop,
                        .mode = s->mode,
                        .collective = s->collective,
                        .algorithm = (uint8_t)ut_job_algorithm(j),
                        .agree = s->flags & UT_SUBMIT_AGREE,
                        .submitted = s->flags & told_flags(s->collective),
                        .portion = s->portion,
                        .alike = ut_submission_alike(s)};
    return ut_op_agrees(j, op, j->config.self, &theirs, now);
}
