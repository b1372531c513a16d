/* SPDX-License-Identifier: Apache-2.0
 *
 * What Python sees of ways around what lets no UDP through: of udp/relay.h, and of a driver. */

typedef struct ut_relay ut_relay;

typedef struct ut_addr {
    uint8_t len;
    uint8_t bytes[31];
} ut_addr;

typedef struct ut_relay_hello {
    uint32_t end, port;
    uint64_t number;
    uint8_t bytes[16];
    uint8_t mac[16];
    ut_addr from;
} ut_relay_hello;

typedef struct ut_relay_stats {
    uint64_t packets, bytes, refused, held, send_errors, drops, ends, ways;
} ut_relay_stats;

ut_relay *ut_relay_open(const char *bind, uint16_t port, uint64_t rate, struct ut_cap *cap, char *error,
                        size_t error_len);
void ut_relay_close(ut_relay *relay);
uint16_t ut_relay_port(ut_relay *relay);
int ut_relay_fd(ut_relay *relay);
void ut_relay_set_rate(ut_relay *relay, uint64_t rate);
void ut_relay_get_stats(ut_relay *relay, ut_relay_stats *ret);
bool ut_relay_poll_hello(ut_relay *relay, ut_relay_hello *ret);
int ut_relay_add_end(ut_relay *relay, const char *address);
int ut_relay_remove_end(ut_relay *relay, uint32_t end);
int ut_relay_place_end(ut_relay *relay, const ut_relay_hello *hello);
int ut_relay_add_way(ut_relay *relay, uint32_t from, uint32_t to, uint32_t cid);
int ut_relay_remove_way(ut_relay *relay, uint32_t way);
uint64_t ut_relay_way_bytes(ut_relay *relay, uint32_t way);
uint16_t ut_relay_end_port(ut_relay *relay, uint32_t end, uint32_t port, char *ret);

void ut_driver_set_cap(ut_driver *driver, uint64_t rate);
struct ut_cap *ut_driver_cap(ut_driver *driver);
int ut_driver_send_strange(ut_driver *d, uint32_t port, const char *address, uint16_t to, uint32_t bytes, uint32_t n);
int ut_driver_peers_blocked(ut_driver *driver, uint32_t job, uint64_t mask);
int ut_driver_peer_route(ut_driver *driver, uint32_t job, uint32_t host, const char *address, uint16_t data_port,
                         uint16_t feedback_port);
int ut_driver_peers_relayed(ut_driver *driver, uint32_t job, uint64_t mask, uint64_t relays);
int ut_driver_send_hello(ut_driver *driver, uint32_t port, const char *address, uint16_t to, const uint8_t *hello);
