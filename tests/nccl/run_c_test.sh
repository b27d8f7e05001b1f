#!/usr/bin/env bash
# Claim: a C program written against NCCL's documentation runs on host memory, as 2, 3 and 4 processes.
#
#   run_c_test.sh CHORUS PROGRAM
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for n in 2 3 4; do
  out=$("$1" run -n "$n" "$2" "$dir/id$n")
  [ "$(grep -c 'sum right, NCCL 22809$' <<<"$out")" = "$n" ] || { echo "$n ranks: $out"; exit 1; }
done
