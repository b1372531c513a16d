/* SPDX-License-Identifier: Apache-2.0
 *
 * What is known of one op of a partial job, and by which options it runs.
 */
#include "sim/partial/partial.h"

#include <stdlib.h>

sim_part_op *sim_part_op_of(sim_world *w, uint32_t job, uint64_t op_seq)
{
    sim_part *part = w->job[job].part;
    uint64_t index = op_seq - w->plan.job[job].base;
    if (index >= 100000)
        sim_fail(w, "O13 slots", 0, "job %u is at op_seq %" PRIu64, job, op_seq);
    if (index >= part->room) {
        uint32_t room = part->room ? part->room : 64;
        while (room <= index)
            room *= 2;
        part->op = realloc(part->op, room * sizeof *part->op);
        assert(part->op);
        part->room = room;
    }
    for (; part->ops <= index; part->ops++) {
        sim_part_op *op = &part->op[part->ops];
        memset(op, 0, sizeof *op);
        memset(op->started, 0xff, sizeof op->started);
        op->first = UT_NEVER;
    }
    return &part->op[index];
}

bool sim_part_arrived(const sim_rank *r, uint32_t number, uint64_t op_seq)
{
    const sim_gift *gift = &r->giver->gift[number];
    bool asked = r->out && r->ask[0].slot == number; /* and waits for whichever comes */
    return (gift->arrived >= op_seq || asked) && (!gift->sticky || gift->takes <= 1);
}

uint32_t sim_part_picks(const ut_job_options *options, uint32_t world)
{
    if (options->policy == UT_POLICY_MAJORITY)
        return 1;
    return options->probes ? options->probes : UT_MIN2(2u, world);
}
