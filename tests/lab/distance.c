/* SPDX-License-Identifier: Apache-2.0
 *
 * A switch with distance: what comes in at one port leaves at another after a delay, some of it never. A kernel without
 * netem cannot delay packets, so a process does.
 *
 *     distance PORT...      names of network devices, which it holds as raw packet sockets (AF_PACKET)
 *
 * It learns behind which port an Ethernet address is, as switches do; a frame for all, or for an address not seen yet,
 * goes to all other ports. The way out of a port is a link: frames leave it one after another at its rate, and what
 * would wait there for longer than its queue allows is dropped. Then all take the same delay, so frames stay in order
 * and a queue of each port is all that is needed; the process sleeps until the first frame of a queue is due. Loss
 * falls on each frame for itself, as one comes in.
 *
 * Each line on the standard input, of five numbers, sets how things are from then on:
 *     DELAY_US LOSS_PPM BYTES_PER_SECOND QUEUE_US SEED       one way; rate 0 is without bound; seed 0 leaves the draws
 * and is answered with what became of the frames so far: "sent lost crowded". The end of the input ends the process, so
 * it does not outlive whoever started it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    PORTS_MAX = 64,
    FRAME_MAX = 9216,
    BATCH = 64,                    /* frames that are taken from one port before the others have their turn */
    ADDRESSES = 8,                 /* learnt behind one port, the newest ones */
    RECEIVE_BUFFER_BYTES = 8 << 20 /* for the time in which this process does not run */
};

typedef uint64_t ns;

typedef struct frame {
    struct frame *next;
    ns due;
    size_t size;
    uint8_t bytes[];
} frame;

typedef struct port {
    int socket;
    uint8_t address[ADDRESSES][ETH_ALEN];
    unsigned addresses; /* ever learnt */
    frame *first, **last;
    ns free_at; /* when the link has sent all that it has taken */
    ns due;     /* of the last frame: a delay that was made shorter lets none overtake */
} port;

static port ports[PORTS_MAX];
static struct pollfd polled[PORTS_MAX + 1];
static int count;
static ns delay, queue;
static uint64_t loss_ppm, bytes_per_s, draws = 1;
static uint64_t sent, lost, crowded;

static ns now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (ns)t.tv_sec * 1000000000 + (ns)t.tv_nsec;
}

static void give_up(const char *what)
{
    fprintf(stderr, "distance: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* xorshift64* (S. Vigna, 2016) */
static uint64_t draw(void)
{
    draws ^= draws >> 12;
    draws ^= draws << 25;
    draws ^= draws >> 27;
    return draws * 0x2545f4914f6cdd1d;
}

static void open_port(port *p, const char *name)
{
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    const int on = 1, room = RECEIVE_BUFFER_BYTES;
    at.sll_ifindex = (int)if_nametoindex(name);
    p->last = &p->first;
    p->socket =
        socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); /* of no protocol: it hears nothing yet */
    if (at.sll_ifindex == 0 || p->socket < 0)
        give_up(name);
    if (setsockopt(p->socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
        setsockopt(p->socket, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) != 0 ||
        bind(p->socket, (struct sockaddr *)&at, sizeof at) != 0)
        give_up(name);
}

static bool is_behind(const port *p, const uint8_t *address)
{
    for (unsigned i = 0; i < ADDRESSES && i < p->addresses; i++)
        if (memcmp(p->address[i], address, ETH_ALEN) == 0)
            return true;
    return false;
}

static void learn(port *p, const uint8_t *address)
{
    if (!is_behind(p, address))
        memcpy(p->address[p->addresses++ % ADDRESSES], address, ETH_ALEN);
}

/* Puts a frame that came in at |at| on the way out of |p|. */
static void enqueue(port *p, const uint8_t *bytes, size_t size, ns at)
{
    const ns begin = p->free_at > at ? p->free_at : at;
    if (bytes_per_s && begin - at > queue) {
        crowded++;
        return;
    }
    frame *f = malloc(sizeof *f + size);
    if (!f)
        give_up("memory");
    p->free_at = begin + (bytes_per_s ? size * 1000000000 / bytes_per_s : 0);
    p->due = p->free_at + delay > p->due ? p->free_at + delay : p->due;
    *f = (frame){.due = p->due, .size = size};
    memcpy(f->bytes, bytes, size);
    *p->last = f;
    p->last = &f->next;
}

static void forward(port *from, const uint8_t *bytes, size_t size, ns at)
{
    const bool group = bytes[0] & 1;
    port *to = NULL;
    learn(from, bytes + ETH_ALEN);
    if (draw() % 1000000 < loss_ppm) {
        lost++;
        return;
    }
    for (port *p = ports; !group && !to && p < ports + count; p++)
        if (is_behind(p, bytes))
            to = p;
    for (port *p = ports; p < ports + count; p++)
        if (p != from && (!to || p == to))
            enqueue(p, bytes, size, at);
}

/* A device that is down tells so by an error, once; then there is nothing to hear. */
static void hear(port *p)
{
    static uint8_t bytes[FRAME_MAX];
    for (int i = 0; i < BATCH; i++) {
        const ssize_t size = recv(p->socket, bytes, sizeof bytes, 0);
        if (size < ETH_HLEN)
            return;
        forward(p, bytes, (size_t)size, now());
    }
}

/* Sends what is due; returns when the next frame is. What a device that is down does not take is gone. */
static ns flush(port *p, ns at)
{
    frame *f;
    while ((f = p->first) && f->due <= at) {
        sent += send(p->socket, f->bytes, f->size, MSG_DONTWAIT) == (ssize_t)f->size;
        p->first = f->next;
        if (!p->first)
            p->last = &p->first;
        free(f);
    }
    return f ? f->due : UINT64_MAX;
}

/* Whether there was a line of input. */
static bool obey(void)
{
    uint64_t delay_us, queue_us, seed;
    char line[256];
    if (!fgets(line, sizeof line, stdin))
        return false;
    if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &delay_us, &loss_ppm, &bytes_per_s,
               &queue_us, &seed) != 5) {
        fprintf(stderr, "distance: not five numbers: %s", line);
        exit(1);
    }
    delay = delay_us * 1000;
    queue = queue_us * 1000;
    draws = seed ? seed : draws;
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", sent, lost, crowded);
    return true;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc - 1 > PORTS_MAX) {
        fprintf(stderr, "usage: distance PORT..., 1 to %d of them\n", PORTS_MAX);
        return 2;
    }
    setvbuf(stdin, NULL, _IONBF, 0); /* poll() knows nothing of what stdio has read ahead */
    setvbuf(stdout, NULL, _IOLBF, 0);
    count = argc - 1;
    for (int i = 0; i < count; i++) {
        open_port(&ports[i], argv[i + 1]);
        polled[i] = (struct pollfd){.fd = ports[i].socket, .events = POLLIN};
    }
    polled[count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        ns next = UINT64_MAX;
        const ns at = now();
        for (int i = 0; i < count; i++) {
            const ns due = flush(&ports[i], at);
            next = due < next ? due : next;
        }
        const struct timespec left = {.tv_sec = (time_t)((next - at) / 1000000000),
                                      .tv_nsec = (long)((next - at) % 1000000000)};
        if (ppoll(polled, (nfds_t)count + 1, next == UINT64_MAX ? NULL : &left, NULL) < 0 && errno != EINTR)
            give_up("ppoll");
        for (int i = 0; i < count; i++)
            if (polled[i].revents)
                hear(&ports[i]);
        if (polled[count].revents && !obey())
            return 0;
    }
}
