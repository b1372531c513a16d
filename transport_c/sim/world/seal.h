/* SPDX-License-Identifier: Apache-2.0
 *
 * Worlds whose packets are sealed: the secrets that hosts exchange, the keys of each path, and an AEAD that is none.
 */
#ifndef SIM_SEAL_H
#define SIM_SEAL_H

#include "cipher/keys.h"
#include "sim/sim.h"

enum { SIM_SUITE_TOY = UT_SUITES_END /* the simulator's own, for most worlds */ };

/* Draws whether the world is sealed, with what, and how soon keys grow old. */
void sim_plan_draw_seal(sim_plan *p, uint64_t seed);
/* The cipher of the world's jobs; NULL: none. */
const ut_cipher *sim_cipher(const sim_world *w);
/* Bytes that it adds to each datagram. */
uint32_t sim_seal_overhead(const sim_world *w);

/* Host |h| opens its part of a job of |hosts| hosts, or closes it. */
void sim_seal_open_seat(sim_world *w, sim_host *h, uint32_t job, uint32_t hosts);
void sim_seal_close_seat(sim_world *w, sim_host *h, uint32_t job);
/* Host |h| listens to |host| under |cid|: draws the secret of that direction, and returns it for the other one. */
uint64_t sim_seal_listen(sim_world *w, sim_host *h, uint32_t job, uint32_t host, uint32_t cid);
/* Host |h| was told it. */
void sim_seal_connect(sim_world *w, sim_host *h, uint32_t job, uint32_t host, uint32_t cid, uint64_t secret);
/* Whether |host| is still listened to under |cid|. */
bool sim_seal_listens(const sim_host *h, uint32_t job, uint32_t host, uint32_t cid);
/* Draws another secret for that direction while the path stands; 0: the one before it is not in use yet. */
uint64_t sim_seal_draw_again(sim_world *w, sim_host *h, uint32_t job, uint32_t host, uint32_t cid);
/* Host |h| was told it, perhaps of a path that is no more. */
void sim_seal_drawn_again(sim_world *w, sim_host *h, uint32_t job, uint32_t host, uint32_t cid, uint64_t secret);
void sim_seal_free(sim_world *w);

#endif
