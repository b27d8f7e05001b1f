// One job under Open MPI's ULFM, whose last rank kills itself in a call: the milliseconds until all
// others had read of it, and until they had a result without it. Its argument: a file that is made.
#include <mpi.h>
#include <mpi-ext.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kCount = 1000 };
static int64_t data[kCount];

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int reduce(MPI_Comm comm) {
  for (int i = 0; i < kCount; ++i) data[i] = 1;
  return MPI_Allreduce(MPI_IN_PLACE, data, kCount, MPI_INT64_T, MPI_SUM, comm);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm world, smaller;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  int rank, size, left;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  const int file = open(argv[1], O_RDWR | O_CREAT, 0600);
  if (ftruncate(file, sizeof(double)) != 0) return 1;
  volatile double* const died_s = mmap(NULL, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  for (int call = 0; reduce(world) == MPI_SUCCESS; ++call) {
    if (rank != size - 1 || call < 500) continue;
    *died_s = now_s();
    raise(SIGKILL);
  }
  const double told_s = now_s();
  MPIX_Comm_revoke(world);
  if (MPIX_Comm_shrink(world, &smaller) != MPI_SUCCESS) MPI_Abort(MPI_COMM_WORLD, 1);
  const int result = reduce(smaller);
  const double usable_s = now_s();
  MPI_Comm_rank(smaller, &rank);
  MPI_Comm_size(smaller, &left);
  if (result != MPI_SUCCESS || left != size - 1 || data[kCount - 1] != left) printf("wrong\n");
  double mine[2] = {told_s - *died_s, usable_s - *died_s}, most[2];
  MPI_Allreduce(mine, most, 2, MPI_DOUBLE, MPI_MAX, smaller);
  if (rank == 0) printf("%.2f %.2f\n", 1e3 * most[0], 1e3 * most[1]);
  fflush(stdout);
  MPI_Finalize();
  return 0;
}
