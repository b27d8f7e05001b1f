#!/usr/bin/env bash
# Claim: the program in docs/nccl.md compiles as C without warnings and prints what it says.
#
#   document_test.sh CC SOURCE_DIR LIBRARY
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sed -n '/^```c$/,/^```$/p' "$2/docs/nccl.md" | sed '1d;$d' >"$dir/program.c"
"$1" -std=c99 -Wall -Wextra -Werror -DCHORUS_NCCL_WITHOUT_CUDA -I "$2/include" "$dir/program.c" \
  "$3" -Wl,-rpath,"$(dirname "$3")" -o "$dir/program"
out=$("$dir/program")
[ "$out" = "11 44" ] || { echo "it prints '$out'"; exit 1; }
