#!/usr/bin/env bash
# Claim: nccl.h of Chorus has every value, size and offset of NVIDIA's header of the same version.
# Skipped (77) where NVIDIA's, with the toolkit's headers, is not installed.
#
#   abi_test.sh CC SOURCE_DIR
set -euo pipefail
cc=$1 source=$2
real=
for dir in "${CUDA_HOME:-/usr/local/cuda}/include" /usr/local/include /usr/include; do
  if grep -qs 'NCCL_VERSION_CODE 22809$' "$dir/nccl.h"; then real=$dir; break; fi
done
[ -n "$real" ] || { echo "skipped: no nccl.h of NCCL 2.28.9 by NVIDIA"; exit 77; }
cuda=
for dir in "$real" "${CUDA_HOME:-/usr/local/cuda}/include"; do
  if [ -e "$dir/cuda_runtime.h" ]; then cuda=$dir; break; fi
done
[ -n "$cuda" ] || { echo "skipped: no cuda_runtime.h for $real/nccl.h"; exit 77; }

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$cc" -I "$real" -I "$cuda" "$source/tests/nccl/abi.c" -o "$dir/theirs"
for with in -DCHORUS_NCCL_WITHOUT_CUDA "-I$cuda"; do
  "$cc" -I "$source/include/chorus" "$with" "$source/tests/nccl/abi.c" -o "$dir/ours"
  diff <("$dir/theirs") <("$dir/ours") || { echo "NVIDIA's (<) and ours (>) differ"; exit 1; }
done
