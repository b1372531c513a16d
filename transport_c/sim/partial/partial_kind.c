/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/partial/partial.h"

const sim_kind sim_kind_partial = {.attach = sim_part_attach,
                                   .detach = sim_part_detach,
                                   .done = sim_part_done,
                                   .go_on = sim_part_go_on,
                                   .ready = sim_part_ready,
                                   .collect = sim_part_collect,
                                   .offer = sim_part_offer,
                                   .words = sim_part_words,
                                   .due = sim_part_due,
                                   .opens = sim_part_opens,
                                   .start = sim_part_start,
                                   .event = sim_part_event,
                                   .check = sim_part_check_end,
                                   .free = sim_part_free};
