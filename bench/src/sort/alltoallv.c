/* The sample sort of shuffle/examples/sort.rs over MPI_Alltoallv: the same keys, samples, ranges and local sort, and the
 * same checks of the result. Its argument is the number of keys. Built and started by `hg-perf sort`. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 1024 };

static int me, ranks;

static uint64_t scrambled(uint64_t number) {
  uint64_t key = number * 0x9e3779b97f4a7c15ull + 0x9e3779b97f4a7c15ull;
  key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ key >> 27) * 0x94d049bb133111ebull;
  return key ^ key >> 31;
}

/* By eleven bits at a time, the lowest first. What was allocated for `keys` is freed, and the sorted ones are returned. */
static uint64_t *sort(uint64_t *keys, size_t length) {
  uint64_t *other = malloc((length + 1) * sizeof *other);
  for (int shift = 0; shift < 64; shift += 11) {
    size_t starts[2049] = {0};
    for (size_t i = 0; i < length; i++) starts[(keys[i] >> shift & 2047) + 1]++;
    for (int at = 1; at < 2049; at++) starts[at] += starts[at - 1];
    for (size_t i = 0; i < length; i++) other[starts[keys[i] >> shift & 2047]++] = keys[i];
    uint64_t *swap = keys;
    keys = other, other = swap;
  }
  free(other);
  return keys;
}

static int compare(const void *one, const void *other) {
  uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
  return (a > b) - (a < b);
}

/* Where the range of each rank but the first begins. */
static void choose_bounds(const uint64_t *own, size_t length, uint64_t *bounds) {
  size_t step = length / SAMPLES > 0 ? length / SAMPLES : 1;
  int mine = (int)((length + step - 1) / step), *counts = calloc(ranks, sizeof *counts), *places = calloc(ranks, sizeof *places);
  MPI_Allgather(&mine, 1, MPI_INT, counts, 1, MPI_INT, MPI_COMM_WORLD);
  int all = 0;
  for (int rank = 0; rank < ranks; rank++) places[rank] = all, all += counts[rank];
  uint64_t *samples = malloc(all * sizeof *samples), *sent = malloc(mine * sizeof *sent);
  for (int i = 0; i < mine; i++) sent[i] = own[i * step];
  MPI_Allgatherv(sent, mine, MPI_UINT64_T, samples, counts, places, MPI_UINT64_T, MPI_COMM_WORLD);
  qsort(samples, all, sizeof *samples, compare);
  for (int rank = 1; rank < ranks; rank++) bounds[rank - 1] = samples[(size_t)rank * all / ranks];
  free(counts), free(places), free(samples), free(sent);
}

static int range_of(uint64_t key, const uint64_t *bounds) {
  int low = 0, high = ranks - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (bounds[middle] <= key) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* What this rank is sent of all keys. */
static uint64_t *exchange(const uint64_t *own, size_t length, const uint64_t *bounds, size_t *received) {
  int *out = calloc(ranks, sizeof *out), *in = calloc(ranks, sizeof *in);
  int *from = calloc(ranks, sizeof *from), *to = calloc(ranks, sizeof *to), *next = calloc(ranks, sizeof *next);
  unsigned *range = malloc((length + 1) * sizeof *range);
  for (size_t i = 0; i < length; i++) out[range[i] = (unsigned)range_of(own[i], bounds)]++;
  MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
  for (int rank = 1; rank < ranks; rank++) {
    from[rank] = from[rank - 1] + out[rank - 1];
    to[rank] = to[rank - 1] + in[rank - 1];
  }
  memcpy(next, from, ranks * sizeof *next);
  uint64_t *sorted_by_range = malloc((length + 1) * sizeof *sorted_by_range);
  for (size_t i = 0; i < length; i++) sorted_by_range[next[range[i]]++] = own[i];
  *received = (size_t)to[ranks - 1] + (size_t)in[ranks - 1];
  uint64_t *keys = malloc((*received + 1) * sizeof *keys);
  MPI_Alltoallv(sorted_by_range, out, from, MPI_UINT64_T, keys, in, to, MPI_UINT64_T, MPI_COMM_WORLD);
  free(out), free(in), free(from), free(to), free(next), free(range), free(sorted_by_range);
  return keys;
}

/* What is wrong, at all ranks together. */
static uint64_t verify(const uint64_t *own, size_t length, const uint64_t *sorted, size_t received, uint64_t keys) {
  uint64_t mine[5] = {received}, all[5], before = 0;
  for (size_t i = 0; i < length; i++) mine[1] += own[i], mine[2] ^= own[i] * (own[i] | 1);
  for (size_t i = 0; i < received; i++) mine[3] += sorted[i], mine[4] ^= sorted[i] * (sorted[i] | 1);
  uint64_t wrong = 0, total;
  for (size_t i = 1; i < received; i++) wrong += sorted[i - 1] > sorted[i];
  /* The highest key of the ranks before this one. */
  uint64_t last = received > 0 ? sorted[received - 1] : 0;
  MPI_Exscan(&last, &before, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
  wrong += me > 0 && received > 0 && before > sorted[0];
  MPI_Allreduce(mine, all, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&mine[3], &all[3], 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&mine[2], &all[2], 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
  MPI_Allreduce(&mine[4], &all[4], 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
  MPI_Allreduce(&wrong, &total, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return total + (all[0] != keys) + (all[1] != all[3]) + (all[2] != all[4]);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 2) return fprintf(stderr, "usage: alltoallv KEYS\n"), 2;
  uint64_t keys = strtoull(argv[1], NULL, 10);
  uint64_t first = keys * (uint64_t)me / (uint64_t)ranks, end = keys * ((uint64_t)me + 1) / (uint64_t)ranks;
  size_t length = end - first, received;
  uint64_t *own = malloc((length + 1) * sizeof *own), *bounds = malloc((size_t)ranks * sizeof *bounds);
  for (size_t i = 0; i < length; i++) own[i] = scrambled(first + i);
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  choose_bounds(own, length, bounds);
  uint64_t *sorted = exchange(own, length, bounds, &received);
  sorted = sort(sorted, received);
  MPI_Barrier(MPI_COMM_WORLD);
  double seconds = MPI_Wtime() - begin;
  uint64_t wrong = verify(own, length, sorted, received, keys);
  if (me == 0) printf("{\"keys_per_s\":%.1f,\"wrong\":%llu}\n", (double)keys / seconds, (unsigned long long)wrong);
  MPI_Finalize();
  return wrong != 0;
}
