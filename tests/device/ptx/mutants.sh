#!/bin/sh
# Tries mutants of the kernels (mutants.cpp) on PTX that knows its statements.
#
#   mutants.sh PROGRAM [EVERY [SEEDS [FIRST]]]    e.g.  mutants.sh build/dev/tests/device/ptx/device_ptx_mutants
#
# EVERY (1): of so many mutants one is tried, beginning with number FIRST (0). Without nvcc it says so and ends with 77.
set -eu
program=${1:?the program device_ptx_mutants}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
[ -x "$nvcc" ] || {
  echo "skipped: there is no nvcc"
  exit 77
}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$nvcc" -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -I"$root/include" -I"$root/src" \
  -I"$root" -lineinfo -arch=compute_90 -ptx -o "$out/kernels.ptx" "$root/src/device/kernels.cu"
"$program" "$out/kernels.ptx" "$here/explained.txt" "$root/src/device" "${2:-1}" "${3:-1}" \
  "${4:-0}"
