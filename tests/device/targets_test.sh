#!/bin/sh
# Claim: every GPU that nvcc knows finds kernels in a library that is built as usual: machine code of its generation or,
# of a generation that few machines have, PTX for the driver to compile. Data-centre and desktop
# GPUs (T4, A100, H100, B200, RTX 50) find machine code: to compile takes longer than ranks wait.
#
#   targets_test.sh NVCC IMAGE...      as fatbinary is given them: --image3=kind=elf,sm=80,file=…
set -eu
nvcc=$1
shift
status=0
# Whether one of kind $1 serves compute capability $2: $3 is the lowest that may.
has() {
  for image in $images; do
    kind=${image#*kind=}
    sm=${image#*sm=}
    sm=${sm%%,*}
    [ "${kind%%,*}" = "$1" ] && [ "$sm" -le "$2" ] && [ "$sm" -ge "$3" ] && return 0
  done
  return 1
}
images=$*
for arch in $("$nvcc" --list-gpu-arch | sed 's/compute_//'); do
  has elf "$arch" $((arch / 10 * 10)) || has ptx "$arch" 0 || {
    echo "a GPU of compute capability $arch finds no kernels among: $images"
    status=1
  }
done
for arch in 75 80 86 89 90 100 103 120 121; do
  has elf "$arch" $((arch / 10 * 10)) || {
    echo "a GPU of compute capability $arch finds no machine code among: $images"
    status=1
  }
done
exit $status
