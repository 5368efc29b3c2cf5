/* What shuffle-runner does, written by hand over MPI: every rank sends messages to ranks chosen at random, and each
 * is checked where it arrives. Its first argument is the bytes of a batch: 0 sends every message by itself, with one
 * MPI_Isend. Its last one says whether ranks send to themselves, too: `yes` or `no`. Built and started by `hg-perf shuffle`.
 *
 * A message is a head of 16 bytes (length, kind, source, destination) and a payload: number (8), origin (4), checksum
 * (4), time (8, where there is room), filling. As there, one message in 64 to each rank carries a time, and how long it was under way is
 * counted where it arrives; the others carry 0. What is under way is bounded: a rank has at most `window` batches on their way to each other one, and
 * each is told in halves of that what the receiver has worked off. An empty batch is the last one of its sender.
 */
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEAD = 16, PAYLOAD_MIN = 16, DATA = 1, DONE = 2, RECEIVES = 32, DONES = 16 };

static int me, ranks, with_self;
static size_t size, target, capacity;
static uint64_t window;

struct peer {
  char *slots; /* `window` batches */
  MPI_Request *under_way;
  uint64_t sent, worked_off; /* batches */
  size_t filled;             /* bytes in the one that loads */
  uint64_t next, expected;   /* numbers of messages: to it, and from it */
  uint64_t received;         /* batches */
  int has_ended;
};

static struct peer *peers;
static char *arrivals;
static MPI_Request receives[RECEIVES], dones[DONES];
static int next_receive, next_done, ended;
static uint64_t messages, wrong;

/* As shuffle-runner has it: words are multiplied in, but those of a long filling, which is the same in all messages of a rank,
 * are added, and so are the sums so far. */
enum { SHORT = 256, TIMED = 24 };
static char *filling;
static uint64_t filling_sum;

/* Times under way in nanoseconds, to one part in 128: how many of each. */
enum { SAMPLE = 64, DIGITS = 7, TIMES = 64 << DIGITS };
static uint64_t times[TIMES];

static uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void record(uint64_t time) {
  int bits = 64 - __builtin_clzll(time | 1), shift = bits > DIGITS + 1 ? bits - DIGITS - 1 : 0;
  times[((uint64_t)shift << DIGITS) + (time >> shift)]++;
}

/* Half of all messages that carried a time were under way for less. */
static double median_us(void) {
  uint64_t all[TIMES], count = 0, below = 0;
  MPI_Allreduce(times, all, TIMES, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  for (int at = 0; at < TIMES; at++) count += all[at];
  for (int at = 0; at < TIMES; at++) {
    int shift = at >> DIGITS > 1 ? (at >> DIGITS) - 1 : 0;
    below += all[at];
    if (2 * below >= count) return (double)(((uint64_t)at - ((uint64_t)shift << DIGITS)) << shift) / 1e3;
  }
  return 0;
}

static uint64_t mix(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
  return sum ^ sum >> 32;
}

static uint64_t mixed(const char *bytes, size_t length, uint64_t sum) {
  uint64_t word;
  sum = mix(length, sum);
  for (; length >= 8; bytes += 8, length -= 8) {
    memcpy(&word, bytes, 8);
    sum = mix(sum, word);
  }
  word = 0;
  memcpy(&word, bytes, length);
  return mix(sum, word);
}

static uint64_t sum_of(const char *bytes, size_t length) {
  typedef uint64_t words __attribute__((vector_size(64)));
  words all = {0}, sums = {0}, block;
  uint64_t sum = 0;
  for (; length >= sizeof block; bytes += sizeof block, length -= sizeof block) {
    memcpy(&block, bytes, sizeof block);
    all += block, sums += all;
  }
  for (int i = 0; i < 8; i++) sum = mix(mix(sum, all[i]), sums[i]);
  return mixed(bytes, length, sum);
}

static uint32_t checksum(const char *payload, int is_own) {
  size_t head = size < SHORT ? size : TIMED;
  uint64_t seed = head == size ? 0 : is_own ? filling_sum : sum_of(payload + head, size - head);
  return (uint32_t)mixed(payload + 16, head - 16, mixed(payload, 12, seed));
}

static void write_message(char *at, int to) {
  uint32_t head[4] = {(uint32_t)size, 0, (uint32_t)me, (uint32_t)to}, origin = (uint32_t)me;
  memcpy(at, head, HEAD);
  char *payload = at + HEAD;
  memcpy(payload, &peers[to].next, 8);
  memcpy(payload + 8, &origin, 4);
  if (size >= TIMED) {
    uint64_t time = peers[to].next % SAMPLE == 0 ? nanoseconds() : 0;
    memcpy(payload + 16, &time, 8);
    memcpy(payload + TIMED, filling, size - TIMED);
  } else {
    memcpy(payload + 16, filling, size - 16);
  }
  uint32_t sum = checksum(payload, 1);
  memcpy(payload + 12, &sum, 4);
  peers[to].next++;
}

static void take(int from, const char *bytes, size_t length) {
  struct peer *peer = &peers[from];
  for (; length >= HEAD + size; bytes += HEAD + size, length -= HEAD + size) {
    const char *payload = bytes + HEAD;
    uint64_t number;
    uint32_t origin, sum;
    memcpy(&number, payload, 8);
    memcpy(&origin, payload + 8, 4);
    memcpy(&sum, payload + 12, 4);
    wrong += number != peer->expected || origin != (uint32_t)from || sum != checksum(payload, 0);
    peer->expected = number + 1;
    messages++;
    if (number % SAMPLE == 0 && size >= TIMED) {
      uint64_t time, now = nanoseconds();
      memcpy(&time, payload + 16, 8);
      record(now > time ? now - time : 1);
    }
  }
  wrong += length != 0;
}

static void receive(int slot) {
  MPI_Irecv(arrivals + slot * capacity, (int)capacity, MPI_BYTE, MPI_ANY_SOURCE, DATA, MPI_COMM_WORLD, &receives[slot]);
}

static void receive_done(int slot) { MPI_Irecv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, DONE, MPI_COMM_WORLD, &dones[slot]); }

/* Takes what has come, in the order in which it came. Whether anything had. */
static int progress(void) {
  int any = 0, is_there;
  MPI_Status status;
  for (;;) {
    MPI_Test(&dones[next_done], &is_there, &status);
    if (!is_there) break;
    peers[status.MPI_SOURCE].worked_off += window / 2;
    receive_done(next_done);
    next_done = (next_done + 1) % DONES;
    any = 1;
  }
  for (;;) {
    MPI_Test(&receives[next_receive], &is_there, &status);
    if (!is_there) return any;
    int length, from = status.MPI_SOURCE;
    MPI_Get_count(&status, MPI_BYTE, &length);
    if (length == 0) {
      peers[from].has_ended = 1;
      ended++;
    }
    take(from, arrivals + next_receive * capacity, (size_t)length);
    receive(next_receive);
    next_receive = (next_receive + 1) % RECEIVES;
    if (++peers[from].received % (window / 2) == 0) {
      MPI_Request request;
      MPI_Isend(NULL, 0, MPI_BYTE, from, DONE, MPI_COMM_WORLD, &request);
      MPI_Request_free(&request);
    }
    any = 1;
  }
}

static void rest(void) {
  if (!progress()) sched_yield();
}

/* The slot of the batch that loads, once it is free. */
static char *slot_of(struct peer *peer) {
  uint64_t slot = peer->sent % window;
  if (peer->filled == 0) {
    while (peer->sent - peer->worked_off >= window) rest();
    for (int is_free = 0;;) {
      MPI_Test(&peer->under_way[slot], &is_free, MPI_STATUS_IGNORE);
      if (is_free) break;
      rest();
    }
  }
  return peer->slots + slot * capacity;
}

static void leave(int to) {
  struct peer *peer = &peers[to];
  uint64_t slot = peer->sent % window;
  MPI_Isend(slot_of(peer), (int)peer->filled, MPI_BYTE, to, DATA, MPI_COMM_WORLD, &peer->under_way[slot]);
  peer->sent++;
  peer->filled = 0;
}

static void send_to(int to) {
  struct peer *peer = &peers[to];
  if (to == me) {
    char message[HEAD + size];
    wrong += !with_self;
    write_message(message, to);
    take(me, message, HEAD + size);
    return;
  }
  char *slot = slot_of(peer);
  write_message(slot + peer->filled, to);
  peer->filled += HEAD + size;
  if (peer->filled >= target) leave(to);
}

/* Sends for so many seconds, and until all that was sent by anybody has come. Messages a second, of all ranks. */
static double run(double seconds, uint64_t *all_wrong) {
  uint64_t random = (uint64_t)me * 0x9e3779b97f4a7c15ull | 1, sent = 0;
  messages = wrong = 0;
  memset(times, 0, sizeof times);
  ended = 1;
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  do {
    for (int i = 0; i < 256; i++, sent++) {
      random ^= random >> 12, random ^= random << 25, random ^= random >> 27;
      unsigned many = (unsigned)(with_self ? ranks : ranks - 1);
      int to = (int)((unsigned __int128)(random * 0x2545f4914f6cdd1dull) * many >> 64);
      send_to(!with_self && to >= me ? to + 1 : to);
    }
    progress();
  } while (MPI_Wtime() - begin < seconds);
  for (int to = 0; to < ranks; to++) {
    if (to == me) continue;
    if (peers[to].filled > 0) leave(to);
    leave(to);
  }
  while (ended < ranks) rest();
  /* Every word of what was worked off as well: nothing is under way at the end. */
  for (int to = 0; to < ranks; to++) {
    while (to != me && peers[to].worked_off + window / 2 <= peers[to].sent) rest();
  }
  MPI_Barrier(MPI_COMM_WORLD);
  double own = MPI_Wtime() - begin, longest;
  uint64_t mine[3] = {sent, messages, wrong}, all[3];
  MPI_Allreduce(&own, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(mine, all, 3, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  *all_wrong = all[2] + (all[0] > all[1] ? all[0] - all[1] : all[1] - all[0]);
  return (double)all[1] / longest;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 5) return fprintf(stderr, "usage: direct BATCH SIZE SECONDS yes|no\n"), 2;
  target = strtoul(argv[1], NULL, 10);
  size = strtoul(argv[2], NULL, 10);
  double seconds = strtod(argv[3], NULL);
  with_self = strcmp(argv[4], "no") != 0;
  if (!with_self && ranks == 1) return fprintf(stderr, "a rank alone has nobody else to send to\n"), 2;
  if (size < PAYLOAD_MIN) return fprintf(stderr, "a payload has at least %d bytes\n", PAYLOAD_MIN), 2;
  filling = malloc(size);
  memset(filling, me, size);
  filling_sum = size > TIMED ? sum_of(filling, size - TIMED) : 0;
  window = target > 0 ? 8 : 1024;
  capacity = target + HEAD + size;
  peers = calloc((size_t)ranks, sizeof *peers);
  arrivals = malloc(RECEIVES * capacity);
  for (int to = 0; to < ranks; to++) {
    peers[to].slots = malloc(window * capacity);
    peers[to].under_way = malloc(window * sizeof(MPI_Request));
    for (uint64_t slot = 0; slot < window; slot++) peers[to].under_way[slot] = MPI_REQUEST_NULL;
  }
  for (int slot = 0; slot < RECEIVES; slot++) receive(slot);
  for (int slot = 0; slot < DONES; slot++) receive_done(slot);
  uint64_t all_wrong;
  run(seconds / 10, &all_wrong);
  double rate = run(seconds, &all_wrong);
  double latency = median_us();
  const char *self = with_self ? "true" : "false", *line = "{\"messages_per_s\":%.1f,\"latency_p50_us\":%.3f,\"with_self\":%s,\"wrong\":%llu}\n";
  if (me == 0) printf(line, rate, latency, self, (unsigned long long)all_wrong);
  /* What was asked for and will not come. */
  for (int slot = 0; slot < RECEIVES; slot++) MPI_Cancel(&receives[slot]), MPI_Wait(&receives[slot], MPI_STATUS_IGNORE);
  for (int slot = 0; slot < DONES; slot++) MPI_Cancel(&dones[slot]), MPI_Wait(&dones[slot], MPI_STATUS_IGNORE);
  for (int to = 0; to < ranks; to++) {
    for (uint64_t slot = 0; slot < window; slot++) MPI_Wait(&peers[to].under_way[slot], MPI_STATUS_IGNORE);
  }
  MPI_Finalize();
  return all_wrong != 0;
}
