/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is in a slot, from what each of its elements tells: the same ranks are in all of them, so elements that tell of
 * different groups of ranks complete each other, and elements that tell of the same group must say the same.
 */
#include "sim/sim.h"

/* The slot, if it holds the average of |n| ranks (0: a sum). Its groups are asked for one after the other. */
static bool read_as(const sim_slot *slot, sim_tell *tell, const void *context, uint32_t n, sim_held *ret,
                    sim_wrong *wrong)
{
    uint64_t said[SIM_RANKS];
    uint64_t known = 0, heard = 0; /* ranks; groups */
    *ret = (sim_held){0, sim_first(slot->ranks)};
    for (uint64_t i = slot->from; i < slot->to; i++) {
        sim_told told;
        bool good = tell(context, i, (const uint8_t *)slot->values + i * slot->bytes, n, &told);
        bool again = told.members && heard >> told.group & 1;
        if (good && again && said[told.group] != told.ranks) {
            told.reason = "holds other ranks than the elements of its slot before it";
            good = false;
        }
        if (!good) {
            if (i >= wrong->element)
                *wrong = (sim_wrong){i, told.reason};
            return false;
        }
        if (!told.members || again)
            continue;
        said[told.group] = told.ranks;
        heard |= sim_bit(told.group);
        known |= told.members;
        ret->ranks |= told.ranks;
    }
    ret->unsure &= ~known;
    return true;
}

bool sim_read_slot(const sim_slot *slot, sim_tell *tell, const void *context, sim_held *ret, sim_wrong *wrong)
{
    bool any = false;
    uint64_t always = UINT64_MAX, sometimes = 0;
    *wrong = (sim_wrong){slot->from, "holds nobody's contribution"};
    for (uint32_t n = slot->average; n <= (slot->average ? slot->ranks : 0); n++) {
        sim_held held;
        if (!read_as(slot, tell, context, n, &held, wrong))
            continue;
        if (slot->may_be_empty && !(held.ranks | held.unsure)) {
            *ret = held; /* an average of none */
            return true;
        }
        if (slot->average && (sim_ones(held.ranks) > n || sim_ones(held.ranks | held.unsure) < n))
            continue;
        any = true;
        always &= held.ranks;
        sometimes |= held.ranks | held.unsure;
    }
    *ret = (sim_held){always, sometimes & ~always};
    return any && (sometimes || slot->may_be_empty);
}
