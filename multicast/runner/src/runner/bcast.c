/* MPI_Bcast of one buffer from rank 0, as multicast-runner measures its own: the time until the last rank has it, each time verified.
 * bcast BYTES WARM_UP COUNT: prints the seconds of each, on one line. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(unsigned char *bytes, size_t len, uint64_t number) {
  uint64_t seed = (number + 1) * 0x9e3779b97f4a7c15u;
  for (size_t at = 0; at < len; at++) bytes[at] = (unsigned char)((seed + at / 8) >> (at % 8 * 8));
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  size_t len = strtoull(argv[1], 0, 10);
  int warm_up = atoi(argv[2]), count = atoi(argv[3]), wrong = 0, all_wrong = 0;
  unsigned char *bytes = malloc(len), *expected = malloc(len);
  memset(bytes, 1, len);
  for (int number = 0; number < warm_up + count; number++) {
    fill(expected, len, number);
    if (rank == 0) memcpy(bytes, expected, len);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    MPI_Bcast(bytes, (int)len, MPI_BYTE, 0, MPI_COMM_WORLD);
    double took = MPI_Wtime() - start, longest = 0;
    MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD); /* nobody looks at it while others wait for it */
    wrong += memcmp(bytes, expected, len) != 0;
    if (rank == 0 && number >= warm_up) printf("%.9f ", longest);
  }
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("\n");
  MPI_Finalize();
  return rank == 0 && all_wrong != 0;
}
