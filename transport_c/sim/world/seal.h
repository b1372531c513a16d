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
/* The one that the engine of host |h| is given: a hostile host seals by itself what it has changed. */
const ut_cipher *sim_cipher_of(const sim_world *w, const sim_host *h);
/* Bytes that it adds to each datagram. */
uint32_t sim_seal_overhead(const sim_world *w);

/* By which keys a packet of the hostile host is sealed, and its number before any lie. */
typedef struct sim_sealing {
    ut_keys *keys;
    uint64_t number;
} sim_sealing;
/* Seals what its engine left open: the packet is as an honest host would have sent it. */
sim_sealing sim_seal_truth(sim_world *w, sim_packet *packet);
/* Seals |len| |bytes| that it sends instead, and adds the tag; another number in their header counts as one nearby. */
void sim_seal_lie(sim_world *w, uint32_t host, const sim_sealing *how, uint8_t *bytes, uint32_t len);

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
