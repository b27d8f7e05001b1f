/* A program as NCCL's documentation has it: rank 0 makes the id and hands it round (here by a
 * file), every rank joins, sums a vector and checks it. Host memory, no GPU.
 *
 *   all_reduce FILE        ranks from CHORUS_RANK and CHORUS_WORLD_SIZE (chorus run) */
#include <chorus/nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(call)                                                                               \
  do {                                                                                            \
    const ncclResult_t result = (call);                                                           \
    if (result != ncclSuccess) {                                                                  \
      fprintf(stderr, "%s: %s: %s\n", #call, ncclGetErrorString(result), ncclGetLastError(NULL)); \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

static ncclUniqueId share_id(int rank, const char* path) {
  ncclUniqueId id;
  char part[4096];
  snprintf(part, sizeof part, "%s.part", path);
  if (rank == 0) {
    CHECK(ncclGetUniqueId(&id));
    FILE* file = fopen(part, "wb");
    if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 ||
        rename(part, path) != 0) {
      perror(path);
      exit(1);
    }
    return id;
  }
  for (;;) {
    FILE* file = fopen(path, "rb");
    if (file != NULL) {
      const size_t got = fread(&id, sizeof id, 1, file);
      fclose(file);
      if (got == 1) return id;
    }
    usleep(1000);
  }
}

int main(int argc, char** argv) {
  enum { count = 100000 };
  static float input[count], output[count];
  const char* rank_text = getenv("CHORUS_RANK");
  const char* size_text = getenv("CHORUS_WORLD_SIZE");
  if (argc != 2 || rank_text == NULL || size_text == NULL) {
    fprintf(stderr, "usage: chorus run -n 4 %s FILE\n", argv[0]);
    return 2;
  }
  const int rank = atoi(rank_text), size = atoi(size_text);

  int version = 0;
  CHECK(ncclGetVersion(&version));
  const ncclUniqueId id = share_id(rank, argv[1]);
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, size, id, rank));
  for (int i = 0; i < count; ++i) input[i] = (float)(i % 100 + rank);
  CHECK(ncclAllReduce(input, output, count, ncclFloat, ncclSum, comm, NULL));
  for (int i = 0; i < count; ++i) {
    const float expected = (float)(i % 100 * size + size * (size - 1) / 2);
    if (output[i] != expected) {
      fprintf(stderr, "rank %d: element %d is %g, not %g\n", rank, i, output[i], expected);
      return 1;
    }
  }
  CHECK(ncclCommDestroy(comm));
  printf("rank %d of %d: sum right, NCCL %d\n", rank, size, version);
  return 0;
}
